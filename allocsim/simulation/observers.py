"""Observers of a running replay: timeline, peak, host memory, progress.

An observer reads the allocator only while it is called, and does not change it.  It must copy what
it keeps, because blocks change later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import int_column
from allocsim.core import Block, Column, Marked, ReplayAllocator, TraceEntry
from allocsim.simulation.result import PeakState, SimulatedOom, Spill, Timeline

__all__ = ["GiveUpError", "Observer", "PeakWatch", "Progress", "SpillWatch", "TimelineBuilder"]

Progress = Callable[[int, int], None]
"""Function called with (entries done, entries in total)."""


class GiveUpError(Exception):
    """Raised by an observer to end the replay."""


class Observer:
    """Base class with a method for each kind of event of a replay.

    keeps_history: True to receive `history`, which the allocator then records.
    """

    keeps_history = False

    def began(self, allocator: ReplayAllocator) -> None:
        """Handle the start of a replay.  allocator: its state before the first step."""

    def history(self, entries: Sequence[TraceEntry]) -> None:
        """Handle the new entries since the last call; only with `keeps_history`."""

    def out_of_memory(
        self, allocator: ReplayAllocator, oom: SimulatedOom, blocks: Mapping[int, Block]
    ) -> None:
        """Handle a failed request.

        blocks: allocated and pending blocks, by recorded address.
        """

    def grew(self, allocator: ReplayAllocator, entry: int) -> None:
        """Handle a request at `entry` that succeeded and changed reserved memory."""


class TimelineBuilder:
    """Builder of the timeline, which stores changes.

    moved: change of allocated bytes at each step since the last `keep`.  Reserved memory changes
        rarely, so only its changes are stored, with the number of the step.
    """

    def __init__(self, allocated: int, reserved: int) -> None:
        self.moved: list[int] = Column()
        self._kept: list[NDArray[np.int64]] = []
        self._n_kept = 0
        self._allocated = allocated
        self._reserved = [(0, reserved)]

    def __len__(self) -> int:
        """Return the number of steps so far."""
        return self._n_kept + len(self.moved)

    def keep(self) -> None:
        """Store the changes since the last call as an array."""
        self._kept.append(int_column(self.moved))
        self._n_kept += len(self.moved)
        self.moved.clear()

    def reserve(self, reserved: int) -> None:
        """Note the reserved bytes after the last step."""
        if reserved != self._reserved[-1][1]:
            self._reserved.append((len(self) - 1, reserved))

    def build(self, entry: NDArray[np.int64]) -> Timeline:
        """Return the timeline.  entry: entry of each step."""
        self.keep()
        moved = np.concatenate(self._kept)
        steps, values = zip(*self._reserved, strict=True)
        lengths = np.diff([*steps, len(moved)])
        return Timeline(
            entry=entry[: len(moved)],
            allocated=self._allocated + np.cumsum(moved),
            reserved=np.repeat(np.array(values, dtype=np.int64), lengths),
        )


class PeakWatch(Observer):
    """Observer that keeps the state at the first peak of reserved memory.

    device_bytes: highest memory of the device, in bytes.
    It uses the allocator's only mark, so an allocator can have only one such observer.
    """

    def __init__(self) -> None:
        # Plain numbers: only the last peak is read, so no object is created for each.
        self._reserved = self._entry = -1
        self._allocator: ReplayAllocator | None = None
        self.device_bytes = 0

    def began(self, allocator: ReplayAllocator) -> None:
        self._allocator = allocator
        self.grew(allocator, -1)

    def grew(self, allocator: ReplayAllocator, entry: int) -> None:
        self.device_bytes = max(self.device_bytes, allocator.device.held)
        reserved = allocator.reserved_bytes
        if reserved > self._reserved:  # not >=: the first of equal peaks counts
            self._reserved, self._entry = reserved, entry
            allocator.mark()

    @property
    def state(self) -> PeakState:
        """State at the peak so far."""
        marked = Marked() if self._allocator is None else self._allocator.marked()
        return PeakState(
            entry=self._entry,
            reserved=self._reserved,
            allocated=marked.allocated,
            active=marked.active,
            inactive_split=marked.inactive_split,
        )


class SpillWatch(Observer):
    """Observer that measures the use of host memory by the device."""

    def __init__(self) -> None:
        self._began: int | None = None
        self._worst = -1
        self._most = 0

    def began(self, allocator: ReplayAllocator) -> None:
        self.grew(allocator, -1)

    def grew(self, allocator: ReplayAllocator, entry: int) -> None:
        spilled = allocator.device.spilled
        if spilled and self._began is None:
            self._began = entry
        if spilled > self._most:
            self._most, self._worst = spilled, entry

    def result(self, lent: int, at_end: int) -> Spill:
        """Return the result.  lent: bytes available; at_end: bytes in use at the end."""
        return Spill(lent, self._most, self._began, self._worst, at_end)
