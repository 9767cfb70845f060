"""What a replay yields, as frozen values; nothing here computes, but `DeviceRun.parting` and
`DeviceRun.left_open` of a what-if, which are found out when they are asked for.

Sizes are bytes, entries are numbered from 0 in the recording's order for that device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allocsim.display import Shown
from allocsim.engine.start import StartPeaks
from allocsim.trace import CardMemory
from allocsim.units import format_size

__all__ = [
    "DeviceRun", "DriverCalls", "Fidelity", "LeftOpen", "Mismatch", "Moment", "Parting",
    "PeakState", "Run", "SimulatedOom", "Timeline", "driver_calls_of",
]  # fmt: skip

DriverCalls = tuple[tuple[str, int, int], ...]
"""Driver calls of a replay, as (call, bytes, number of calls).  See `Device.calls`."""


def driver_calls_of(calls: Mapping[tuple[str, int], int]) -> DriverCalls:
    """Return `Device.calls` as plain numbers, in order of call and size."""
    return tuple((call, size, number) for (call, size), number in sorted(calls.items()))


@dataclass(frozen=True, slots=True)
class SimulatedOom:
    """An out-of-memory error of the simulated device.

    requested_bytes: the raw request; None where the recording has only the rounded size.
    tried_bytes: what the text prints.  message: PyTorch's own words.
    is_recorded: the recording has an `oom` entry there as well.  stream: of the request.
    total_bytes, free_bytes: of the device, and allocated_bytes, reserved_bytes: of PyTorch, as
    the error left them.  limit_bytes: what a memory fraction allows, None without one.
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
        """The device that would have let the request through, all else being as it was."""
        return self.total_bytes - self.free_bytes + max(self.tried_bytes, self.rounded_bytes)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first place where recording and replay part.  entry: None for the final segments."""

    entry: int | None
    expected: str
    got: str

    def __str__(self) -> str:
        where = f"entry {self.entry}" if self.entry is not None else "the final segments"
        return f"{where}: recorded {self.expected}, replayed {self.got}"


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a device's replay under the recorded settings stops being the recorded run.

    entry: the first that differs; None where only the final segments do.
    """

    device: int
    entry: int | None

    def is_before(self, entry: int) -> bool:
        """Whether what happens at `entry` rests on what is not the recorded run."""
        return self.entry is not None and self.entry <= entry

    def __str__(self) -> str:
        if self.entry is None:
            where = "ends with other segments than the recording"
        else:
            where = f"is not the recorded run from entry {self.entry:,} on"
        return (
            f"device {self.device}: the replay under the recorded settings {where}; what rests on "
            "it is not proved"
        )


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How far a replay under the recorded settings equals the recording.

    allocations, addresses_matched: `alloc` entries, and those whose address was predicted.
    segments, segments_matched: segments of the final state, and those predicted with every
    block.  entries, entries_matched: entries of every kind, and those equal in order up to the
    first that is not.
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
        """Whether there was anything to compare: a recording of requests alone has nothing."""
        return self.entries > 0

    @property
    def is_exact(self) -> bool:
        """Whether nothing differs."""
        return self.first_mismatch is None

    def parting_of(self, device: int) -> Parting | None:
        """Where the replay left the recording of `device`; None: nowhere."""
        found = self.first_mismatch
        return None if found is None else Parting(device, found.entry)


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes after one driving entry."""

    entry: int
    allocated: int
    reserved: int

    @property
    def idle(self) -> int:
        """Reserved and not allocated; what waits for other streams counts as idle."""
        return self.reserved - self.allocated


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Memory after each driving entry: row i is the state after entry `entry[i]`."""

    entry: NDArray[np.int64]
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]

    @property
    def busiest(self) -> Moment | None:
        """The first moment at which most was allocated; None of an empty timeline."""
        return None if not len(self.entry) else self._moment(int(np.argmax(self.allocated)))

    @property
    def idlest(self) -> Moment | None:
        """The first moment at which most was reserved and not allocated; None of an empty one."""
        if not len(self.entry):
            return None
        return self._moment(int(np.argmax(self.reserved - self.allocated)))

    def _moment(self, row: int) -> Moment:
        return Moment(int(self.entry[row]), int(self.allocated[row]), int(self.reserved[row]))


@dataclass(frozen=True, slots=True)
class PeakState:
    """The moment when reserved memory was highest for the first time.

    inactive_split: free bytes in segments that also hold active blocks.
    """

    entry: int
    reserved: int
    allocated: int
    active: int
    inactive_split: int

    @property
    def idle(self) -> int:
        """Reserved and in no active block."""
        return self.reserved - self.active

    @property
    def whole_segments(self) -> int:
        """Idle bytes in segments without any active block: the driver could have them back."""
        return self.idle - self.inactive_split


@dataclass(frozen=True, slots=True)
class Spill:
    """What lay in the host's memory, whose driver lends it.

    lent_bytes: what there was.  most_bytes: the most that was used, for the first time after entry
    `worst`.  began: the entry whose request was the first beyond the card, None if none was.
    end_bytes: what is there still at the end.
    """

    lent_bytes: int
    most_bytes: int
    began: int | None
    worst: int
    end_bytes: int


def _nowhere() -> None:
    """Finds that a replay leaves its recording nowhere."""


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """What a what-if may come to by what its recording leaves open.

    peaks: the least and the most reserved bytes at the peak.  notes: what is open, in sentences.
    """

    peaks: tuple[int, int]
    notes: tuple[str, ...]


def _nothing_open() -> None:
    """Finds that a recording leaves nothing open."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeviceRun(Shown):
    """One device's replay.

    device_memory: bytes of this device, None where it is unknown and the replay had no limit.
    peak_device_bytes: the most that it had to hold, the context and odd ends of pages included.
    stats: the flat dict of torch.cuda.memory_stats() at the end.  inferred: what had to be
    inferred, in sentences, but for what is left open.  stopped_at: the entry of an out-of-memory
    error that the recording does not have; the program would have ended there.
    find_parting: finds `parting`.
    peaks: what a what-if of a recording that starts mid-run comes to by how it begins; None for
    every other replay.  find_left_open: finds `left_open`.
    spill: of a device whose driver lends host memory, None of one that refuses.
    refused_below: bytes of the smallest device that would have answered one of the calls that the
    driver refused up to the first error: on any smaller one it fails there as well; None without.
    driver_calls: see `DriverCalls`.
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
    find_parting: Callable[[], Parting | None] = field(default=_nowhere, compare=False)
    peaks: StartPeaks | None = None
    find_left_open: Callable[[], LeftOpen | None] = field(default=_nothing_open, compare=False)
    spill: Spill | None = None
    refused_below: int | None = None
    driver_calls: DriverCalls = ()

    @property
    def parting(self) -> Parting | None:
        """Where the replay under the recorded settings, which this one is or is compared with,
        leaves the recording; None: nowhere.

        Of a what-if, the first to ask has that replay made, which takes as long as the what-if;
        it is made once for all what-ifs of a recording.
        """
        return self.find_parting()

    @property
    def left_open(self) -> LeftOpen | None:
        """What a what-if may come to by what its recording leaves open; None where it leaves
        nothing, or nothing that changes the peak.

        The first to ask has several replays made, each of which takes as long as the what-if.
        """
        return self.find_left_open()

    @property
    def peaks_left_open(self) -> tuple[int, int] | None:
        """The least and the most reserved bytes at the peak of `left_open`."""
        found = self.left_open
        return None if found is None else found.peaks

    @property
    def notes(self) -> tuple[str, ...]:
        """What had to be inferred, and what is left open, in sentences."""
        found = self.left_open
        return self.inferred if found is None else (*self.inferred, *found.notes)

    @property
    def peak_range(self) -> tuple[int, int]:
        """The least and the most reserved bytes at the peak, of all ways that it may have gone."""
        return self.peak_range_with(self.peaks_left_open)

    def peak_range_with(self, peaks: tuple[int, int] | None) -> tuple[int, int]:
        """Return `peak_range`, if `peaks` are those of what is left open."""
        started = () if self.peaks is None else (self.peaks.kept, self.peaks.anew)
        ways = (self.peak_reserved_bytes, *(peaks or ()), *started)
        known = [peak for peak in ways if peak is not None]
        return min(known), max(known)

    @property
    def peak_allocated_bytes(self) -> int:
        """torch.cuda.max_memory_allocated()."""
        return self.stats["allocated_bytes.all.peak"]

    @property
    def peak_reserved_bytes(self) -> int:
        """torch.cuda.max_memory_reserved()."""
        return self.stats["reserved_bytes.all.peak"]

    def headline(self) -> str:
        """How far it is the recorded run, the peak, and the errors."""
        peak = f"{format_size(self.peak_reserved_bytes)} reserved at the peak"
        return f"device {self.device}: {self._proof()}; {peak}; {self._errors()}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Proof, peaks, device memory, retries, errors."""
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
            unproved = "" if self.parting is None else ", and nothing is proved"
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
    """A replay of every device of a recording.

    device_memory: that of the first device for which it is known, None if for none.
    releases: those that can have written the recording, as far as it tells, the oldest first.
    card: who held the memory of the recorded card; None where the recording does not tell.
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
        """The sentences that come first: other processes on the card, replays that differ."""
        shared = (self.card.sentence,) if self.card is not None and self.card.is_shared else ()
        differ = (str(each.parting) for each in self.devices if each.parting is not None)
        return (*shared, *differ)

    @property
    def named_notes(self) -> tuple[str, ...]:
        """Every note; of several devices each with the device that it is about."""
        name = "device {}: " if len(self.devices) > 1 else ""
        own = (name.format(each.device) + note for each in self.devices for note in each.notes)
        return (*self.notes, *own)

    def headline(self) -> str:
        """Of what, under which settings, and what each device came to."""
        name, conf = self.path.rsplit("/", 1)[-1], self.conf or "defaults"
        devices = "; ".join(each.headline() for each in self.devices)
        return f"{name}, {conf}, PyTorch {self.torch_version}: {devices}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """The figures of each device."""
        yield "settings", self.conf or "defaults"
        yield "PyTorch", self.torch_version
        for each in self.devices:
            of = f"device {each.device}: " if len(self.devices) > 1 else ""
            yield from ((f"{of}{name}", value) for name, value in each.figures_shown())
