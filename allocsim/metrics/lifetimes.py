"""Lifetimes of blocks, periods (usually training steps) and request sizes of a recording.

Row i of the columns describes one block, live from entry `start[i]` (-1: before the recording) up
to, but not including, entry `end[i]`.  By default a block lives until its free completes; for a
lower bound of memory, only until its free is requested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of, stable_order
from allocsim.core import MIN_BLOCK_SIZE, MIN_LARGE_ALLOC, SMALL_SIZE
from allocsim.recording import Action, Trace, Turn
from allocsim.replaying import Prepared, RequestedSizes, sizes_at_start, sizes_in, sizes_present
from allocsim.state import ALLOCATED, PENDING


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Lifetimes of blocks; columns are read-only.

    start, end: entry of the allocation and of the end of each block's life.
    size: bytes of the request, rounded up to a multiple of 512.
    in_order_of: other lifetimes whose starts and ends have the same order, to save sorting; None if
        no such lifetimes are known.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    size: NDArray[np.int64]
    in_order_of: Lifetimes | None = None

    def __post_init__(self) -> None:
        for column in (self.start, self.end, self.size):
            column.flags.writeable = False

    def __len__(self) -> int:
        return len(self.start)

    @property
    def peak_bytes(self) -> int:
        """Peak of the live bytes; no allocator needs less memory."""
        return self._peak_of(self.size)

    @property
    def peak_entry(self) -> int:
        """Entry at which the live bytes reach their peak; -1 for the start of the recording."""
        moved = np.concatenate((self.size, -self.size))[self.turns]
        return int(self.moments[np.cumsum(moved).argmax()]) if len(moved) else -1

    def peak_bytes_among(self, is_one: NDArray[np.bool_]) -> int:
        return self._peak_of(np.where(is_one, self.size, 0))

    def _peak_of(self, size: NDArray[np.int64]) -> int:
        moved = np.concatenate((size, -size))
        return int(np.cumsum(moved[self.turns]).max(initial=0))

    @cached_property
    def turns(self) -> NDArray[np.intp]:
        """Starts and ends of all blocks as numbers, in order of their entries.

        With n blocks, number i is the start and number i + n the end of the block in row i.  At the
        same entry, ends come first.
        """
        if self.in_order_of is not None:
            return self.in_order_of.turns
        turn = 2 * np.concatenate((self.start, self.end))
        turn[: len(self)] += 1
        # Blocks from before the recording, and blocks live at its end, get distinct keys, so that
        # the sort is fast.
        older = np.flatnonzero(self.start < 0)
        turn[older] = np.arange(-len(older), 0)
        last = np.flatnonzero(turn == turn.max(initial=0))
        turn[last] += np.arange(len(last))
        return stable_order(turn)

    @property
    def moments(self) -> NDArray[np.int64]:
        moments: NDArray[np.int64] = np.concatenate((self.start, self.end))[self.turns]
        return moments

    def take(self, rows: NDArray[np.intp]) -> Lifetimes:
        return Lifetimes(self.start[rows], self.end[rows], self.size[rows])


_WHOLE: WeakKeyDictionary[Trace, dict[Action, Lifetimes]] = WeakKeyDictionary()
"""Cache of the lifetimes of whole traces, keyed by trace and by the action that ends a life."""


def lifetimes_of(
    trace: Trace,
    stop: int | None = None,
    answered: Sequence[int] = (),
    *,
    until: Action = Action.FREE_COMPLETED,
) -> Lifetimes:
    """Return the lifetimes of a trace's blocks.

    stop: number of entries to consider; None for all.
    answered: `oom` entries whose request succeeds in the replay.
    until: action that ends a life: FREE_COMPLETED, or FREE_REQUESTED for a lower bound.
    """
    if stop in (None, len(trace)) and not len(answered):
        known = _WHOLE.setdefault(trace, {})
        if until not in known:
            known[until] = _whole_lifetimes(trace, until)
        return known[until]
    return _lifetimes_of(trace, len(trace) if stop is None else stop, answered, until)


def _whole_lifetimes(trace: Trace, until: Action) -> Lifetimes:
    tiles = trace.tiles
    waits = any_of(trace.by_address.kind, (Turn.FREE_REQUESTED, Turn.FREE_COMPLETED)).any()
    waits |= tiles is None or tiles.is_pending.any()
    if until != Action.FREE_REQUESTED or waits:
        return _lifetimes_of(trace, len(trace), (), until)
    # No free waits for a stream, so both kinds of lifetimes have the same order.
    whole = lifetimes_of(trace)
    return Lifetimes(whole.start, whole.end - (whole.end < len(trace)), whole.size, whole)


def _lifetimes_of(trace: Trace, stop: int, answered: Sequence[int], until: Action) -> Lifetimes:
    turns = trace.by_address
    is_free = any_of(turns.kind, (Turn.FREE,))
    # The two entries of a free that does not wait are adjacent.
    order = turns.entry - is_free if until == Action.FREE_REQUESTED else turns.entry
    counts = (is_free | any_of(turns.kind, (Turn.ALLOC, until))) & (order < stop)
    order, addr, kind = (each.compress(counts) for each in (order, turns.addr, turns.kind))
    is_alloc = any_of(kind, (Turn.ALLOC,))
    is_ended = np.zeros(len(order), dtype=bool)
    is_ended[:-1] = is_alloc[:-1] & ~is_alloc[1:] & (addr[1:] == addr[:-1])
    ends_older = ~is_alloc
    ends_older[1:] &= ~is_ended[:-1]
    first = np.flatnonzero(is_alloc)
    born, older = order.take(first), order.compress(ends_older)
    end = np.where(is_ended.take(first), order.take(first + 1, mode="clip"), stop)
    outlives = [ALLOCATED] if until == Action.FREE_REQUESTED else [ALLOCATED, PENDING]
    kept = (
        _kept(trace, order.compress(is_alloc & ~is_ended), outlives) if stop == len(trace) else []
    )
    brief = np.array(answered, dtype=np.int64)
    asked = np.maximum(trace.size.take(np.concatenate((born, older))), 1)
    size = (asked + (MIN_BLOCK_SIZE - 1)) & -MIN_BLOCK_SIZE
    return Lifetimes(
        np.concatenate((born, np.full(len(older) + len(kept), -1), brief)),
        np.concatenate((end, older, np.full(len(kept), stop), brief + 1)),
        np.concatenate((size, np.array(kept, dtype=np.int64), trace.size[brief])),
    )


def _kept(trace: Trace, unfreed: NDArray[np.intp], states: Sequence[str]) -> list[int]:
    younger = set(trace.addr[unfreed].tolist())
    return [
        block.size
        for segment in trace.segments
        for block in segment.blocks
        if block.state in states and block.address not in younger
    ]


_Ints = NDArray[np.int64]


def period_starts(prepared: Prepared) -> _Ints:
    period = prepared.period
    if period is None:
        return np.zeros(0, dtype=np.int64)
    entries: _Ints = prepared.free_plan.steps.entry[period.first : period.end : period.stride]
    return entries


class EqualPeriods(NamedTuple):
    """Consecutive periods (usually training steps), each with `length` rows of a table.

    The rows of the table are sorted by entry.

    first, end: first row of the first period, and the row after the last period.
    """

    first: int
    end: int
    length: int


def equal_periods(moment: _Ints, periods: _Ints) -> Iterator[EqualPeriods]:
    """Yield each sequence of consecutive periods that have equally many rows of a table.

    moment: entry of each row of the table, ascending.
    periods: first entry of each period, usually a training step.
    """
    starts = np.searchsorted(moment, periods)
    lengths = np.diff(starts)
    for first, last in true_ranges((lengths[1:] == lengths[:-1]) & (lengths[1:] > 0)):
        yield EqualPeriods(int(starts[first]), int(starts[last + 1]), int(lengths[first]))


def true_ranges(mask: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield (first index, end) of each maximal range of True values."""
    changes = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    yield from zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True)


@dataclass(frozen=True)
class Sizes:
    """Request sizes and peaks of one device of a recording, in bytes.

    counts: distinct request sizes before rounding, ascending, each with its number of requests.
    present: sizes of the segments and blocks from before the first entry.
    peak_live: peak of the live requests, each rounded up to 512.
    peak_middle: peak of the live requests above 1 MiB and below 10 MiB, each rounded up to 512.
        Such requests share segments of large_segment_size_mb.
    recorded_peak: highest reserved memory after any entry of the recording.
    living: request sizes of live blocks from before the first entry.
    """

    counts: tuple[tuple[int, int], ...]
    present: tuple[int, ...]
    peak_live: int
    peak_middle: int
    recorded_peak: int
    living: tuple[int, ...] = ()

    @cached_property
    def asked(self) -> RequestedSizes:
        """Sizes of recorded requests, and of blocks that were live before the first entry."""
        counted = np.fromiter((size for size, _ in self.counts), np.int64, len(self.counts))
        return RequestedSizes(np.concatenate((counted, self.living)).astype(np.int64), self.present)


def sizes_of(prepared: Prepared) -> Sizes:
    size, count = np.unique(sizes_in(prepared.trace), return_counts=True)
    lifetimes = lifetimes_of(prepared.trace)
    is_middle = (lifetimes.size > SMALL_SIZE) & (lifetimes.size < MIN_LARGE_ALLOC)
    return Sizes(
        counts=tuple(zip(size.tolist(), count.tolist(), strict=True)),
        present=sizes_present(prepared),
        living=sizes_at_start(prepared),
        peak_live=lifetimes.peak_bytes,
        peak_middle=lifetimes.peak_bytes_among(is_middle),
        recorded_peak=prepared.plan.max_reserved,
    )


def merged(parts: tuple[Sizes, ...]) -> Sizes:
    """Return the combined sizes of several devices.

    The counts of equal sizes are added.  Each peak is the highest peak of any device.
    """
    counts: Counter[int] = Counter()
    for part in parts:
        counts.update(dict(part.counts))
    return Sizes(
        counts=tuple(sorted(counts.items())),
        present=tuple(sorted({size for part in parts for size in part.present})),
        living=tuple(sorted({size for part in parts for size in part.living})),
        peak_live=max(part.peak_live for part in parts),
        peak_middle=max(part.peak_middle for part in parts),
        recorded_peak=max(part.recorded_peak for part in parts),
    )
