"""One device of a recording, prepared once and replayed under any number of settings.

`Prepared` computes the plan, the start state, the address policy and the proof of a device on
first use and keeps them.  `replay`, `Walk` and every trial use the same object, so their results
are comparable.  Only a replay as recorded may use the driver's recorded addresses; all other
replays use `free_plan` and place segments by the address policy that the recording shows.
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
    """Device of a recording, ready to be replayed.

    release: release to model.
    release_note: sentence that gives the reason for that release.
    recorded: recorded settings, or the default ones.
    config: parsed `recorded`.
    has_settings: the settings are known.
    start: segments before the first entry.
    releases: releases that can have written the recording, oldest first; only the requested or
        noted one if there is one.
    written: the device under the release that wrote the recording, if `release` cannot have; the
        plan is read from it.
    provenance: origin of the recording; None if it is not noted.
    assumed_memory: bytes of the device as the user gives them, if the recording does not.
    hints: facts about the program from the user.
    marks: known calls of the program, recorded or from hints.
    is_made: the model made the recording, and `marks` contains every call.
    is_requests: the recording contains only requests, so there is nothing to compare with.
    file_notes: sentences about what the file lacks and how it was completed.
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
        """Steps of the recording, including the driver's answers; see `planned.py`."""
        return plan_of(self) if self.written is None else self.written.plan

    @property
    def is_own_release(self) -> bool:
        """True if the modelled release can have written the recording."""
        return self.written is None

    def capacity_of(self, plan: Plan) -> int | None:
        """Return the bytes of the device, as named or from an OOM error of `plan`; else None."""
        return self.named_memory or plan.capacity

    def on(self, device_memory: int | None) -> Prepared:
        """Return the device with the user's memory size, unless the recording rules it out."""
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
        """Bytes of the device as noted by the recorder; 0 if unknown."""
        return 0 if self.provenance is None else self.provenance.device_memory

    @property
    def collects_at(self) -> float | None:
        """The garbage_collection_threshold, if the memory limit that it refers to is unknown."""
        is_marked = any(mark.kind is MarkKind.FRACTION for mark in self.marks)
        has_limit = is_marked or self.recorded.fraction(self.release) is not None
        threshold = self.config.garbage_collection_threshold
        return threshold if threshold > 0 and not has_limit else None

    def in_force(self, setting: Setting) -> Setting:
        """Return `setting` with the memory fraction that the program sets at its start.

        A limit in a `setting` other than the recorded one replaces the program's.
        """
        if self._sets_limit(setting):
            return setting
        return replace(setting, call_fraction=fraction_at_start(self.marks))

    @property
    def held(self) -> int:
        """Bytes reserved before the first entry."""
        return sum(segment.total_size for segment in self.start)

    @property
    def named_memory(self) -> int | None:
        """Bytes of the device, as recorded or given by the user; None if unknown."""
        return self.recorded_memory or self.assumed_memory

    @property
    def capacity(self) -> int | None:
        """Bytes of the device, as named or from a recorded OOM error; None if unknown."""
        return self.capacity_of(self.plan)

    @property
    def inferred(self) -> int | None:
        """Bytes of the device, inferred from refused requests or growing segments; else None."""
        if self.capacity is not None:
            return None
        return self.plan.fits or self.plan.inferred_capacity

    @cached_property
    def proofs(self) -> list[Parting | None]:
        """Cached proof: first divergence of the replay as recorded; empty before the proof."""
        return [None] if self.plan.is_proved or self.is_made or self.is_requests else []

    @cached_property
    def quiet_of_proof(self) -> list[Quiet]:
        """Cached `quiet`, if an exact proof has found it; else empty."""
        return []

    @cached_property
    def free_plan(self) -> Plan:
        """The plan without answers of the driver, for replays that place segments themselves."""
        return replace(self.plan, steps=self.plan.steps.of_program())

    @cached_property
    def open_plans(self) -> tuple[Plan, ...]:
        """Other possible plans, which the recording does not exclude; see `left_open.py`."""
        return tuple(open_plans(self))

    @cached_property
    def quiet(self) -> Quiet:
        """Moments at which a call of empty_cache would have left no entry; see `quiet.py`."""
        return quiet_moments(self)

    @cached_property
    def addresses(self) -> Addresses:
        """Address policy of replays that place segments themselves; see `addresses.py`.

        Recordings of a phantom GPU and of the model say nothing about a driver; their segments
        get ascending addresses.
        """
        made = self.provenance
        if self.is_made or self.is_requests or (made is not None and made.is_phantom):
            return Addresses()
        if self.written is not None:
            return self.written.addresses
        return read_addresses(self.trace, self.start)

    @property
    def first_base(self) -> int:
        """Lowest address that the recorded driver returned."""
        return self.trace.driver_addresses[0]

    @property
    def last_address(self) -> int:
        """End of the highest range that the recorded driver returned."""
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
        """Return an allocator in the state before the first entry.

        device_memory: bytes; None for an unlimited device.
        address_policy, base_address: see `Device`; by default those of `addresses`.
        addresses: None for those that the recording shows.
        limit: memory limit in bytes that the program sets by a call.
        start: `Start.ANEW` for an empty allocator.
        host_spill: bytes of host memory that the driver lends.
        Raises ConfigError for a setting that the release refuses, and for a device too small for
        the segments before the first entry.
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
        """Replay every step under `setting` and return the finished drive.

        device_memory: bytes; None for an unlimited device.
        skips: omit repeated periods that change nothing; the timeline then lacks them.
        fast_path: see `CachingAllocator`.
        folder: function that computes the statistics.
        start: None for `start_under`.
        plan: None for `free_plan`.
        addresses: None for those that the recording shows.
        Raises what `allocator` raises, and UpstreamError or UndefinedBehaviorError for a run that
        PyTorch would not survive.
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
        """Return `plan`, without the program's calls that set a limit if `setting` sets one."""
        if not plan.changes or not self._sets_limit(setting):
            return plan
        return replace(plan, steps=plan.steps.without(StepKind.FRACTION))

    def _sets_limit(self, setting: Setting) -> bool:
        return setting.fraction(self.release) is not None and not self.is_recorded(setting)

    def is_recorded(self, setting: Setting) -> bool:
        """Return True if `setting` has the same meaning as the recorded settings."""
        wanted, own = parse_conf(setting.conf, self.release), self.config
        has_call = setting.call_fraction == self.recorded.call_fraction
        return has_call and str(wanted) == str(own)

    def start_under(self, setting: Setting, device_memory: int | None) -> Start:
        """Return the default start of a replay under `setting`; see `two_starts.py`."""
        key = setting, device_memory
        if key not in self._starts:
            self._starts[key] = chosen_start(self, setting, device_memory)
        return self._starts[key]

    @cached_property
    def _starts(self) -> dict[tuple[Setting, int | None], Start]:
        return {}

    def limit_for(self, setting: Setting, device_memory: int | None, plan: Plan) -> int | None:
        """Return the limit in bytes that a call of the program sets, scaled to the device."""
        limit = plan.limit
        if limit is None or self.in_force(setting).fraction(self.release) is not None:
            return None
        if device_memory is None or self.capacity is None:
            return limit
        return limit * device_memory // self.capacity

    def depends_on_device(self, setting: Setting) -> bool:
        """Return True if a limit (1.11) or the start of the replay depends on the device size.

        A replay on one device then does not show the outcome on another.
        """
        has_fraction = self.in_force(setting).fraction(self.release) is not None
        moves = has_fraction or self.plan.limit is not None or bool(self.plan.changes)
        return moves or may_break(self, setting)

    @cached_property
    def _rounded(self) -> dict[tuple[int, ...], RoundedSizes]:
        return {}

    def _rounded_sizes(self, setting: Setting) -> RoundedSizes:
        config = setting.config(self.release)
        rounding = config.roundup_power2_divisions
        if rounding not in self._rounded:
            self._rounded[rounding] = RoundedSizes(config)
        return self._rounded[rounding]

    @cached_property
    def expected(self) -> Expected:
        """Recorded entries of each step of the plan."""
        return Expected.of(Compared.of(self.trace), self.plan.steps)

    @cached_property
    def period(self) -> Period | None:
        """Repeating stretch of `free_plan`; None if there is none."""
        return find_period(self.free_plan.steps)

    def _period_for(self, allocator: CachingAllocator) -> Period | None:
        """Return the period that may be skipped, or None.

        Skipping needs a state that the blocks describe completely: no creation order among free
        blocks, no garbage collection by age, no change of settings.
        """
        counts_objects = self.release.free_block_order is FreeBlockOrder.CREATION
        collects = allocator.collects_garbage_above is not None
        return None if counts_objects or collects or self.plan.changes else self.period
