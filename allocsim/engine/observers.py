"""What looks on while a replay runs: the timeline, the peak, a progress bar, invariants.

Rule: an observer reads the allocator at the moment it is called and changes nothing; what it
wants to keep it copies, since the blocks go on living.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import int_column
from allocsim.core import Block, CachingAllocator, Column, Marked, TraceEntry
from allocsim.engine.result import PeakState, SimulatedOom, Spill, Timeline

__all__ = ["GiveUpError", "Observer", "PeakWatch", "Progress", "SpillWatch", "TimelineBuilder"]

Progress = Callable[[int, int], None]
"""Called with (entries done, entries in all)."""


class GiveUpError(Exception):
    """Raised by an observer that has seen enough: the drive ends there."""


class Observer:
    """Sees the live allocator at moments that matter; a subclass says which it looks at.

    keeps_history: whether it wants `history`, which the allocator then keeps.
    """

    keeps_history = False

    def began(self, allocator: CachingAllocator) -> None:
        """The first step is about to be driven; what was there before is in place."""

    def history(self, entries: Sequence[TraceEntry]) -> None:
        """What `allocator` did since the last call, in its order; only with `keeps_history`."""

    def out_of_memory(
        self, allocator: CachingAllocator, oom: SimulatedOom, blocks: Mapping[int, Block]
    ) -> None:
        """A request failed and left `allocator` as it is.

        blocks: by recorded address, those that the recording has handed out and not freed.
        """

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        """The request of `entry` was answered, and reserved memory is no longer what it was."""


class TimelineBuilder:
    """Allocated and reserved bytes after each step, kept as what moved.

    moved: the change of allocated bytes, one for each step since `keep` was called.  Reserved
    memory changes seldom, so only its changes are kept, with the number of the step.
    """

    def __init__(self, allocated: int, reserved: int) -> None:
        self.moved: list[int] = Column()
        self._kept: list[NDArray[np.int64]] = []
        self._n_kept = 0
        self._allocated = allocated
        self._reserved = [(0, reserved)]

    def __len__(self) -> int:
        """Steps written down."""
        return self._n_kept + len(self.moved)

    def keep(self) -> None:
        """Put what moved since the last time into a column."""
        self._kept.append(int_column(self.moved))
        self._n_kept += len(self.moved)
        self.moved.clear()

    def reserve(self, reserved: int) -> None:
        """The step just written down left `reserved` bytes held from the driver."""
        if reserved != self._reserved[-1][1]:
            self._reserved.append((len(self) - 1, reserved))

    def build(self, entry: NDArray[np.int64]) -> Timeline:
        """The columns, given the entry of each step."""
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
    """The state at the first moment of the highest reserved memory, and the most the device held.

    It marks the allocator at each new high, so one watch an allocator, and no other marks.
    """

    def __init__(self) -> None:
        # Numbers, because an object for each growth would be seen by nobody but the last.
        self._reserved = self._entry = -1
        self._allocator: CachingAllocator | None = None
        self.device_bytes = 0

    def began(self, allocator: CachingAllocator) -> None:
        """See `Observer`."""
        self._allocator = allocator
        self.grew(allocator, -1)

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        """See `Observer`."""
        self.device_bytes = max(self.device_bytes, allocator.device.held)
        reserved = allocator.reserved_bytes
        if reserved > self._reserved:
            self._reserved, self._entry = reserved, entry
            allocator.mark()

    @property
    def state(self) -> PeakState:
        """At the highest so far."""
        marked = Marked() if self._allocator is None else self._allocator.marked()
        return PeakState(
            entry=self._entry,
            reserved=self._reserved,
            allocated=marked.allocated,
            active=marked.active,
            inactive_split=marked.inactive_split,
        )


class SpillWatch(Observer):
    """How much of the host's memory the device used, and when."""

    def __init__(self) -> None:
        self._began: int | None = None
        self._worst = -1
        self._most = 0

    def began(self, allocator: CachingAllocator) -> None:
        """See `Observer`."""
        self.grew(allocator, -1)

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        """See `Observer`."""
        spilled = allocator.device.spilled
        if spilled and self._began is None:
            self._began = entry
        if spilled > self._most:
            self._most, self._worst = spilled, entry

    def result(self, lent: int, at_end: int) -> Spill:
        """What it was, of `lent` bytes; at_end: what is there still."""
        return Spill(lent, self._most, self._began, self._worst, at_end)
