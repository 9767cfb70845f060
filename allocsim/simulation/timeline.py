"""Timeline of a replay: allocated and reserved memory after each step, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import int_column
from allocsim.core import Column


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """Allocated and reserved bytes after one step, and the entry of the step."""

    entry: int
    allocated: int
    reserved: int

    @property
    def idle(self) -> int:
        """Reserved bytes that are not allocated, including blocks that wait for other streams."""
        return self.reserved - self.allocated


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Allocated and reserved bytes after each step; step i comes from entry `entry[i]`."""

    entry: NDArray[np.int64]
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]

    def at(self, is_kept: NDArray[np.bool_]) -> Timeline:
        """Return the timeline of the steps where `is_kept` is True."""
        columns = (self.entry, self.allocated, self.reserved)
        return Timeline(*(column[is_kept] for column in columns))

    @property
    def busiest(self) -> TimelinePoint | None:
        """First step with peak allocated memory; None for an empty timeline."""
        return None if not len(self.entry) else self._point(int(np.argmax(self.allocated)))

    @property
    def idlest(self) -> TimelinePoint | None:
        """First step with peak idle memory; None for an empty timeline."""
        if not len(self.entry):
            return None
        return self._point(int(np.argmax(self.reserved - self.allocated)))

    def _point(self, row: int) -> TimelinePoint:
        return TimelinePoint(
            int(self.entry[row]), int(self.allocated[row]), int(self.reserved[row])
        )


class TimelineBuilder:
    """Builder of the timeline, from changes of allocated and reserved memory.

    moved: change of allocated bytes at each step since the last `keep`.

    Reserved memory changes rarely, so its value is stored only at the steps that change it.
    """

    def __init__(self, allocated: int, reserved: int) -> None:
        self.moved: list[int] = Column()
        self._kept: list[NDArray[np.int64]] = []
        self._n_kept = 0
        self._allocated = allocated
        self._reserved = [(0, reserved)]

    def __len__(self) -> int:
        return self._n_kept + len(self.moved)

    def keep(self) -> None:
        """Store `moved` as an array, and clear it."""
        self._kept.append(int_column(self.moved))
        self._n_kept += len(self.moved)
        self.moved.clear()

    def reserve(self, reserved: int) -> None:
        """Note the reserved bytes after the last step."""
        if reserved != self._reserved[-1][1]:
            self._reserved.append((len(self) - 1, reserved))

    def build(self, entry: NDArray[np.int64]) -> Timeline:
        """Return the timeline.  entry: entry number of each step."""
        self.keep()
        moved = np.concatenate(self._kept)
        steps, values = zip(*self._reserved, strict=True)
        lengths = np.diff([*steps, len(moved)])
        return Timeline(
            entry=entry[: len(moved)],
            allocated=self._allocated + np.cumsum(moved),
            reserved=np.repeat(np.array(values, dtype=np.int64), lengths),
        )
