"""Memory that is enough if all requests and frees are known before blocks are placed.

The minimum is NP-hard (dynamic storage allocation; Garey and Johnson 1979, problem SR2), so it is
bounded: from below by the peak of live bytes, from above by the height of a packing.

The packing is *greedy by size* (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020, arXiv:2001.03288): blocks in descending size, longer-lived ones first among
equals, each at the lowest offset where it overlaps no block that is live at the same time.  Only
the `MOST_PLACED` largest blocks are placed this way, and best fit places the others above them.  A
second packing places all blocks by best fit, and the lower of the two is used.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import stable_order
from allocsim.errors import AllocsimError
from allocsim.metrics.lifetimes import Lifetimes, equal_periods, true_ranges

_LOOKS_BACK = 4
"""Number of earlier periods (usually training steps) that are compared with a period.

If two blocks swap offsets in each period, only every second period has the same placement.
"""

_HIGHEST = 1 << 62  # largest offset in bytes, so that offset plus size fits in 64 bits

_Ints = NDArray[np.int64]


def best_fit(
    lifetimes: Lifetimes, most: int | None = None, periods: _Ints | None = None
) -> _Ints | None:
    """Return the offset in bytes of each block; None if a block ends above `most` bytes.

    A block gets the smallest free range that is large enough, and the lowest of equal ranges.

    periods: first entry of each period, usually a training step.  If a period starts from the same
        placement as an earlier period, the earlier offsets are copied.  This only saves time.
    """
    order = stable_order(lifetimes.start)
    blocks = lifetimes.take(order)
    events, moment = _events(blocks)
    arena = _Arena(blocks.size, most)
    at = 0
    if periods is not None:
        for equal in _equal_periods(events, moment, blocks.size, periods):
            arena.run(events[at : equal.first])
            at = arena.run_periods(events, equal)
    arena.run(events[at:])
    if arena.is_over:
        return None
    if max(arena.offset, default=0) > _HIGHEST:
        raise AllocsimError(
            "the blocks in use at the same time take more than 2**62 bytes; expected sizes that "
            "fit an address space"
        )
    offset = np.empty(len(blocks), dtype=np.int64)
    offset[order] = arena.offset
    return offset


def _events(blocks: Lifetimes) -> tuple[_Ints, _Ints]:
    # An event is one integer.  For n blocks, event b < n frees block b, n + b allocates block b,
    # and 2n + b allocates and frees block b without another event in between.  At the same entry,
    # frees come first.
    n = len(blocks)
    turns, moment = blocks.turns, blocks.moments
    events = np.where(turns < n, turns + n, turns - n)
    passes = np.flatnonzero(events[:-1] == events[1:] + n)
    events[passes] += n
    kept = np.ones(2 * n, dtype=bool)
    kept[passes + 1] = False
    return events[kept], moment[kept]


@dataclass(frozen=True, slots=True, eq=False)
class _EqualPeriods:
    # Consecutive periods with equal allocations and frees, apart from the block numbers.
    first: int  # index of the first event
    length: int  # number of events in each period
    count: int
    n_blocks: int  # number of blocks that each period allocates
    came: int  # number of the first block that the first period allocates
    freed: _Ints  # numbers of the blocks from before the first period that the periods free


def _equal_periods(
    events: _Ints, moment: _Ints, size: _Ints, periods: _Ints
) -> Iterator[_EqualPeriods]:
    n = len(size)
    for first, end, length in equal_periods(moment, periods):
        table = events[first:end].reshape(-1, length)
        kind, block = np.divmod(table, n)
        n_blocks = np.count_nonzero(kind, axis=1)
        is_same = (table[1:] - table[:-1] == n_blocks[:-1, None]) & (kind[1:] == kind[:-1])
        is_same &= size[block[1:]] == size[block[:-1]]
        for at, last in true_ranges(is_same.all(axis=1)):
            is_coming = kind[at] > 0  # allocates a block
            came, goes = int(block[at][is_coming].min()), block[at][~is_coming]
            ages = range(-(-(came - int(goes.min(initial=came))) // int(n_blocks[at])))
            freed = np.concatenate([goes[:0], *(goes + age * n_blocks[at] for age in ages)])
            yield _EqualPeriods(
                first=first + at * length,
                length=length,
                count=last - at + 1,
                n_blocks=int(n_blocks[at]),
                came=came,
                freed=freed[freed < came],
            )


class _Arena:
    # A free range is one integer, `size << shift | start`, so that a sorted list of integers is
    # ordered by size and then by start.  `run` is one loop without helper calls and tuples, which
    # took two thirds of its time.
    def __init__(self, size: _Ints, most: int | None) -> None:
        self._sizes: list[int] = size.tolist()
        total = sum(self._sizes)
        self._most = total if most is None else most
        self._shift = total.bit_length()  # no range starts or ends beyond the sum of all blocks
        self._by_size: list[int] = []
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        self.offset = [0] * len(self._sizes)
        self.top = 0

    @property
    def is_over(self) -> bool:
        return self.top > self._most

    def run_periods(self, events: _Ints, periods: _EqualPeriods) -> int:
        # Returns the index of the next event, since later periods that repeat are not run.
        before: deque[object] = deque(maxlen=_LOOKS_BACK)
        for number in range(periods.count):
            n_came = number * periods.n_blocks
            freed = (periods.freed + n_came).tolist()
            now = self.top, tuple(self._by_size), [self.offset[block] for block in freed]
            at = periods.first + number * periods.length
            if now in before and not self.is_over:
                cycle = len(before) - before.index(now)
                further = (periods.count - number) // cycle
                come = periods.came + n_came
                n_again = cycle * periods.n_blocks
                again = self.offset[come - n_again : come] * further
                self.offset[come : come + len(again)] = again
                return at + further * cycle * periods.length
            before.append(now)
            self.run(events[at : at + periods.length])
        return periods.first + periods.count * periods.length

    def run(self, events: _Ints) -> None:
        if self.is_over:
            return
        sizes, offset, most, shift = self._sizes, self.offset, self._most, self._shift
        by_size, by_start, by_end = self._by_size, self._by_start, self._by_end
        n, start_bits = len(sizes), (1 << shift) - 1
        passing = 2 * n
        for event in events.tolist():
            if event >= n:
                block = event - n if event < passing else event - passing
                size = sizes[block]
                at = bisect_left(by_size, size << shift)
                if at == len(by_size):
                    start = offset[block] = self.top
                    end = self.top = start + size
                    if end > most:
                        return
                    if event < passing:
                        continue
                    # A block that is freed at once still leaves a free range if it was on top.
                elif event >= passing:
                    # Taking the range and freeing it again leaves the arena unchanged.
                    offset[block] = by_size[at] & start_bits
                    continue
                else:
                    free = by_size.pop(at)
                    start = offset[block] = free & start_bits
                    end = start + (free >> shift)
                    del by_start[start], by_end[end]
                    start += size
                    if start == end:
                        continue
            else:
                start = offset[event]
                end = start + sizes[event]
                following = by_start.pop(end, 0)
                if following:
                    del by_size[bisect_left(by_size, following << shift | end)]
                    end += following
            before = by_end.pop(start, 0)
            if before:
                start -= before
                del by_size[bisect_left(by_size, before << shift | start)]
            by_start[start] = by_end[end] = end - start
            insort(by_size, (end - start) << shift | start)


MOST_PLACED = 12_000
"""Largest number of blocks that `pack` places greedily; this number takes a few seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Placement of all blocks in one range, to show how little memory could hold them.

    offset: start of each block in the range, in bytes, in the order of the lifetimes.
    height: bytes of the range, up to the end of the highest block.
    n_online: number of blocks placed by best fit, without knowledge of later requests.
    """

    offset: NDArray[np.int64]
    height: int
    n_online: int


def pack(
    lifetimes: Lifetimes, most_placed: int = MOST_PLACED, periods: NDArray[np.int64] | None = None
) -> Packing:
    """Place all blocks in one address range so that live blocks never overlap.

    Two placements are computed, and the one with the smaller range is returned.  One places the
    blocks in the order of their requests, by best fit.  The other first places the largest blocks,
    each at the lowest address that is free for its whole lifetime, and then all smaller blocks
    above them, by best fit.

    most_placed: number of blocks that count as the largest.
    periods: first entry of each period, usually a training step.  They only save time; None if
        unknown.
    """
    if not len(lifetimes):
        return Packing(np.zeros(0, dtype=np.int64), 0, 0)
    online = best_fit(lifetimes, periods=periods)
    assert online is not None
    height = int((online + lifetimes.size).max())
    foreseen = _largest_first(lifetimes, most_placed, height, periods)
    return Packing(online, height, len(lifetimes)) if foreseen is None else foreseen


def _largest_first(
    lifetimes: Lifetimes, most_placed: int, most: int, periods: NDArray[np.int64] | None
) -> Packing | None:
    length = lifetimes.end - lifetimes.start
    order = np.lexsort((lifetimes.start, -length, -lifetimes.size))
    foreseen, others = order[:most_placed], order[most_placed:]
    offset = np.zeros(len(lifetimes), dtype=np.int64)
    offset[foreseen] = _by_size(lifetimes.take(foreseen))
    height = int((offset[foreseen] + lifetimes.size[foreseen]).max(initial=0))
    above = best_fit(lifetimes.take(others), most - height, periods)
    if above is None:
        return None
    offset[others] = above + height
    height = int((offset + lifetimes.size).max())
    return Packing(offset, height, len(others)) if height <= most else None


def _by_size(rows: Lifetimes) -> NDArray[np.int64]:
    # 32-bit integers, since most of the time is spent on finding overlapping lifetimes.
    start, end = rows.start.astype(np.int32), rows.end.astype(np.int32)
    low = np.zeros(len(rows), dtype=np.int64)
    high = np.zeros(len(rows), dtype=np.int64)
    columns = (rows.start.tolist(), rows.end.tolist(), rows.size.tolist())
    for i, (begins, ends, size) in enumerate(zip(*columns, strict=True)):
        (meets,) = ((start[:i] < ends) & (end[:i] > begins)).nonzero()
        meets = meets[low[meets].argsort()]
        low[i] = _lowest_gap(low[meets], high[meets], size)
        high[i] = low[i] + size
    return low


def _lowest_gap(low: NDArray[np.int64], high: NDArray[np.int64], size: int) -> int:
    # `low` is ascending.
    if not len(low) or low[0] >= size:
        return 0
    filled = np.maximum.accumulate(high)
    fits = low[1:] - filled[:-1] >= size
    first = fits.argmax() if len(fits) else 0
    return int(filled[first] if len(fits) and fits[first] else filled[-1])
