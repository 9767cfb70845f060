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

from allocsim.arrays import stable_order
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
    online = _best_fit(lifetimes)
    assert online is not None
    height = int((online + lifetimes.size).max())
    foreseen = _foreseen(lifetimes, most_placed, height)
    return Packing(online, height, len(lifetimes)) if foreseen is None else foreseen


def _foreseen(lifetimes: Lifetimes, most_placed: int, most: int) -> Packing | None:
    """The largest blocks placed with the whole run known, the others on top of them.

    None where that is higher than `most` bytes, as soon as it is.
    """
    length = lifetimes.end - lifetimes.start
    order = np.lexsort((lifetimes.start, -length, -lifetimes.size))
    foreseen, others = order[:most_placed], order[most_placed:]
    offset = np.zeros(len(lifetimes), dtype=np.int64)
    offset[foreseen] = _by_size(lifetimes.take(foreseen))
    height = int((offset[foreseen] + lifetimes.size[foreseen]).max(initial=0))
    above = _best_fit(lifetimes.take(others), most - height)
    if above is None:
        return None
    offset[others] = above + height
    height = int((offset + lifetimes.size).max())
    return Packing(offset, height, len(others)) if height <= most else None


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


def _best_fit(rows: Lifetimes, most: int | None = None) -> NDArray[np.int64] | None:
    """Offsets by best fit in the order of the entries, of equals the lowest; free neighbours are
    joined.  None if they reach beyond `most` bytes.

    The free ranges stand in order as numbers, size before start, and by start and by end.  One
    loop with numbers, because calls and pairs were two thirds of its time.
    """
    n = len(rows)
    sizes: list[int] = rows.size.tolist()
    offset = [0] * n
    total = sum(sizes)
    most = total if most is None else most
    shift = total.bit_length()  # no range starts or ends beyond the sum of all blocks
    by_size: list[int] = []
    by_start: dict[int, int] = {}
    by_end: dict[int, int] = {}
    top = 0
    moment = np.concatenate((rows.end, rows.start))
    for event in stable_order(moment).tolist():  # what ends goes first
        if event < n:
            start, size = offset[event], sizes[event]
            end = start + size
            following = by_start.pop(end, 0)
            if following:
                del by_size[bisect_left(by_size, following << shift | end)]
                end += following
            before = by_end.pop(start, 0)
            if before:
                start -= before
                del by_size[bisect_left(by_size, before << shift | start)]
        else:
            size = sizes[event - n]
            at = bisect_left(by_size, size << shift)
            if at == len(by_size):
                offset[event - n] = top
                top += size
                if top > most:
                    return None
                continue
            length = by_size[at] >> shift
            start = offset[event - n] = by_size.pop(at) - (length << shift)
            end = start + length
            del by_start[start], by_end[end]
            if length == size:
                continue
            start += size
        by_start[start] = by_end[end] = end - start
        insort(by_size, (end - start) << shift | start)
    return np.array(offset, dtype=np.int64)
