"""How little memory would suffice if every block's place were chosen with the whole run known.

This is dynamic storage allocation, which is NP-hard (Garey and Johnson 1979, problem SR2), so
the least height is bracketed: from below by the peak of live bytes, from above by a packing.

The packing is *greedy by size* (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
Net Inference", 2020, arXiv:2001.03288): blocks in descending size, of equals the longer-lived
first, each at the lowest offset where it meets no block that lives at the same time.  That takes
time in the square of the number of blocks, so beyond `MOST_PLACED` only the largest are placed
so; the others, in an arena of their own on top, get the best fit with the free space joined, in
the order of their requests.  Best fit for all of them is tried as well, and the lower of the two
packings is taken: both are possible, so the height is an upper bound whichever it is.

Rule: no two blocks that live at the same time overlap, and the height is the end of the highest.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.measures.lifetimes import Lifetimes

__all__ = ["MOST_PLACED", "Packing", "pack"]

MOST_PLACED = 12_000
"""Blocks placed with the whole run known; a few seconds' worth."""


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """A place for each block.

    offset: bytes, for each row of the lifetimes.
    height: the end of the highest block.
    n_online: rows placed without foresight.
    """

    offset: NDArray[np.int64]
    height: int
    n_online: int


def pack(lifetimes: Lifetimes, most_placed: int = MOST_PLACED) -> Packing:
    """The lower of two packings of all blocks."""
    if not len(lifetimes):
        return Packing(np.zeros(0, dtype=np.int64), 0, 0)
    foreseen = _foreseen(lifetimes, most_placed)
    if foreseen.height == lifetimes.peak_bytes:
        return foreseen
    online = _best_fit(lifetimes)
    height = int((online + lifetimes.size).max())
    return foreseen if foreseen.height <= height else Packing(online, height, len(lifetimes))


def _foreseen(lifetimes: Lifetimes, most_placed: int) -> Packing:
    """The largest blocks placed with the whole run known, the others on top of them."""
    length = lifetimes.end - lifetimes.start
    order = np.lexsort((lifetimes.start, -length, -lifetimes.size))
    foreseen, online = order[:most_placed], order[most_placed:]
    offset = np.zeros(len(lifetimes), dtype=np.int64)
    offset[foreseen] = _by_size(lifetimes.take(foreseen))
    ends = offset[foreseen] + lifetimes.size[foreseen]
    height = int(ends.max(initial=0))
    if len(online):
        rest = lifetimes.take(online)
        above = _best_fit(rest)
        offset[online] = above + height
        height += int((above + rest.size).max())
    return Packing(offset, height, len(online))


def _by_size(rows: Lifetimes) -> NDArray[np.int64]:
    """Offsets of rows that come in the order of placement."""
    offset = np.zeros(len(rows), dtype=np.int64)
    # The rows placed so far, sorted by offset, so that no sort is needed for each row.
    placed = np.zeros((4, len(rows)), dtype=np.int64)
    low, high, start, end = placed
    columns = (rows.start.tolist(), rows.end.tolist(), rows.size.tolist())
    for i, (begins, ends, size) in enumerate(zip(*columns, strict=True)):
        (meets,) = ((start[:i] < ends) & (end[:i] > begins)).nonzero()
        at = offset[i] = _lowest_gap(low[meets], high[meets], size)
        row = int(np.searchsorted(low[:i], at))
        placed[:, row + 1 : i + 1] = placed[:, row:i]
        placed[:, row] = at, at + size, begins, ends
    return offset


def _lowest_gap(low: NDArray[np.int64], high: NDArray[np.int64], size: int) -> int:
    """The lowest offset at which `size` bytes meet none of [low, high), which come in order."""
    if not len(low) or low[0] >= size:
        return 0
    filled = np.maximum.accumulate(high)
    fits = low[1:] - filled[:-1] >= size
    first = fits.argmax() if len(fits) else 0
    return int(filled[first] if len(fits) and fits[first] else filled[-1])


def _best_fit(rows: Lifetimes) -> NDArray[np.int64]:
    """Offsets by best fit in the order of the entries; free neighbours are joined."""
    arena = _Arena()
    offset = np.zeros(len(rows), dtype=np.int64)
    n = len(rows)
    moment = np.concatenate((rows.end, rows.start))
    for event in np.argsort(moment, kind="stable").tolist():  # what ends goes first
        row = event % n
        if event < n:
            arena.free(int(offset[row]), int(rows.size[row]))
        else:
            offset[row] = arena.allocate(int(rows.size[row]))
    return offset


class _Arena:
    """Address space from 0 up; its free ranges by size, by start and by end."""

    def __init__(self) -> None:
        self._top = 0
        self._by_size: list[tuple[int, int]] = []
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}

    def allocate(self, size: int) -> int:
        """The start of the smallest free range that holds `size`; of equals the lowest."""
        i = bisect_left(self._by_size, (size, 0))
        if i == len(self._by_size):
            start = self._top
            self._top += size
            return start
        length, start = self._by_size[i]
        self._remove(start, length)
        if length > size:
            self._insert(start + size, length - size)
        return start

    def free(self, start: int, size: int) -> None:
        """Give a range back."""
        following = self._by_start.get(start + size)
        if following is not None:
            self._remove(start + size, following)
            size += following
        before = self._by_end.get(start)
        if before is not None:
            self._remove(start - before, before)
            start, size = start - before, size + before
        self._insert(start, size)

    def _insert(self, start: int, size: int) -> None:
        insort(self._by_size, (size, start))
        self._by_start[start] = self._by_end[start + size] = size

    def _remove(self, start: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, start))]
        del self._by_start[start], self._by_end[start + size]
