"""A stretch of a plan that repeats itself, and when driving it once more would change nothing.

Requests are compared up to renaming: an alloc by size and stream, a free by how many steps ago
its block was asked for, never by recorded addresses.  A stretch of equal periods is passed over
once the allocator is where it was a few periods ago: every block at the same address, those of
the stretch handed out as many steps ago, and nothing asked of the driver in between.  The
allocator being deterministic, it would come back there again and again.

Rule: what is passed over would have changed no peak, no driver call and no retry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import any_of, distinct, stable_order
from allocsim.engine.plan import StepKind, Steps

__all__ = ["CYCLE", "Period", "find_period"]

CYCLE = 4
"""How many looks back a stretch is seen to have come back: two blocks may change places."""

_APART = 512
"""Steps between looks, since one takes as long as some tens of steps."""

_LOOKS = 8
"""Looks at a stretch, at least, however short its periods."""

_CANDIDATES = 16
"""Distances that are tried as the length of a period."""

_WORTH = 8
"""A stretch of less than this part of the requests saves less than it takes to find."""

_RUN = 32
"""Steps that are looked for as a whole; a power of two."""

_HALF = 32
"""Bits of a word that are not looked at: two runs in four billion look the same and are not."""

_Ints = NDArray[np.int64]

_FREES = (StepKind.FREE, StepKind.FREE_REQUEST, StepKind.FREE_COMPLETE)

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Of the polynomial whose value stands for a run (an unequal pair costs a useless candidate), and
of the number that stands for a step."""


@dataclass(frozen=True, slots=True)
class Period:
    """Steps [first + i * length, first + (i + 1) * length) are the same for every i < count."""

    first: int
    length: int
    count: int

    @property
    def end(self) -> int:
        """The step after the last period."""
        return self.first + self.count * self.length

    @property
    def stride(self) -> int:
        """Steps from one look at the allocator to the next, whole periods."""
        apart = min(-(-_APART // self.length), max(self.count // _LOOKS, 1))
        return apart * self.length


def find_period(steps: Steps) -> Period | None:
    """The longest stretch of three equal periods or more, of lengths that runs suggest.

    None, too, where the sizes alone say that it would hold too few of the requests to be worth it.
    """
    if not _may_repeat(steps):
        return None
    columns = _unnamed(steps)
    codes = _codes(columns)
    best: Period | None = None
    for length in _lengths(codes):
        is_other = codes[:-length] != codes[length:]
        # Where so many differ, no stretch can be longer than the longest found.
        if best is not None and len(codes) - np.count_nonzero(is_other) <= best.count * best.length:
            continue
        differs = np.flatnonzero(is_other)
        edges = np.concatenate(([-1], differs, [len(codes) - length]))
        runs = np.diff(edges) - 1
        longest = int(np.argmax(runs))
        count = int(runs[longest]) // length + 1
        if count >= 3 and (best is None or count * length > best.count * best.length):
            best = Period(int(edges[longest]) + 1, length, count)
    return best if best is None or _repeats(columns, best) else None


def _may_repeat(steps: Steps) -> bool:
    """Whether a stretch of equal periods can hold a share of the requests that is worth a look.

    Of its sizes two thirds at least came up before: each does in every period, of three or more.
    """
    sizes = steps.size.compress(any_of(steps.kind, (StepKind.ALLOC,)))
    again = len(sizes) - len(distinct(sizes))
    return 3 * again * _WORTH >= 2 * len(sizes)


def _unnamed(steps: Steps) -> tuple[_Ints, _Ints, _Ints]:
    """Columns in which steps that are equal up to renaming are equal: what is done, size or age,
    stream."""
    at = np.arange(len(steps))
    asked = _asked(steps)
    is_alloc = any_of(steps.kind, (StepKind.ALLOC,))
    is_free = any_of(steps.kind, _FREES) & (asked >= 0)
    # What is neither, or frees what was there before, is like no other step.
    is_named = is_alloc | is_free
    what = steps.kind.astype(np.int64) + 1
    what[is_alloc], what[~is_named] = 0, -1
    size_or_age = np.where(is_alloc, steps.size, np.where(is_free, at - asked, at))
    stream = np.where(is_named, steps.stream, 0).view(np.int64)
    return what, size_or_age, stream


def _codes(columns: tuple[_Ints, _Ints, _Ints]) -> NDArray[np.uint64]:
    """A number for each row, equal for equal rows; hardly ever for others (see `_repeats`)."""
    codes = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        codes = (codes + column.view(np.uint64)) * _FACTOR
        codes ^= codes >> np.uint64(32)
    return codes


def _repeats(columns: tuple[_Ints, _Ints, _Ints], period: Period) -> bool:
    """Whether the rows of every period are those of the one before it."""
    rows, next_rows = (
        slice(period.first, period.end - period.length),
        slice(period.first + period.length, period.end),
    )
    return all(np.array_equal(column[rows], column[next_rows]) for column in columns)


def _asked(steps: Steps) -> NDArray[np.int64]:
    """For each step, the last alloc before it, or it itself, of its address; -1: there is none."""
    order = stable_order(steps.addr)
    addr = steps.addr.take(order)
    groups = np.zeros(len(steps), dtype=np.int64)
    groups[1:] = np.cumsum(addr[1:] != addr[:-1])
    # Each address begins above all that the ones before it have reached.
    base = groups * (len(steps) + 1)
    allocs = np.where(any_of(steps.kind.take(order), (StepKind.ALLOC,)), order + 1, 0)
    asked = np.empty(len(steps), dtype=np.int64)
    asked[order] = np.maximum.accumulate(base + allocs) - base - 1
    return asked


def _lengths(codes: NDArray[np.uint64]) -> list[int]:
    """The commonest distances between one run of `_RUN` steps and its next occurrence.

    What comes once a period is that far apart; what recurs within it suggests shorter lengths
    too, which turn out to hold no longer than a part of a period.
    """
    if len(codes) < _RUN + 1:
        return []
    runs, factor, length = codes, int(_FACTOR), 1
    while length < _RUN:  # a polynomial of twice as many steps from two that lie side by side
        runs = runs[:-length] * np.uint64(factor) + runs[length:]
        factor, length = factor * factor % (1 << 64), 2 * length
    runs >>= np.uint64(_HALF)  # what two digits hold is put in order in half the time
    order = stable_order(runs)
    runs = runs.take(order)
    times = np.bincount((order[1:] - order[:-1]).compress(runs[1:] == runs[:-1]))
    lengths = np.flatnonzero(times)
    commonest = np.argsort(-times[lengths], kind="stable")[:_CANDIDATES]
    return [int(length) for length in lengths[commonest]]
