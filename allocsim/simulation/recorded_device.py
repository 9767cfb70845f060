"""Device of a recording, as far as it is known without a replay.

Hints are calls of the program that the user knows and the recording does not contain.  A mark is a
call that leaves no entry, and that the recording stores in addition to the entries.  Hints replace
marks of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from allocsim.core import (
    UNLIMITED_DEVICE,
    AllocatorConfig,
    Release,
    ReplayAllocator,
    RoundedSizes,
)
from allocsim.errors import ConfigError
from allocsim.recording import CardMemory, Mark, MarkKind, Provenance, Trace, card_memory
from allocsim.simulation.addresses import Addresses, read_addresses
from allocsim.simulation.plan import Plan, StepKind
from allocsim.simulation.what_if import Setting, Start
from allocsim.state import SegmentState
from allocsim.units import format_size

_NEVER = "never"
EMPTY_CACHE_WAYS = (_NEVER, "recorded")


@dataclass(frozen=True, slots=True)
class Hints:
    """Facts that the user gives about calls of the program that leave no entry.

    memory_fraction: argument of set_per_process_memory_fraction at the start; None for no hint.
    empty_cache: "never" if the program never called empty_cache, even if the recording suggests
        it; "recorded" to use recorded and inferred calls.
    settings: option strings (confs) that the program sets, as (number of entries before the call,
        conf).  With number 0, it is the conf at the start; a recording contains only the last conf.
    Raises ConfigError for a `memory_fraction` or an `empty_cache` that is not valid.
    """

    memory_fraction: float | None = None
    empty_cache: str = "recorded"
    settings: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        fraction = self.memory_fraction
        if fraction is not None and not 0.0 <= fraction <= 1.0:
            raise ConfigError(f"memory fraction {fraction} is out of range; expected 0 to 1")
        if self.empty_cache not in EMPTY_CACHE_WAYS:
            known = " or ".join(repr(way) for way in EMPTY_CACHE_WAYS)
            raise ConfigError(f"empty_cache {self.empty_cache!r} is unknown; expected {known}")

    @property
    def empties(self) -> bool:
        """False if the user gave the hint that the program never called empty_cache."""
        return self.empty_cache != _NEVER

    @property
    def first_conf(self) -> str | None:
        """Option string (conf) at the start of the program, if given as a hint; else None."""
        return next((conf for entry, conf in reversed(self.settings) if entry == 0), None)

    def marks(self, trace: Trace) -> tuple[Mark, ...]:
        """Return the recorded marks of `trace` and the marks from hints, ordered by entry.

        Raises ConfigError for settings at an entry that the trace does not have.
        """
        marks = [*self._own_marks(trace), *(mark for mark in trace.marks if self._keeps(mark))]
        return tuple(sorted(marks, key=lambda mark: mark.entry))

    def _own_marks(self, trace: Trace) -> Iterator[Mark]:
        if self.memory_fraction is not None:
            yield Mark(0, MarkKind.FRACTION, self.memory_fraction)
        for entry, conf in self.settings:
            if not 0 <= entry < len(trace):
                raise ConfigError(
                    f"settings of entry {entry}: device {trace.device} has no such entry; expected "
                    f"0 to {len(trace) - 1}"
                )
            if entry:
                yield Mark(entry, MarkKind.SETTINGS, conf)

    def _keeps(self, mark: Mark) -> bool:
        if mark.kind is MarkKind.FRACTION:
            return self.memory_fraction is None
        if mark.kind is MarkKind.SETTINGS:
            return not self.settings
        return mark.kind is not MarkKind.EMPTY_CACHE or self.empties


def is_at_start(mark: Mark) -> bool:
    return mark.kind is MarkKind.FRACTION and mark.entry == 0


def _fraction_at_start(marks: Sequence[Mark]) -> float | None:
    found = None
    for mark in marks:
        if is_at_start(mark):
            assert isinstance(mark.value, float)
            found = mark.value
    return found


@dataclass(frozen=True, eq=False)
class RecordedDevice:
    """Device of a recording, with facts from the file, its provenance and the user.

    release, release_note: modelled PyTorch release, and a sentence with the reason for its choice.
    recorded: recorded setting, or the defaults if the recording has none.
    config: options of `recorded`, as `release` reads them.
    has_settings: False if neither the recording nor a hint contains the option string (conf).
    start: segments before the first entry.
    provenance: origin of the recording; None if it is not noted.
    releases: PyTorch releases that can have written the recording, oldest first.  There is only one
        if the user names it or the recording contains it.
    assumed_memory: bytes of the device from the user, if the recording does not contain them.
    marks: calls of the program that leave no entry, recorded as marks or given by hints.
    is_made: True if the simulated allocator made the recording, and `marks` contains every call.
    is_requests: True if the recording contains only requests, so there is nothing to compare with.
    file_notes: sentences about missing parts of the file and how they were completed.
    is_elsewhere: True to leave out the memory of other processes on the recorded card, for example
        because the replay is for another card.
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
    assumed_memory: int | None = None
    hints: Hints = Hints()
    marks: tuple[Mark, ...] = ()
    is_made: bool = False
    is_requests: bool = False
    file_notes: tuple[str, ...] = ()
    is_elsewhere: bool = False

    def capacity_of(self, plan: Plan) -> int | None:
        """Return the bytes of the device, from file, user or an `oom` entry; None if unknown."""
        return self.named_memory or plan.capacity

    @property
    def recorded_memory(self) -> int:
        return 0 if self.provenance is None else self.provenance.device_memory

    @property
    def collects_at(self) -> float | None:
        """Recorded garbage_collection_threshold, from which the unknown memory limit is inferred.

        None if no threshold is set, or if the memory limit is recorded.
        """
        is_marked = any(mark.kind is MarkKind.FRACTION for mark in self.marks)
        has_limit = is_marked or self.recorded.fraction(self.release) is not None
        threshold = self.config.garbage_collection_threshold
        return threshold if threshold > 0 and not has_limit else None

    def in_force(self, setting: Setting) -> Setting:
        """Return `setting` with the memory fraction that the program sets at its start.

        A what-if setting that already has a memory fraction is returned unchanged.
        """
        at_start = _fraction_at_start(self.marks)
        if setting.call_fraction == at_start or self._sets_limit(setting):
            return setting
        return replace(setting, call_fraction=at_start)

    @property
    def held(self) -> int:
        """Reserved bytes before the first entry."""
        return sum(segment.total_size for segment in self.start)

    @property
    def named_memory(self) -> int | None:
        """Bytes of the device, as recorded or given by the user; None if unknown."""
        return self.recorded_memory or self.assumed_memory

    @property
    def card(self) -> CardMemory | None:
        """Memory of the recorded card when the file was written; None if unknown.

        Also None if `is_elsewhere`: the replay is for another card, or leaves out the memory of
        other processes for another reason.
        """
        return None if self.is_elsewhere else card_memory(self.provenance)

    @property
    def others_memory(self) -> int:
        """Bytes that other processes hold on the card; 0 if they are too few to matter."""
        card = self.card
        return card.others if card is not None and card.is_shared else 0

    @property
    def context_memory(self) -> int:
        """Bytes of the CUDA context and, on the recorded card, of other processes."""
        card = card_memory(self.provenance) if self.is_elsewhere else None
        if card is not None:
            return card.context
        return 0 if self.provenance is None else self.provenance.context_memory

    def context_memory_on(self, device_memory: int | None) -> int:
        """Return the bytes that are in use outside PyTorch on a device of `device_memory` bytes."""
        if self.is_elsewhere and device_memory == self.named_memory and self.provenance is not None:
            return self.provenance.context_memory
        return self.context_memory

    @cached_property
    def addresses(self) -> Addresses:
        """Rule by which what-if replays place segments that the recorded run did not obtain."""
        if self.is_made or self.is_requests:
            return Addresses()
        return read_addresses(self.trace, self.start)

    @property
    def first_base(self) -> int:
        return self.trace.driver_addresses[0]

    @property
    def last_address(self) -> int:
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
    ) -> ReplayAllocator:
        """Return a simulated allocator in the state before the first entry.

        device_memory: bytes of the device; None for an unlimited device.
        base_address: first address to assign; None for `addresses.base`.
        address_policy: "bump", "firstfit" or "driver", in place of `addresses`; None to use
            `addresses`.
        addresses: placement of segments; None for `self.addresses`.
        limit: memory limit in bytes that the program sets by a call; None without a limit.
        start: `Start.KEPT` for an allocator with the recorded segments; `Start.REALLOCATED` for an
            empty one, from which the caller then requests the live blocks.
        host_spill: bytes of host memory that the driver provides when the device is full.
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
        allocator = ReplayAllocator(
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

    def plan_under(self, setting: Setting, plan: Plan) -> Plan:
        """Return `plan`; if `setting` has a memory fraction, without the steps that set one."""
        if not plan.changes or not self._sets_limit(setting):
            return plan
        return replace(plan, steps=plan.steps.without(StepKind.FRACTION))

    def _sets_limit(self, setting: Setting) -> bool:
        return setting.fraction(self.release) is not None and not self.is_recorded(setting)

    def is_recorded(self, setting: Setting) -> bool:
        wanted, own = setting.config(self.release), self.config
        has_call = setting.call_fraction == self.recorded.call_fraction
        return has_call and str(wanted) == str(own)

    def limit_for(self, setting: Setting, device_memory: int | None, plan: Plan) -> int | None:
        """Return the memory limit in bytes for a replay on a device of `device_memory` bytes.

        The inferred limit grows with the device, because the program sets it as a fraction.
        Returns None if no limit was inferred, or if a memory fraction is known.
        """
        limit = plan.limit
        if limit is None or self.in_force(setting).fraction(self.release) is not None:
            return None
        capacity = self.capacity_of(plan)
        if device_memory is None or capacity is None:
            return limit
        return limit * device_memory // capacity

    @cached_property
    def _rounded(self) -> dict[tuple[int, ...], RoundedSizes]:
        return {}

    def _rounded_sizes(self, setting: Setting) -> RoundedSizes:
        config = setting.config(self.release)
        rounding = config.roundup_power2_divisions
        if rounding not in self._rounded:
            self._rounded[rounding] = RoundedSizes(config)
        return self._rounded[rounding]
