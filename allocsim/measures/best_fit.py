"""Places for blocks by best fit, in the order in which they come and go, without foresight.

Rule: a block gets the smallest free range that holds it, of equals the lowest, else it goes on top
of everything; free neighbours are joined.

Of the same requests again and again only the first few rounds are answered: once the free ranges
and the places of what will be freed are where they were a few rounds ago, all rounds to come have
the same places.  A block that goes as soon as it has come changes nothing, unless it went on top.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import stable_order
from allocsim.errors import AllocsimError
from allocsim.measures.lifetimes import Lifetimes
from allocsim.measures.rounds import equally_long, runs_of

__all__ = ["best_fit"]

_LOOKS_BACK = 4
"""How many rounds ago places may have been the same: two blocks may change places."""

_HIGHEST = 1 << 62
"""Bytes; offsets and sizes beyond would not fit 64 bits together."""

_Ints = NDArray[np.int64]


def best_fit(
    lifetimes: Lifetimes, most: int | None = None, rounds: _Ints | None = None
) -> _Ints | None:
    """An offset for each block, in bytes; None if they reach beyond `most` bytes.

    rounds: entries with which rounds begin that may ask the same; looked at here, not believed.
    Raises AllocsimError if an offset exceeds 2**62.
    """
    order = stable_order(lifetimes.start)
    blocks = lifetimes.take(order)
    events, moment = _events(blocks)
    arena = _Arena(blocks.size, most)
    at = 0
    if rounds is not None:
        for equal in _equal_rounds(events, moment, blocks.size, rounds):
            arena.run(events[at : equal.first])
            at = arena.run_rounds(events, equal)
    arena.run(events[at:])
    if arena.is_over:
        return None
    if max(arena.offset, default=0) > _HIGHEST:
        raise AllocsimError(
            "blocks that are in use at once take more than 2**62 bytes together; expected sizes "
            "that an address space holds"
        )
    offset = np.empty(len(blocks), dtype=np.int64)
    offset[order] = arena.offset
    return offset


def _events(blocks: Lifetimes) -> tuple[_Ints, _Ints]:
    """What happens, in order, and when.

    Of n blocks, b < n is that block b goes, n + b that it comes, 2n + b that it comes and goes at
    once.  What goes at a moment goes first.
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
class _Rounds:
    """Events [first + i * length, first + (i + 1) * length), the same for every i < count.

    But for the numbers of the blocks, of which `n_blocks` come in each, of the first `came` on.
    freed: of what is in use when the first begins, the blocks that go in one of them.
    """

    first: int
    length: int
    count: int
    n_blocks: int
    came: int
    freed: _Ints


def _equal_rounds(events: _Ints, moment: _Ints, size: _Ints, rounds: _Ints) -> Iterator[_Rounds]:
    """The rounds, one after the other, in which the same happens to blocks of the same sizes."""
    n = len(size)
    for first, end, length in equally_long(moment, rounds):
        table = events[first:end].reshape(-1, length)
        kind, block = np.divmod(table, n)
        n_blocks = np.count_nonzero(kind, axis=1)
        is_same = (table[1:] - table[:-1] == n_blocks[:-1, None]) & (kind[1:] == kind[:-1])
        is_same &= size[block[1:]] == size[block[:-1]]
        for at, last in runs_of(is_same.all(axis=1)):
            is_coming = kind[at] > 0
            came, goes = int(block[at][is_coming].min()), block[at][~is_coming]
            ages = range(-(-(came - int(goes.min(initial=came))) // int(n_blocks[at])))
            freed = np.concatenate([goes[:0], *(goes + age * n_blocks[at] for age in ages)])
            yield _Rounds(
                first=first + at * length,
                length=length,
                count=last - at + 1,
                n_blocks=int(n_blocks[at]),
                came=came,
                freed=freed[freed < came],
            )


class _Arena:
    """Blocks in place; offset: of each, in bytes; top: the end of the highest so far.

    Free ranges stand in order as numbers, size before start, and by start and by end.  One loop
    with numbers, because calls and pairs were two thirds of its time.
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
        """Whether a block reached beyond the most bytes, where it stopped."""
        return self.top > self._most

    def run_rounds(self, events: _Ints, rounds: _Rounds) -> int:
        """Run the rounds; the event to go on with."""
        before: deque[object] = deque(maxlen=_LOOKS_BACK)
        for number in range(rounds.count):
            n_came = number * rounds.n_blocks
            freed = (rounds.freed + n_came).tolist()
            now = self.top, tuple(self._by_size), [self.offset[block] for block in freed]
            at = rounds.first + number * rounds.length
            if now in before and not self.is_over:
                cycle = len(before) - before.index(now)
                further = (rounds.count - number) // cycle
                come = rounds.came + n_came
                n_again = cycle * rounds.n_blocks
                again = self.offset[come - n_again : come] * further
                self.offset[come : come + len(again)] = again
                return at + further * cycle * rounds.length
            before.append(now)
            self.run(events[at : at + rounds.length])
        return rounds.first + rounds.count * rounds.length

    def run(self, events: _Ints) -> None:
        """Let these happen, or as much of them as there is room for."""
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
                elif event >= passing:
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
