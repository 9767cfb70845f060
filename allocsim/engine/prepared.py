"""One device of a recording, made ready once and driven under any number of settings.

Rule: release, start and plan of a device are worked out once, in `prepare.py` and here; `replay`,
`Walk` and every trial drive what is prepared, so that their results can be held against each
other.  A drive as recorded may have its driver bases dictated; any other drives the undictated
plan, addresses by the rule that the recording shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from allocsim.core import (
    UNLIMITED_DEVICE,
    AllocatorConfig,
    CachingAllocator,
    Folder,
    FreeBlockOrder,
    Release,
    RoundedSizes,
    parse_conf,
)
from allocsim.engine.addresses import Addresses, read_addresses
from allocsim.engine.calls import fraction_at_start
from allocsim.engine.drive import Drive
from allocsim.engine.expected import Compared, Expected
from allocsim.engine.fold import fold
from allocsim.engine.hints import Hints
from allocsim.engine.left_open import open_plans
from allocsim.engine.observers import Observer, Progress
from allocsim.engine.on_card import OnCard
from allocsim.engine.plan import Plan, StepKind
from allocsim.engine.planned import plan_of
from allocsim.engine.quiet import Quiet, quiet_moments
from allocsim.engine.repeats import Period, find_period
from allocsim.engine.result import Parting
from allocsim.engine.setting import Setting
from allocsim.engine.start import Start
from allocsim.engine.two_starts import chosen_start, may_break
from allocsim.errors import ConfigError
from allocsim.state import SegmentState
from allocsim.trace import Mark, MarkKind, Provenance, Trace
from allocsim.units import format_size

__all__ = ["Prepared"]


@dataclass(frozen=True, eq=False)
class Prepared(OnCard):
    """A device of a recording, ready to be driven.

    path: of the recording.
    release: the one to model; release_note: why, in a sentence.
    recorded: the settings of the recording, if it holds any (has_settings); config: their meaning.
    start: the segments before the first entry.
    releases: those that can have written it, the oldest first; or the one asked for or noted.
    written: the same under the release that wrote the recording, where the one modelled cannot
        have: what the program did is read off it, and a replay tells what another would have done.
    provenance: how the recording was made, None where nobody noted it.
    assumed_memory: bytes of the device as a user says, where the recording does not.
    hints: what a user says of the program; marks: what is known of it, recorded or said.
    is_made: whether the model has just made the recording, whose marks are all that was called.
    is_requests: whether the recording holds requests alone, which nothing can be compared with.
    file_notes: what the file lacks, and what was made of it.
    is_elsewhere: see `OnCard`.
    """

    path: str
    trace: Trace
    release: Release
    release_note: str
    recorded: Setting
    config: AllocatorConfig
    has_settings: bool
    start: tuple[SegmentState, ...]
    provenance: Provenance | None
    releases: tuple[str, ...] = ()
    written: Prepared | None = None
    assumed_memory: int | None = None
    hints: Hints = Hints()  # noqa: RUF009  (frozen)
    marks: tuple[Mark, ...] = ()
    is_made: bool = False
    is_requests: bool = False
    file_notes: tuple[str, ...] = ()
    is_elsewhere: bool = False

    @cached_property
    def plan(self) -> Plan:
        """The steps, what the driver answered among them; see `planned.py`."""
        return plan_of(self) if self.written is None else self.written.plan

    @property
    def is_own_release(self) -> bool:
        """Whether the release modelled can have written the recording."""
        return self.written is None

    def capacity_of(self, plan: Plan) -> int | None:
        """Bytes of the device: as named, else as an out-of-memory error tells; None: unknown."""
        return self.named_memory or plan.capacity

    def on(self, device_memory: int | None) -> Prepared:
        """The same on the device that a user names, if nothing recorded speaks against it."""
        if device_memory not in (None, self.named_memory) and self.others_memory:
            return replace(self, is_elsewhere=True).on(device_memory)
        if self.written is not None:
            written = self.written.on(device_memory)
            return replace(self, written=written, assumed_memory=written.assumed_memory)
        if device_memory is None or self.capacity is not None:
            return self
        plan = self.plan
        is_settled = plan.refused_below is None and plan.limit is None and not plan.n_narrowed
        if is_settled or device_memory < plan.max_reserved:
            return self
        assumed = replace(self, assumed_memory=device_memory)
        return assumed if assumed.plan.is_whole else self

    @property
    def recorded_memory(self) -> int:
        """Bytes of the device as noted where the recording was made; 0 where nothing was."""
        return 0 if self.provenance is None else self.provenance.device_memory

    @property
    def collects_at(self) -> float | None:
        """The garbage_collection_threshold, if the limit that it is a share of is unknown."""
        is_marked = any(mark.kind is MarkKind.FRACTION for mark in self.marks)
        has_limit = is_marked or self.recorded.fraction(self.release) is not None
        threshold = self.config.garbage_collection_threshold
        return threshold if threshold > 0 and not has_limit else None

    def in_force(self, setting: Setting) -> Setting:
        """`setting` with the memory fraction that the program begins with.

        The call is made whatever the setting; another one's own limit has the last word.
        """
        if self._sets_limit(setting):
            return setting
        return replace(setting, call_fraction=fraction_at_start(self.marks))

    @property
    def held(self) -> int:
        """Bytes that were reserved before the first entry."""
        return sum(segment.total_size for segment in self.start)

    @property
    def named_memory(self) -> int | None:
        """Bytes of the device that the recording names; None where it does not."""
        return self.recorded_memory or self.assumed_memory

    @property
    def capacity(self) -> int | None:
        """Bytes of the device: as named, else as an out-of-memory error tells; None: unknown."""
        return self.capacity_of(self.plan)

    @property
    def inferred(self) -> int | None:
        """Bytes of the device, where only what it refused, or how segments grew, tells of them."""
        if self.capacity is not None:
            return None
        return self.plan.fits or self.plan.inferred_capacity

    @cached_property
    def proofs(self) -> list[Parting | None]:
        """Where the replay as recorded leaves the recording, once one was made."""
        return [None] if self.plan.is_proved or self.is_made or self.is_requests else []

    @cached_property
    def looked(self) -> list[Quiet]:
        """The moments of `quiet`, where a proof that holds has looked at them on its way."""
        return []

    @cached_property
    def free_plan(self) -> Plan:
        """The plan without driver bases: what depends on the program alone."""
        return replace(self.plan, steps=self.plan.steps.undictated())

    @cached_property
    def open_plans(self) -> tuple[Plan, ...]:
        """What the program may have done as well, as `free_plan`s; see `left_open.py`."""
        return tuple(open_plans(self))

    @cached_property
    def quiet(self) -> Quiet:
        """The moments at which a call of empty_cache would not have shown; see `quiet.py`."""
        return quiet_moments(self)

    @cached_property
    def addresses(self) -> Addresses:
        """The address policy of a drive that dictates no address; see `addresses.py`.

        A phantom's and the model's own addresses are no card's: they are given out in order.
        """
        made = self.provenance
        if self.is_made or self.is_requests or (made is not None and made.is_phantom):
            return Addresses()
        if self.written is not None:
            return self.written.addresses
        return read_addresses(self.trace, self.start)

    @property
    def first_base(self) -> int:
        """Where the recorded driver's addresses begin."""
        return self.trace.driver_addresses[0]

    @property
    def last_address(self) -> int:
        """The first address past all that the recorded driver handed out."""
        return self.trace.driver_addresses[1]

    def allocator(
        self,
        setting: Setting,
        device_memory: int | None,
        *,
        base_address: int | None = None,
        address_policy: str | None = None,
        addresses: Addresses | None = None,
        record_history: bool = False,
        fast_path: bool = True,
        limit: int | None = None,
        start: Start = Start.KEPT,
        host_spill: int = 0,
    ) -> CachingAllocator:
        """An allocator that holds what the device held before the first entry.

        device_memory: bytes, None for a device without end.
        address_policy, base_address: see `Device`; without a policy they are those of `addresses`,
        None for the recording's own.
        limit: bytes that the program allows itself by a call.
        start: `Start.ANEW` for one that holds nothing yet.  host_spill: bytes that the driver lends
        of the host's memory.
        Raises ConfigError for a setting that the release refuses, or a device too small for what
        the recording begins with.
        """
        is_kept = start is Start.KEPT
        if address_policy is not None:
            addresses = Addresses(address_policy)
        elif addresses is None:
            addresses = self.addresses
        if base_address is None:
            base_address = self.first_base if addresses.base is None else addresses.base
        if device_memory is not None and is_kept and self.held > device_memory + host_spill:
            raise ConfigError(
                f"device memory {format_size(device_memory)} cannot hold what device "
                f"{self.trace.device} had reserved before the first entry; expected "
                f"{format_size(self.held)} or more"
            )
        allocator = CachingAllocator(
            device_memory or UNLIMITED_DEVICE,
            setting.conf,
            self.release.version,
            context_memory=self.context_memory_on(device_memory),
            host_spill=host_spill,
            address_policy=addresses.policy,
            base_address=base_address,
            record_history=record_history,
            device=self.trace.device,
            fast_path=fast_path,
            rounded_sizes=self._rounded_sizes(setting),
        )
        fraction = self.in_force(setting).call_fraction
        if fraction is not None:
            allocator.set_per_process_memory_fraction(fraction)
        elif limit is not None and limit <= allocator.device.total:
            allocator.limit_to(limit)
        if is_kept:
            allocator.seed(self.start)
        return allocator

    def drive(
        self,
        setting: Setting,
        device_memory: int | None,
        *,
        observers: Iterable[Observer] = (),
        progress: Progress | None = None,
        skips: bool = False,
        fast_path: bool = True,
        folder: Folder = fold,
        start: Start | None = None,
        plan: Plan | None = None,
        addresses: Addresses | None = None,
    ) -> Drive:
        """Drive every step under `setting` on a device of `device_memory` bytes (None: no end).

        skips: whether to pass over periods in which nothing changes; the timeline then lacks
        them.  fast_path: see `CachingAllocator`.  folder: what counts the statistics.
        start: None for `start_under`.  plan: None for `free_plan`.  addresses: None for the
        recording's own.
        Raises as `allocator` does, and what PyTorch would not survive under its own name.
        """
        start = self.start_under(setting, device_memory) if start is None else start
        plan = self.free_plan if plan is None else plan
        allocator = self.allocator(
            setting,
            device_memory,
            addresses=addresses,
            fast_path=fast_path,
            limit=self.limit_for(setting, device_memory, plan),
            start=start,
        )
        drive = Drive(
            allocator,
            self.plan_under(setting, plan),
            len(self.trace),
            dictates=False,
            progress=progress,
            observers=tuple(observers),
            folder=folder,
            lays_out=self.start if start is Start.ANEW else (),
            address_events=(addresses or self.addresses).events,
        )
        drive.run(self._period_for(allocator) if skips else None)
        return drive

    def plan_under(self, setting: Setting, plan: Plan) -> Plan:
        """`plan` without the program's own limits where another `setting` sets one."""
        if not plan.changes or not self._sets_limit(setting):
            return plan
        return replace(plan, steps=plan.steps.without(StepKind.FRACTION))

    def _sets_limit(self, setting: Setting) -> bool:
        return setting.fraction(self.release) is not None and not self.is_recorded(setting)

    def is_recorded(self, setting: Setting) -> bool:
        """Whether `setting` means what the recorded settings mean."""
        wanted, own = parse_conf(setting.conf, self.release), self.config
        has_call = setting.call_fraction == self.recorded.call_fraction
        return has_call and str(wanted) == str(own)

    def start_under(self, setting: Setting, device_memory: int | None) -> Start:
        """How a drive under `setting` begins unless it is told; see `two_starts.py`."""
        key = setting, device_memory
        if key not in self._starts:
            self._starts[key] = chosen_start(self, setting, device_memory)
        return self._starts[key]

    @cached_property
    def _starts(self) -> dict[tuple[Setting, int | None], Start]:
        """By setting and device, what `start_under` found."""
        return {}

    def limit_for(self, setting: Setting, device_memory: int | None, plan: Plan) -> int | None:
        """Bytes that `plan`'s own call allows under `setting` (`in_force`) on such a device."""
        limit = plan.limit
        if limit is None or self.in_force(setting).fraction(self.release) is not None:
            return None
        if device_memory is None or self.capacity is None:
            return limit
        return limit * device_memory // self.capacity

    def depends_on_device(self, setting: Setting) -> bool:
        """Whether a limit (1.11), or how a drive under `setting` begins, moves with the device.

        Then what a replay on one device reserves does not tell on which it would go the same way.
        """
        has_fraction = self.in_force(setting).fraction(self.release) is not None
        moves = has_fraction or self.plan.limit is not None or bool(self.plan.changes)
        return moves or may_break(self, setting)

    @cached_property
    def _rounded(self) -> dict[tuple[int, ...], RoundedSizes]:
        """By rounding, what was rounded in drives before."""
        return {}

    def _rounded_sizes(self, setting: Setting) -> RoundedSizes:
        config = setting.config(self.release)
        rounding = config.roundup_power2_divisions
        if rounding not in self._rounded:
            self._rounded[rounding] = RoundedSizes(config)
        return self._rounded[rounding]

    @cached_property
    def expected(self) -> Expected:
        """What each step of the plan left in the recording."""
        return Expected.of(Compared.of(self.trace), self.plan.steps)

    @cached_property
    def period(self) -> Period | None:
        """The stretch that repeats itself of the steps that the program alone decides."""
        return find_period(self.free_plan.steps)

    def _period_for(self, allocator: CachingAllocator) -> Period | None:
        """The stretch that may be passed over, unless more than the blocks tells what comes."""
        counts_objects = self.release.free_block_order is FreeBlockOrder.CREATION
        collects = allocator.collects_garbage_above is not None
        return None if counts_objects or collects or self.plan.changes else self.period
