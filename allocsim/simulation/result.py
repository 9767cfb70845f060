"""Results of a replay, as frozen values.

`DeviceRun.parting` and `DeviceRun.left_open` of a what-if are computed on first use.  Sizes are
bytes.  Entries are numbered from 0, in the recording's order for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allocsim._repr import Shown
from allocsim.recording import CardMemory
from allocsim.simulation.initial_state import StartPeaks
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
    """Out-of-memory error of the simulated device.

    requested_bytes: size before rounding; None if the recording has only the rounded size.
    tried_bytes: size that the message gives.
    is_recorded: the recording has an `oom` entry there too.
    total_bytes, free_bytes: memory of the device after the error.
    allocated_bytes, reserved_bytes: memory of PyTorch after the error.
    limit_bytes: limit by a memory fraction; None without one.
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
        """Size of the device that would have served the request in the same state."""
        return self.total_bytes - self.free_bytes + max(self.tried_bytes, self.rounded_bytes)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """First difference of recording and replay.  entry: None for the final segments."""

    entry: int | None
    expected: str
    got: str

    def __str__(self) -> str:
        where = f"entry {self.entry}" if self.entry is not None else "the final segments"
        return f"{where}: recorded {self.expected}, replayed {self.got}"


@dataclass(frozen=True, slots=True)
class Parting:
    """First divergence of a device's replay under the recorded settings from the recording.

    entry: first entry that differs; None if only the final segments differ.
    """

    device: int
    entry: int | None

    def is_before(self, entry: int) -> bool:
        """Return True if the divergence is at or before `entry`."""
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
    """Agreement of a replay under the recorded settings with the recording.

    addresses_matched: number of `alloc` entries with the same address in the replay.
    segments_matched: number of final segments with the same blocks in the replay.
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
        """True if entries were compared; a recording of requests only has none to compare."""
        return self.entries > 0

    @property
    def is_exact(self) -> bool:
        """True if nothing differs."""
        return self.first_mismatch is None

    def parting_of(self, device: int) -> Parting | None:
        """Return the first divergence for `device`, or None if the replay is exact."""
        found = self.first_mismatch
        return None if found is None else Parting(device, found.entry)


@dataclass(frozen=True, slots=True)
class Moment:
    """Memory after one step."""

    entry: int
    allocated: int
    reserved: int

    @property
    def idle(self) -> int:
        """Reserved bytes that are not allocated, including blocks that wait for other streams."""
        return self.reserved - self.allocated


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Memory after each step: row i is the state after entry `entry[i]`."""

    entry: NDArray[np.int64]
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]

    @property
    def busiest(self) -> Moment | None:
        """First moment of peak allocated memory; None for an empty timeline."""
        return None if not len(self.entry) else self._moment(int(np.argmax(self.allocated)))

    @property
    def idlest(self) -> Moment | None:
        """First moment of peak idle memory; None for an empty timeline."""
        if not len(self.entry):
            return None
        return self._moment(int(np.argmax(self.reserved - self.allocated)))

    def _moment(self, row: int) -> Moment:
        return Moment(int(self.entry[row]), int(self.allocated[row]), int(self.reserved[row]))


@dataclass(frozen=True, slots=True)
class PeakState:
    """State at the first peak of reserved memory.

    inactive_split: free bytes in segments that also have active blocks.
    """

    entry: int
    reserved: int
    allocated: int
    active: int
    inactive_split: int

    @property
    def idle(self) -> int:
        """Reserved bytes outside active blocks."""
        return self.reserved - self.active

    @property
    def whole_segments(self) -> int:
        """Idle bytes in segments without active blocks, which could be released."""
        return self.idle - self.inactive_split


@dataclass(frozen=True, slots=True)
class Spill:
    """Use of host memory by a device whose driver lends it.

    lent_bytes: available host memory.
    most_bytes: peak use.
    began: entry of the first request that used it; None if none did.
    worst: entry after which the peak was reached first.
    end_bytes: use at the end.
    """

    lent_bytes: int
    most_bytes: int
    began: int | None
    worst: int
    end_bytes: int


def _nowhere() -> None:
    """Report no divergence."""


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """Range of a what-if, because the recording does not show everything.

    peaks: lowest and highest peak reserved bytes.
    notes: sentences on what the recording does not show.
    """

    peaks: tuple[int, int]
    notes: tuple[str, ...]


def _nothing_open() -> None:
    """Report no range."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeviceRun(Shown):
    """Replay of one device.

    device_memory: bytes of the device; None if unknown, and the replay was unlimited.
    peak_device_bytes: peak memory of the device, including the context and page rounding.
    stats: flat dict of torch.cuda.memory_stats() at the end.
    inferred: sentences on what was inferred, without those of `left_open`.
    stopped_at: entry of an out-of-memory error that the recording does not have; it would have
        ended the program.
    find_parting: function that computes `parting`.
    peaks: peaks by start state, for a what-if of a recording that starts mid-run; else None.
    find_left_open: function that computes `left_open`.
    spill: use of host memory; None if the driver lends none.
    refused_below: bytes of the smallest device that would have served a driver call refused up to
        the first error; every smaller device fails there too.  None without an error.
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
        """First divergence of the baseline from the recording; None if the baseline is exact.

        For a what-if, the first use runs the baseline, which takes as long as the what-if.  It runs
        once for all what-ifs of a recording.
        """
        return self.find_parting()

    @property
    def left_open(self) -> LeftOpen | None:
        """The what-if range; None if nothing that the recording does not show changes the peak.

        The first use runs several replays, each as long as the what-if.
        """
        return self.find_left_open()

    @property
    def peaks_left_open(self) -> tuple[int, int] | None:
        """Lowest and highest peak reserved bytes of `left_open`."""
        found = self.left_open
        return None if found is None else found.peaks

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what was inferred and what the recording does not show."""
        found = self.left_open
        return self.inferred if found is None else (*self.inferred, *found.notes)

    @property
    def peak_range(self) -> tuple[int, int]:
        """Lowest and highest peak reserved bytes of all possible runs."""
        return self.peak_range_with(self.peaks_left_open)

    def peak_range_with(self, peaks: tuple[int, int] | None) -> tuple[int, int]:
        """Return `peak_range` for a given `peaks_left_open`."""
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
        """Return one line with the proof, the peak and the errors."""
        peak = f"{format_size(self.peak_reserved_bytes)} reserved at the peak"
        return f"device {self.device}: {self._proof()}; {peak}; {self._errors()}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the value of each figure."""
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
    """Replay of every device of a recording.

    device_memory: bytes of the first device whose size is known; None if none is.
    releases: releases that can have written the recording, oldest first.
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
        """Sentences to show first: other processes on the card, and inexact baselines."""
        shared = (self.card.sentence,) if self.card is not None and self.card.is_shared else ()
        differ = (str(each.parting) for each in self.devices if each.parting is not None)
        return (*shared, *differ)

    @property
    def named_notes(self) -> tuple[str, ...]:
        """All notes; with several devices, each names its device."""
        name = "device {}: " if len(self.devices) > 1 else ""
        own = (name.format(each.device) + note for each in self.devices for note in each.notes)
        return (*self.notes, *own)

    def headline(self) -> str:
        """Return one line with file, settings, release and the result of each device."""
        name, conf = self.path.rsplit("/", 1)[-1], self.conf or "defaults"
        devices = "; ".join(each.headline() for each in self.devices)
        return f"{name}, {conf}, PyTorch {self.torch_version}: {devices}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the value of each figure of all devices."""
        yield "settings", self.conf or "defaults"
        yield "PyTorch", self.torch_version
        for each in self.devices:
            of = f"device {each.device}: " if len(self.devices) > 1 else ""
            yield from ((f"{of}{name}", value) for name, value in each.figures_shown())
