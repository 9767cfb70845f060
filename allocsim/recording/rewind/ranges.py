"""Mapped address ranges of expandable segments; a snapshot lists each range as one segment.

Invariant: ranges are sorted and do not overlap, and adjacent ranges differ in stream, pool or size
class (small or large).  Mapping merges ranges and unmapping splits them (semantics 4.1, 6.5).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from allocsim.state import PoolId
from allocsim.units import MIB

_LARGE_HANDLE = 20 * MIB


@dataclass(frozen=True, slots=True)
class MappedRange:
    """Mapped addresses [start, end).

    is_small: True for the small pool; None if unknown.
    frames: stack number; -1 without a stack.
    """

    start: int
    end: int
    stream: int
    pool_id: PoolId
    is_small: bool | None
    frames: int = -1

    def joins(self, other: MappedRange) -> bool:
        """Return True if this range merges with the adjacent range `other`."""
        kinds = {self.is_small, other.is_small} - {None}
        return self.stream == other.stream and self.pool_id == other.pool_id and len(kinds) < 2

    def guessed_small(self) -> bool:
        """Return True for the small pool; if unknown, guess it from the size of the range."""
        if self.is_small is None:
            return (self.end - self.start) % _LARGE_HANDLE != 0
        return self.is_small


class MappedRanges:
    """Mapped ranges of one device."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[MappedRange] = []

    def __iter__(self) -> Iterator[MappedRange]:
        return iter(self._ranges)

    def add(self, new: MappedRange) -> bool:
        """Map `new` and merge it with its neighbours.

        Return False without a change if `new` overlaps a mapped range.
        """
        at = bisect_right(self._ranges, new.start, key=lambda r: r.start)
        before = self._ranges[at - 1] if at else None
        after = self._ranges[at] if at < len(self._ranges) else None
        if (before and before.end > new.start) or (after and after.start < new.end):
            return False
        first, last = at, at
        if before and before.end == new.start and before.joins(new):
            new = _joined(before, new)
            first -= 1
        if after and new.end == after.start and new.joins(after):
            new = _joined(new, after)
            last += 1
        self._ranges[first:last] = [new]
        return True

    def cut(self, start: int, end: int) -> bool:
        """Unmap [start, end); return False without a change unless one range contains it."""
        at = bisect_right(self._ranges, start, key=lambda r: r.start) - 1
        if at < 0 or self._ranges[at].end < end:
            return False
        whole = self._ranges[at]
        pieces = (replace(whole, end=start), replace(whole, start=end))
        self._ranges[at : at + 1] = [piece for piece in pieces if piece.start < piece.end]
        return True


def _joined(left: MappedRange, right: MappedRange) -> MappedRange:
    small = right.is_small if left.is_small is None else left.is_small
    return replace(left, end=right.end, is_small=small)
