"""What looks on while a replay runs: the timeline, the peak, a progress bar, invariants.

Rule: the loop of a replay calls `after_step` once for each driving entry and `pause` every few
thousand; no observer changes the allocator.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from allocsim.core import CachingAllocator
from allocsim.engine.result import PeakState, Timeline

__all__ = ["PeakWatch", "Progress", "TimelineBuilder"]

Progress = Callable[[int, int], None]
"""Called with (entries done, entries in all)."""


class TimelineBuilder:
    """Allocated and reserved bytes after each driving entry, as columns."""

    def __init__(self) -> None:
        self.entry: list[int] = []
        self.allocated: list[int] = []
        self.reserved: list[int] = []

    def build(self) -> Timeline:
        """The columns so far."""
        columns = (self.entry, self.allocated, self.reserved)
        return Timeline(*(np.array(column, dtype=np.int64) for column in columns))


class PeakWatch:
    """The state at the first moment of the highest reserved memory."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self._allocator = allocator
        self._highest = -1
        self.state = PeakState(entry=-1, reserved=0, allocated=0, active=0, inactive_split=0)
        self.look(-1)

    def look(self, entry: int) -> None:
        """Called when reserved memory has grown."""
        reserved = self._allocator.reserved_bytes
        if reserved <= self._highest:
            return
        self._highest = reserved
        stats = self._allocator.memory_stats()
        self.state = PeakState(
            entry=entry,
            reserved=reserved,
            allocated=stats["allocated_bytes.all.current"],
            active=stats["active_bytes.all.current"],
            inactive_split=stats["inactive_split_bytes.all.current"],
        )
