"""Repeated steps of a plan, which a replay can skip to save time.

A period is a sequence of steps, usually one training step, that occurs many times in a row with
equal sizes and streams, whatever the addresses.  Once the allocator is in the same state as a few
periods before, without a driver call in between, all remaining periods would return to this state,
because the allocator is deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of, distinct, stable_order
from allocsim.simulation.plan import StepKind, Steps

CYCLE = 4
"""Number of earlier states to compare with, because blocks may alternate between addresses."""

_CHECK_EVERY = 512
"""Fewest steps between checks of the state; a check takes as long as some tens of steps."""

_LEAST_CHECKS = 8
"""Fewest checks of a sequence of periods."""

_CANDIDATES = 16
"""Number of lengths that are tried."""

_LEAST_PART = 8
"""Periods with less than 1/8 of the steps save less time than their search and checks take."""

_RUN = 32
"""Length of the subsequences whose distances suggest the length of a period; a power of two."""

_HALF = 32
"""Bits of a hash to ignore; then two different subsequences collide with probability 2**-32."""

_Ints = NDArray[np.int64]

_FREES = (StepKind.FREE, StepKind.FREE_REQUEST, StepKind.FREE_COMPLETE)

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Factor of the hash of a step, and base of the hash of a subsequence.  A collision only
adds a useless candidate."""


@dataclass(frozen=True, slots=True)
class Period:
    """Sequence of equal periods of a plan, usually training steps.

    first: number of the first step of the first period.
    """

    first: int
    length: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.count * self.length

    @property
    def stride(self) -> int:
        """Number of steps between comparisons of the allocator's state; a multiple of `length`."""
        apart = min(-(-_CHECK_EVERY // self.length), max(self.count // _LEAST_CHECKS, 1))
        return apart * self.length


def find_period(steps: Steps) -> Period | None:
    """Return the longest sequence of at least three equal periods, or None."""
    if not _may_repeat(steps):
        return None
    columns = _columns_without_addresses(steps)
    codes = _codes(columns)
    best: Period | None = None
    for length in _likely_lengths(codes):
        is_other = codes[:-length] != codes[length:]
        # A sequence of periods cannot be longer than the number of equal steps.
        if best is not None and len(codes) - np.count_nonzero(is_other) <= best.count * best.length:
            continue
        # n equal steps between two differences form n // length + 1 equal periods.
        differs = np.flatnonzero(is_other)
        edges = np.concatenate(([-1], differs, [len(codes) - length]))
        runs = np.diff(edges) - 1
        longest = int(np.argmax(runs))
        count = int(runs[longest]) // length + 1
        if count >= 3 and (best is None or count * length > best.count * best.length):
            best = Period(int(edges[longest]) + 1, length, count)
    if best is None or best.count * best.length * _LEAST_PART < len(codes):
        return None
    return best if _repeats(columns, best) else None


def _may_repeat(steps: Steps) -> bool:
    # In three or more equal periods, at least two thirds of the request sizes occurred before.
    sizes = steps.size.compress(any_of(steps.kind, (StepKind.ALLOC,)))
    again = len(sizes) - len(distinct(sizes))
    return 3 * again * _LEAST_PART >= 2 * len(sizes)


def _columns_without_addresses(steps: Steps) -> tuple[_Ints, _Ints, _Ints]:
    # The age of a block replaces its address: the number of steps since its request.
    at = np.arange(len(steps))
    last_alloc = _last_allocs(steps)
    is_alloc = any_of(steps.kind, (StepKind.ALLOC,))
    is_free = any_of(steps.kind, _FREES) & (last_alloc >= 0)
    # Other steps, and frees of initial blocks, get unique values.
    is_named = is_alloc | is_free
    what = steps.kind.astype(np.int64) + 1
    what[is_alloc], what[~is_named] = 0, -1
    size_or_age = np.where(is_alloc, steps.size, np.where(is_free, at - last_alloc, at))
    stream = np.where(is_named, steps.stream, 0).view(np.int64)
    return what, size_or_age, stream


def _codes(columns: tuple[_Ints, _Ints, _Ints]) -> NDArray[np.uint64]:
    codes = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        codes = (codes + column.view(np.uint64)) * _FACTOR
        codes ^= codes >> np.uint64(32)
    return codes


def _repeats(columns: tuple[_Ints, _Ints, _Ints], period: Period) -> bool:
    rows, next_rows = (
        slice(period.first, period.end - period.length),
        slice(period.first + period.length, period.end),
    )
    return all(np.array_equal(column[rows], column[next_rows]) for column in columns)


def _last_allocs(steps: Steps) -> NDArray[np.int64]:
    # Sorted by address, then by time; the last line of code restores the original order.
    order = stable_order(steps.addr)
    addr = steps.addr.take(order)
    groups = np.zeros(len(steps), dtype=np.int64)
    groups[1:] = np.cumsum(addr[1:] != addr[:-1])
    # A base per address lets one running maximum serve all addresses.
    base = groups * (len(steps) + 1)
    allocs = np.where(any_of(steps.kind.take(order), (StepKind.ALLOC,)), order + 1, 0)
    last_alloc = np.empty(len(steps), dtype=np.int64)
    last_alloc[order] = np.maximum.accumulate(base + allocs) - base - 1
    return last_alloc


def _likely_lengths(codes: NDArray[np.uint64]) -> list[int]:
    # The next occurrence of a subsequence is usually one period later.  If a subsequence occurs
    # more than once in a period, it suggests a shorter length, which `find_period` rejects.
    if len(codes) < _RUN + 1:
        return []
    runs, factor, length = codes, int(_FACTOR), 1
    while length < _RUN:  # combine adjacent hashes into one of twice the length
        runs = runs[:-length] * np.uint64(factor) + runs[length:]
        factor, length = factor * factor % (1 << 64), 2 * length
    runs >>= np.uint64(_HALF)  # shorter keys halve the time of the radix sort
    order = stable_order(runs)
    runs = runs.take(order)
    # Equal hashes are neighbours now; the difference of their positions is the distance.
    times = np.bincount((order[1:] - order[:-1]).compress(runs[1:] == runs[:-1]))
    lengths = np.flatnonzero(times)
    most_common = np.argsort(-times[lengths], kind="stable")[:_CANDIDATES]
    return [int(length) for length in lengths[most_common]]
