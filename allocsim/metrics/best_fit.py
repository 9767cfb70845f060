"""Best-fit placement of blocks at offsets, in the order of their allocations and frees.

A block gets the smallest free range that is large enough, and the lowest of equally large ranges.
If no range is large enough, the block is placed above all other blocks.  Adjacent free ranges are
merged.  This needs no knowledge of later requests.

If the same requests repeat in periods, only the first periods are simulated.  Once a period begins
with the free ranges, and the offsets of blocks still to be freed, of an earlier period, all later
periods get the same offsets.
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
from allocsim.metrics.lifetimes import Lifetimes
from allocsim.metrics.periods import equal_periods, true_ranges

_LOOKS_BACK = 4
"""Number of earlier periods to compare with, because two blocks may swap offsets in each period."""

_HIGHEST = 1 << 62
"""Largest offset in bytes, so that offset plus size fits in 64 bits."""

_Ints = NDArray[np.int64]


def best_fit(
    lifetimes: Lifetimes, most: int | None = None, periods: _Ints | None = None
) -> _Ints | None:
    """Return the offset in bytes of each block; None if a block ends above `most` bytes.

    periods: first entry of each period that may repeat.  Periods save time and do not change the
        result; they are checked before use.
    Raises AllocsimError if an offset exceeds 2**62.
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
    """Return the allocations and frees of all blocks in order, and the entry number of each event.

    An event is one integer.  For n blocks, event b < n frees block b, n + b allocates block b, and
    2n + b allocates and frees block b without another event in between.  At the same entry, frees
    come first.
    """
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
    """Periods of equal events: events [first + i * length, first + (i + 1) * length) for i < count.

    The periods differ only in the block numbers.
    n_blocks: number of blocks allocated in each period.
    came: number of the first block allocated in the first period.
    freed: numbers of the blocks from before the first period that are freed during the periods.
    """

    first: int
    length: int
    count: int
    n_blocks: int
    came: int
    freed: _Ints


def _equal_periods(
    events: _Ints, moment: _Ints, size: _Ints, periods: _Ints
) -> Iterator[_EqualPeriods]:
    """Yield the periods that allocate and free the same sizes in the same order.

    events, moment: see `_events`.
    size: bytes of each block.
    periods: first entry of each period.
    """
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
    """Placed blocks and the free ranges between them.

    offset: offset in bytes of each block.
    top: highest end of any block that was placed, in bytes.

    A free range is one integer, `size << shift | start`, so that a sorted list of integers is
    ordered by size and then by start.  `run` is one loop without helper calls and tuples, which
    took two thirds of its time.
    """

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
        """True if a block ended above `most` bytes, after which no event is applied."""
        return self.top > self._most

    def run_periods(self, events: _Ints, periods: _EqualPeriods) -> int:
        """Apply all events of equal periods, or a part; return the index of the next event."""
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
        """Apply events until a block ends above `most` bytes."""
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
