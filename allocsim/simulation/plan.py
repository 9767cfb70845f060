"""Plan of a replay: the calls that an allocator runs (steps), as columns.

The recorded entries alloc, free_requested, free_completed and oom become steps; the allocator
causes all other entries.  A plan also contains calls that left no entry, as inferred by
`search.py`, and the recorded results of driver calls.  A replay can skip repeated steps (`Period`)
to save time.  Source: semantics 2.5, 6.2, 6.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of, distinct, stable_order
from allocsim.core import (
    BRIEF,
    FREE,
    FREE_COMPLETED,
    FREE_REQUESTED,
    MALLOC,
    PAGE,
    StepRow,
    step_rows,
)
from allocsim.state import PoolId


class StepKind(IntEnum):
    """Kind of a step of a plan; the first five have the numbers that the core uses.

    ALLOC is a request, and OOM is a request that fails in the recording.  FREE is a free that
    completes at once.  FREE_REQUEST and FREE_COMPLETE are the two parts of a free that waits for
    other streams.
    """

    BRIEF = BRIEF
    """An ALLOC whose FREE is the next step; `Steps.rows` uses this kind, `Steps.kind` does not."""
    ALLOC = MALLOC
    FREE = FREE
    FREE_REQUEST = FREE_REQUESTED
    FREE_COMPLETE = FREE_COMPLETED
    OOM = 5
    DICTATE = 6
    """The simulated driver must place its next segment at the recorded address `addr`."""
    EMPTY_CACHE = 7
    SCOPE = 8
    """Later requests go to the private pool `Plan.pools[size]` (-1: to the default pool)."""
    END_POOL = 9
    """All graph captures and MemPools that use the private pool `Plan.pools[size]` end."""
    DELETE_POOL = 10
    """The MemPool of `Plan.pools[size]` is deleted, and its memory returns to the driver."""
    ROOM = 11
    """From here on, the driver can provide `size` bytes in total (-1: the whole device)."""
    AWAIT = 12
    """The block at `addr` becomes the last to be freed if the allocator waits for all frees."""
    SETTINGS = 13
    """The program sets the allocator's options to the string (conf) `Plan.changes[size]`."""
    FRACTION = 14
    """The program sets the memory fraction `Plan.changes[size]`."""


Step = StepRow
"""Step as plain integers: (kind, addr, size, stream)."""

Planned = tuple[int, int, int, int, int]
"""Step that is inserted into a plan: (kind, entry, addr, size, stream)."""

Change = str | float
"""Value that a program sets at run time: an option string (conf) or a memory fraction."""


@dataclass(frozen=True)
class Steps:
    """Steps of a plan as columns; item i of each column belongs to step i.

    entry: number of the recorded entry that the step comes from.
    addr: recorded address of the block or segment.
    size: bytes, or the number that `StepKind` explains.
    """

    kind: NDArray[np.uint8]
    entry: NDArray[np.int64]
    addr: NDArray[np.uint64]
    size: NDArray[np.int64]
    stream: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.kind)

    def of_program(self) -> Steps:
        """Return the steps without recorded driver results (segment addresses and refusals)."""
        return self.taken(np.flatnonzero(self.is_of_program))

    def taken(self, indices: NDArray[np.intp]) -> Steps:
        return Steps(*(column.take(indices) for column in self._columns()))

    @property
    def is_of_program(self) -> NDArray[np.bool_]:
        return ~any_of(self.kind, (StepKind.DICTATE, StepKind.ROOM, StepKind.AWAIT))

    def without(self, *kinds: StepKind) -> Steps:
        return self.taken(np.flatnonzero(~any_of(self.kind, kinds)))

    def part(self, start: int, stop: int) -> Steps:
        return Steps(*(column[start:stop] for column in self._columns()))

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.kind, self.entry, self.addr, self.size, self.stream

    def rows(self, start: int, stop: int) -> Iterator[Step]:
        """Yield steps [start, stop) as tuples of Python integers, for core/fast_path.py."""
        kind = self.kind_or_brief[start:stop]
        if len(kind) and kind[-1] == StepKind.BRIEF:  # its free is outside the range
            kind = kind.copy()
            kind[-1] = StepKind.ALLOC
        others = (self.addr, self.size, self.stream)
        return step_rows((kind, *(column[start:stop] for column in others)))

    @cached_property
    def empties_cache(self) -> bool:
        return bool(any_of(self.kind, (StepKind.EMPTY_CACHE,)).any())

    @cached_property
    def kind_or_brief(self) -> NDArray[np.uint8]:
        """Kinds of the steps for the core: BRIEF for an ALLOC whose FREE is the next step."""
        at = np.flatnonzero(self.addr[1:] == self.addr[:-1])
        after = at + 1
        is_brief = (
            (self.kind[at] == StepKind.ALLOC)
            & (self.kind[after] == StepKind.FREE)
            & (self.size[after] == self.size[at])
            & (self.stream[after] == self.stream[at])
        )
        kind = self.kind.copy()
        kind[at[is_brief]] = StepKind.BRIEF
        return kind


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of one device, and facts about the device and the program inferred from the recording.

    max_reserved: highest reserved memory after any entry, in bytes.
    capacity: free plus reserved bytes at the first `oom` entry; None without such an entry.
    refused_below: upper bound of the device's bytes, not included: the lowest reserved memory that
        a request refused by the driver would have reached.  None if no such refusal was inferred.
    n_empty_cache: number of inferred empty_cache calls that returned memory to the driver.
    pools: ids of pools; the steps refer to private pools by index.
    limit: memory limit that the program set by a call, in bytes, inferred from its garbage
        collections; None if unknown.
    limits: lowest and highest possible `limit` in bytes; None if the recording determines `limit`.
    is_whole: False if no steps were found that reproduce the recording, so that a replay of `steps`
        differs from the recording.
    is_proved: True if the steps were replayed, and every entry was equal to the recorded one.
    fits: size of the device in bytes that must be assumed to reproduce the recording; None if no
        assumption is needed.
    n_named: number of the `n_empty_cache` calls that the Python stack of an entry names.
    n_either: number of releases of cached memory that are attributed to a full device, although
        calls of empty_cache would explain them too.
    changes: option strings (confs) and memory fractions that the program sets at run time; the
        steps refer to them by index.
    parts_at: first recorded entry from which a replay of `steps` differs; None if no entry differs.
    deleted_pools: (first entry, last entry) of each private pool that the program deleted before
        the end.  The recording does not name these pools; they are inferred.
    """

    steps: Steps
    max_reserved: int
    capacity: int | None
    refused_below: int | None
    n_empty_cache: int
    pools: tuple[PoolId, ...]
    limit: int | None = None
    limits: tuple[int, int] | None = None
    is_whole: bool = True
    is_proved: bool = False
    fits: int | None = None
    n_named: int = 0
    n_either: int = 0
    changes: tuple[Change, ...] = ()
    parts_at: int | None = None
    deleted_pools: tuple[tuple[int, int], ...] = ()

    @property
    def empties_cache(self) -> bool:
        return self.steps.empties_cache

    @property
    def n_deleted(self) -> int:
        return int(np.count_nonzero(self.steps.kind == StepKind.DELETE_POOL))

    @property
    def n_refused_with_room(self) -> int:
        return int(np.count_nonzero((self.steps.kind == StepKind.ROOM) & (self.steps.size >= 0)))

    @property
    def inferred_capacity(self) -> int | None:
        """Bytes of the device, from an `oom` entry or from refused requests; None without them."""
        if self.capacity is not None or self.refused_below is None:
            return self.capacity
        return self.refused_below - PAGE


PlannedAt = tuple[int, Sequence[Planned]]
"""Steps to insert into a plan: (number of steps before them, the steps)."""


def joined(steps: Steps, planned: Sequence[PlannedAt]) -> Steps:
    """Return `steps` with the `planned` steps inserted at their positions."""
    places, added = spread(planned)
    return Steps(
        *(
            np.insert(column, places, np.array(new, dtype=column.dtype))
            for column, new in zip(steps._columns(), added, strict=True)
        )
    )


def spread(planned: Sequence[PlannedAt]) -> tuple[NDArray[np.intp], list[tuple[int, ...]]]:
    """Return the index in a plan at which to insert each planned step, and the steps' columns."""
    columns = list(zip(*(step for _, steps in planned for step in steps), strict=True))
    places = np.repeat(
        np.array([after for after, _ in planned], dtype=np.intp),
        [len(steps) for _, steps in planned],
    )
    return places, columns or [()] * 5


CYCLE = 4
"""Number of earlier states of the allocator to compare with; blocks may alternate addresses."""

_CHECK_EVERY = 512
"""Least number of steps between two comparisons of the allocator's state with its earlier states,
because a comparison takes as long as tens of steps; `_LEAST_CHECKS` may reduce it."""

_LEAST_CHECKS = 8
"""Least number of state comparisons in a sequence of 8 or more periods, even if the comparisons are
then fewer than `_CHECK_EVERY` steps apart."""

_CANDIDATES = 16
"""Number of possible lengths of a period that `find_period` tries."""

_LEAST_PART = 8
"""Divisor: equal periods with less than 1/8 of the plan's steps are ignored, because skipping them
saves little time."""

_RUN = 32
"""Number of steps in a subsequence whose hash is compared; must be a power of two.  The distance
between two equal subsequences suggests the length of a period."""

_HALF = 32
"""Number of low bits of a 64-bit hash to ignore.  The other bits of two different hashes are equal
with a probability of 2**-32."""

_Ints = NDArray[np.int64]

_FREES = (StepKind.FREE, StepKind.FREE_REQUEST, StepKind.FREE_COMPLETE)

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Factor of the hash of a step, and base of the hash of a subsequence.  A collision only
makes `find_period` try a useless length."""


@dataclass(frozen=True, slots=True)
class Period:
    """Equal periods of a plan in a row; a period is usually one iteration of a training loop.

    The steps (allocator calls) of a period occur again in the next period with equal sizes and
    streams, whatever the addresses.  Once the allocator is in the same state as a few periods
    before, without a driver call in between, all remaining periods would return to this state,
    because the allocator is deterministic.

    first: index in the plan of the first step of the first period.
    length, count: number of steps in each period (`stride` is a multiple), and number of periods.
    """

    first: int
    length: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.count * self.length

    @property
    def stride(self) -> int:
        """Number of steps between two of a replay's checks whether the allocator's state recurs."""
        apart = min(-(-_CHECK_EVERY // self.length), max(self.count // _LEAST_CHECKS, 1))
        return apart * self.length


def find_period(steps: Steps) -> Period | None:
    """Return the longest sequence of at least three equal periods, or None."""
    if not _may_repeat(steps):
        return None
    columns = _columns_without_addresses(steps)
    codes = _codes(columns)
    best = longest_period(codes, _likely_lengths(codes))
    return best if best is not None and _repeats(columns, best) else None


def longest_period(codes: NDArray[Any], lengths: Iterable[int]) -> Period | None:
    """Return the longest sequence of at least three equal periods, or None.

    codes: a number for each step of the plan; equal steps have equal numbers.
    lengths: possible lengths of a period, in steps.
    """
    best: Period | None = None
    for length in lengths:
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
    is_long = best is not None and best.count * best.length * _LEAST_PART >= len(codes)
    return best if is_long else None


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
