"""Results of a replay, as frozen values.

Sizes are in bytes.  Entries are numbered from 0, in the order of the recording, for each device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from allocsim._repr import Shown
from allocsim.recording import CardMemory
from allocsim.simulation.timeline import Timeline
from allocsim.simulation.what_if import StartPeaks
from allocsim.units import format_size

DriverCalls = tuple[tuple[str, int, int], ...]
"""Driver calls of a replay: (name, bytes, number of calls) for each name and size."""


def driver_calls_of(calls: Mapping[tuple[str, int], int]) -> DriverCalls:
    return tuple((call, size, number) for (call, size), number in sorted(calls.items()))


@dataclass(frozen=True, slots=True)
class SimulatedOom:
    """Out-of-memory error of the simulated device.

    requested_bytes: size before rounding; None if the recording has only the rounded size.
    rounded_bytes: size after rounding.
    tried_bytes: size after "Tried to allocate" in the error message; 0 if it gives none.
    is_recorded: True if the recording has an `oom` entry for this request too.
    total_bytes, free_bytes: memory of the device after the error.
    allocated_bytes, reserved_bytes: memory of PyTorch after the error.
    limit_bytes: memory limit set by a fraction or a call; None without a limit.
    """

    entry: int
    requested_bytes: int | None
    rounded_bytes: int
    tried_bytes: int
    message: str
    is_recorded: bool
    stream: int
    total_bytes: int
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    limit_bytes: int | None

    @property
    def needed_bytes(self) -> int:
        """Bytes of the smallest device that would have served this request in the same state."""
        return self.total_bytes - self.free_bytes + max(self.tried_bytes, self.rounded_bytes)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """First difference between a recording and its replay.

    entry: number of the entry; None if all entries are equal and the final segments differ.
    expected, got: description of the entry or segment in the recording and in the replay.
    """

    entry: int | None
    expected: str
    got: str

    def __str__(self) -> str:
        where = f"entry {self.entry}" if self.entry is not None else "the final segments"
        return f"{where}: recorded {self.expected}, replayed {self.got}"


@dataclass(frozen=True, slots=True)
class Parting:
    """First difference of a recording from its replay under the recorded settings (the baseline).

    entry: first entry that differs; None if only the final segments differ.
    """

    device: int
    entry: int | None

    def is_before(self, entry: int) -> bool:
        return self.entry is not None and self.entry <= entry

    def __str__(self) -> str:
        if self.entry is None:
            where = "ends with other segments than the recording"
        else:
            where = f"differs from the recorded run from entry {self.entry:,} on"
        return (
            f"device {self.device}: the replay under the recorded settings {where}; results that "
            "depend on it are not proved"
        )


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Agreement of a replay under the recorded settings with the recording, as numbers.

    allocations, segments: number of recorded `alloc` entries, and of final segments.
    addresses_matched: number of recorded `alloc` entries with the same address in the replay.
    segments_matched: number of final segments with the same blocks in the replay.
    entries: number of compared entries.
    entries_matched: number of equal entries before the first difference.
    """

    allocations: int
    addresses_matched: int
    segments: int
    segments_matched: int
    entries: int
    entries_matched: int
    first_mismatch: Mismatch | None

    @property
    def is_compared(self) -> bool:
        return self.entries > 0

    @property
    def is_exact(self) -> bool:
        return self.first_mismatch is None

    def parting_of(self, device: int) -> Parting | None:
        found = self.first_mismatch
        return None if found is None else Parting(device, found.entry)


@dataclass(frozen=True, slots=True)
class PeakState:
    """Memory when reserved memory first reached its peak, in bytes.

    entry: entry of the request that reached the peak; -1 before the first step.
    inactive_split: free bytes in segments that also have active blocks.
    """

    entry: int
    reserved: int
    allocated: int
    active: int
    inactive_split: int

    @property
    def idle(self) -> int:
        return self.reserved - self.active

    @property
    def whole_segments(self) -> int:
        """Idle bytes in segments without active blocks, which empty_cache would release."""
        return self.idle - self.inactive_split


@dataclass(frozen=True, slots=True)
class Spill:
    """Use of host memory by a device whose driver provides it when the device is full.

    lent_bytes: host memory that the driver can provide.
    most_bytes, end_bytes: host memory in use at most, and at the end.
    began: entry of the first request that used host memory; None if no request did.
    worst: entry at which `most_bytes` was reached first; -1 without such an entry.
    """

    lent_bytes: int
    most_bytes: int
    began: int | None
    worst: int
    end_bytes: int


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """Range of the peaks that a replay under other settings can have on one device, with reasons.

    peaks: lowest and highest peak reserved bytes.
    notes: sentences on the facts that the recording does not show.
    """

    peaks: tuple[int, int]
    notes: tuple[str, ...]


_T = TypeVar("_T")


class Deferred(Generic[_T]):
    """Value that the function `find` computes at the first call of this object.

    Pickling computes it too, so that another process receives the value and not the recording.
    """

    def __init__(self, find: Callable[[], _T]) -> None:
        self._find = find

    def __call__(self) -> _T:
        value = self._find()
        self._find = partial(_same, value)  # releases the recording
        return value

    def __reduce__(self) -> tuple[type[Deferred[_T]], tuple[partial[_T]]]:
        return Deferred, (partial(_same, self()),)


def _same(value: _T) -> _T:
    return value


_NOTHING = Deferred(partial(_same, None))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeviceRun(Shown):
    """Results of the replay of one device, under the recorded settings or under others (a what-if).

    device_memory: bytes of the device; None if unknown, so that the replay had no limit.
    peak_device_bytes: peak memory of the device, including the CUDA context and rounding to pages.
    stats: flat dict of torch.cuda.memory_stats() at the end.
    timeline: memory after each step.
    peak: memory at the first peak of reserved memory.
    fidelity: agreement with the recording; None for a what-if.
    inferred: sentences on inferred facts, without the notes of `left_open`.
    stopped_at: entry of an out-of-memory error that the recording does not contain and that would
        have ended the program; None without such an error.
    find_parting: function that computes `parting`; its first call makes a replay.
    peaks: peaks of a what-if that starts with the recorded segments or empty (`Start`); None if the
        recording does not start mid-run.
    find_left_open: function that computes `left_open`; its first call makes replays.
    spill: use of host memory; None if the driver provides none.
    refused_below: bytes; every smaller device has the same first out-of-memory error, because it
        refuses the same driver calls.  None without an error.
    driver_calls: (name, bytes, number) of the driver calls of each name and size.
    """

    device: int
    entries: int
    device_memory: int | None
    peak_device_bytes: int
    stats: dict[str, int]
    timeline: Timeline
    peak: PeakState
    ooms: tuple[SimulatedOom, ...]
    fidelity: Fidelity | None
    inferred: tuple[str, ...]
    stopped_at: int | None
    find_parting: Deferred[Parting | None] = field(default=_NOTHING, compare=False)
    peaks: StartPeaks | None = None
    find_left_open: Deferred[LeftOpen | None] = field(default=_NOTHING, compare=False)
    spill: Spill | None = None
    refused_below: int | None = None
    driver_calls: DriverCalls = ()

    @property
    def parting(self) -> Parting | None:
        """First difference of the baseline from the recording; None if the baseline is exact.

        The baseline is the replay under the recorded settings.  For a what-if, the first access
        runs it, which takes as long as the what-if.  All what-ifs of a recording share that replay.
        `replaying.with_proof` runs it explicitly.
        """
        return self.find_parting()

    @property
    def left_open(self) -> LeftOpen | None:
        """Range of the what-if's peak; None if the recording determines the peak.

        The first use makes several replays, each as long as the what-if.  `replaying.with_range`
        makes them explicitly.
        """
        return self.find_left_open()

    @property
    def peaks_left_open(self) -> tuple[int, int] | None:
        """Lowest and highest peak reserved bytes of `left_open`; None without a range."""
        found = self.left_open
        return None if found is None else found.peaks

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on inferred facts, and on facts that the recording does not show."""
        found = self.left_open
        return self.inferred if found is None else (*self.inferred, *found.notes)

    @property
    def peak_range(self) -> tuple[int, int]:
        """Lowest and highest peak reserved bytes that the recording allows for this replay.

        The peaks are of this replay, of the replays from both start states, if the recording starts
        mid-run (`peaks`), and of other programs with the same recording (`left_open`).
        """
        return self.peak_range_with(self.peaks_left_open)

    def peak_range_with(self, peaks: tuple[int, int] | None) -> tuple[int, int]:
        """Return the lowest and highest peak of this replay, of `self.peaks` and of `peaks`.

        peaks: lowest and highest peak reserved bytes of other replays; None if there are none.
        """
        started = () if self.peaks is None else (self.peaks.kept, self.peaks.anew)
        ways = (self.peak_reserved_bytes, *(peaks or ()), *started)
        known = [peak for peak in ways if peak is not None]
        return min(known), max(known)

    @property
    def peak_allocated_bytes(self) -> int:
        """Peak allocated bytes, as torch.cuda.max_memory_allocated()."""
        return self.stats["allocated_bytes.all.peak"]

    @property
    def peak_reserved_bytes(self) -> int:
        """Peak reserved bytes, as torch.cuda.max_memory_reserved()."""
        return self.stats["reserved_bytes.all.peak"]

    def headline(self) -> str:
        peak = f"{format_size(self.peak_reserved_bytes)} reserved at the peak"
        return f"device {self.device}: {self._proof()}; {peak}; {self._errors()}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        memory = self.device_memory
        yield "proof", self._proof()
        yield "peak reserved", format_size(self.peak_reserved_bytes)
        yield "peak allocated", format_size(self.peak_allocated_bytes)
        yield "device memory", "unknown" if memory is None else format_size(memory)
        yield "retries", f"{self.stats['num_alloc_retries']:,}"
        yield "out of memory", self._errors()

    def _proof(self) -> str:
        found = self.fidelity
        if found is None:
            unproved = "" if self.parting is None else ", not proved"
            return f"under other settings than recorded{unproved}"
        return f"{found.entries_matched:,} of {found.entries:,} entries as recorded"

    def _errors(self) -> str:
        if not self.ooms:
            return "no out-of-memory error"
        if len(self.ooms) == 1:
            return f"1 out-of-memory error, at entry {self.ooms[0].entry:,}"
        last = f"the last at entry {self.ooms[-1].entry:,}"
        return f"{len(self.ooms):,} out-of-memory errors, {last}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Run(Shown):
    """Results of a replay of all devices of a recording, or of one requested device.

    torch_version: modelled PyTorch release.
    device_memory: bytes of the first device whose size is known; None if no size is known.
    notes: sentences on the recording as a whole.
    releases: PyTorch releases that can have written the recording, oldest first.
    card: use of the recorded card's memory; None if unknown.
    """

    path: str
    conf: str
    torch_version: str
    device_memory: int | None
    devices: tuple[DeviceRun, ...]
    notes: tuple[str, ...]
    releases: tuple[str, ...] = ()
    card: CardMemory | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences to show first: other processes on the card, differences from the recording."""
        shared = (self.card.sentence,) if self.card is not None and self.card.is_shared else ()
        differ = (str(each.parting) for each in self.devices if each.parting is not None)
        return (*shared, *differ)

    @property
    def named_notes(self) -> tuple[str, ...]:
        """Notes of the recording and its devices; with several devices, a note names its device."""
        name = "device {}: " if len(self.devices) > 1 else ""
        own = (name.format(each.device) + note for each in self.devices for note in each.notes)
        return (*self.notes, *own)

    def headline(self) -> str:
        name, conf = self.path.rsplit("/", 1)[-1], self.conf or "defaults"
        devices = "; ".join(each.headline() for each in self.devices)
        return f"{name}, {conf}, PyTorch {self.torch_version}: {devices}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        yield "settings", self.conf or "defaults"
        yield "PyTorch", self.torch_version
        for each in self.devices:
            of = f"device {each.device}: " if len(self.devices) > 1 else ""
            yield from ((f"{of}{name}", value) for name, value in each.figures_shown())
