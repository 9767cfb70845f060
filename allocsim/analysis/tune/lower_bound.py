"""Lower bound of a setting's peak reserved bytes, computed while its replay runs.

Memory is divided into kinds, and memory of one kind never serves requests of another.  The kinds
are the combinations of pool and stream with small, large and oversize requests (semantics 1.4,
1.5, 5.1; oversize requests exist with max_split_size_mb and take whole segments, 1.6, 1.7).  Until
memory is released, a kind keeps its segments, and it must eventually hold the peak of its live
requests.  The peak is therefore at least the sum over all kinds of the larger of the two.  Further,
a segment never serves a request longer than itself, so the live requests above a length need memory
beside all shorter segments.

Memory is released by garbage collection, by empty_cache() and after a refused request.  There is no
bound in the first two cases.  A refusal implies that reserved memory was within one segment of the
limit, so the bound is capped at that value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of, distinct, numbered
from allocsim.core import (
    MIN_LARGE_ALLOC,
    OPTIONS,
    PAGE,
    ROUND_LARGE,
    SMALL_BUFFER,
    SMALL_SIZE,
    UNLIMITED,
    AllocatorConfig,
    CachingAllocator,
)
from allocsim.metrics import (
    Lifetimes,
    equal_periods,
    lifetimes_of,
    period_starts,
    rounded_by,
    true_ranges,
)
from allocsim.recording import Action, Trace, pools_of
from allocsim.replaying import Prepared
from allocsim.units import round_up

__all__ = ["HOLDS", "Demand", "Floor", "LivePeak", "needed_of"]

HOLDS: dict[str, bool] = {
    "max_split_size_mb": True,
    "max_non_split_rounding_mb": True,
    "large_segment_size_mb": True,
    "roundup_power2_divisions": True,
    "expandable_segments": True,
    "per_process_memory_fraction": True,
    "throw_on_cudamalloc_oom": True,
    "graph_capture_record_stream_reuse": True,
    "garbage_collection_threshold": False,
    # Too short a reserve of address space refuses a request far from any limit.
    "expandable_segments_reserve": False,
}
"""Options with an effect on memory, with True if the bound holds under any value of it."""

_UNBOUND = tuple(OPTIONS[name].field for name, holds in HOLDS.items() if not holds)
"""Fields of the options that must have their default for the bound to hold."""

_SMALL, _LARGE, _OVERSIZE = range(3)

_SORTED = 4  # cached divisions into size classes; each is as long as the recording

_LENGTHS = 3  # request lengths for which shorter segments are counted; more rarely help

_Peaks = tuple[tuple[int, int], ...]
"""(length, peak live bytes of requests of at least this length); the first length is 0."""


class Demand:
    """Requests of a recording by pool and stream, from which bounds for any setting follow.

    size: size of each entry in bytes.
    group: number of each entry's combination of pool and stream.
    """

    def __init__(self, prepared: Prepared) -> None:
        trace, release = prepared.trace, prepared.release
        # A pool scope of one stream is inferred from segments only, so the pool of a request is
        # uncertain.
        is_unsure = release.scope_by_stream and bool(prepared.plan.pools)
        self._is_bound = not (prepared.start or prepared.plan.empties_cache or is_unsure)
        self.size = trace.size
        pool = pools_of(trace).number.astype(np.int64)
        _, stream = numbered(trace.stream)
        groups, self.group = numbered(pool << 32 | stream)
        self._is_private = (groups >> 32 >= 0).tolist()
        self._maps_private = release.expandable_private_pools
        asked = trace.size.compress(any_of(trace.action, (Action.ALLOC, Action.OOM)))
        self._sizes = distinct(asked[asked > 0])
        self._moves = self._moves_of_groups(prepared)
        self._sorted: dict[bytes, dict[int, _Moves]] = {}
        self._rounded: dict[tuple[int, ...], NDArray[np.int64]] = {}
        self._known: dict[tuple[tuple[int, ...], int], dict[int, _Peaks]] = {}

    def _moves_of_groups(self, prepared: Prepared) -> list[NDArray[np.int32]]:
        """Return the allocations and frees of each group in order, encoded as in `_Moves`."""
        lifetimes = lifetimes_of(prepared.trace)
        rows = np.flatnonzero((lifetimes.start >= 0) & (self.size[lifetimes.start] > 0))
        asked = lifetimes if len(rows) == len(lifetimes) else lifetimes.take(rows)
        order, start = asked.turns, asked.start
        moves = _moves_of(np.searchsorted(self._sizes, self.size[start]), order)
        moment, rounds = asked.moments, period_starts(prepared)
        if len(self._is_private) == 1:
            return [_once(moves, moment, rounds)]
        group = np.tile(self.group[start], 2)[order]
        own = (np.flatnonzero(group == g) for g in range(len(self._is_private)))
        return [_once(moves[rows], moment[rows], rounds) for rows in own]

    def floor(self, config: AllocatorConfig) -> Floor | None:
        """Return the bound under `config`; None if the bound does not hold there."""
        fresh = AllocatorConfig(config.release)
        is_unbound = any(getattr(config, name) != getattr(fresh, name) for name in _UNBOUND)
        is_odd = config.large_segment_size % PAGE != 0
        if not self._is_bound or is_unbound or is_odd or not len(self._sizes):
            return None
        divisions = config.roundup_power2_divisions
        if divisions not in self._rounded:
            self._rounded[divisions] = rounded_by(config, self._sizes)
        rounded = self._rounded[divisions]
        oversize = _oversize_from(config, rounded)
        if (divisions, oversize) not in self._known:
            peaks = self._peaks(rounded, oversize)
            self._known[divisions, oversize] = peaks
        known = self._known[divisions, oversize]
        kinds = {number: self._kind(config, number, peaks) for number, peaks in known.items()}
        longest = max(config.segment_size(int(rounded.max())), config.large_segment_size)
        if config.expandable_segments:
            longest = round_up(longest, config.large_segment_size)
        return Floor(self, kinds, oversize, longest)

    def _peaks(self, rounded: NDArray[np.int64], oversize: int) -> dict[int, _Peaks]:
        """Return the peaks by kind; a kind's number is 3 * group + size class."""
        size_class = np.where(rounded <= SMALL_SIZE, _SMALL, _LARGE)
        size_class[rounded >= min(oversize, 1 << 62)] = _OVERSIZE
        pages = -(-rounded // ROUND_LARGE) * ROUND_LARGE
        held = np.where(size_class == _OVERSIZE, pages, rounded)
        return {
            number: _peaks_of(moves, held, is_large=number % 3 != _SMALL)
            for number, moves in self._moves_by_kind(size_class).items()
        }

    def _moves_by_kind(self, size_class: NDArray[np.int64]) -> dict[int, _Moves]:
        """Return the moves of each kind; the last few results are cached.

        Most settings divide the sizes into the same classes.
        """
        key = size_class.tobytes()
        if key not in self._sorted:
            if len(self._sorted) == _SORTED:
                self._sorted.pop(next(iter(self._sorted)))
            self._sorted[key] = found = {}
            for group, moves in enumerate(self._moves):
                for each in np.unique(size_class[_present(moves >> 1)]).tolist():
                    own = moves[np.repeat(size_class == each, 2)[moves]]
                    found[3 * group + each] = _Moves(own, _present(own >> 1))
        return self._sorted[key]

    def _kind(self, config: AllocatorConfig, number: int, peaks: _Peaks) -> _Kind:
        group, size_class = divmod(number, 3)
        maps = config.expandable_segments and (self._maps_private or not self._is_private[group])
        handle = config.large_segment_size if maps and size_class != _SMALL else SMALL_BUFFER
        longer = () if maps else peaks[1:]
        return _Kind(
            sure=round_up(peaks[0][1], handle),
            lengths=tuple(length for length, _ in longer),
            beside=[peak for _, peak in longer],
        )


class _Moves(NamedTuple):
    """Allocations and frees of one kind of memory.

    rows: 2 * s for an allocation and 2 * s + 1 for a free of size number s, in order.
    present: size numbers that occur.
    """

    rows: NDArray[np.int32]
    present: NDArray[np.intp]


def _moves_of(which: NDArray[np.intp], turns: NDArray[np.intp]) -> NDArray[np.int32]:
    """Return the rows of `_Moves` for blocks with the size numbers `which`.

    The encoding includes the sign, so that a setting's signed sizes are found by one table lookup.
    """
    starts = (2 * which).astype(np.int32)
    return np.concatenate((starts, starts + 1))[turns]


def _once(
    moves: NDArray[np.int32], moment: NDArray[np.int64], rounds: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Drop repeated rounds that reach no new sum.

    A round that equals the previous one and frees as many blocks of each size as it allocates
    reaches the same sums again.
    moment: entry of each move.
    rounds: see `period_starts`.
    """
    once = np.ones(len(moves), dtype=bool)
    n_kinds = 2 * (int(moves.max(initial=0)) // 2 + 1)  # an allocation and a free of each size
    for first, end, length in equal_periods(moment, rounds):
        table = moves[first:end].reshape(-1, length)
        kept = once[first:end].reshape(-1, length)
        for before, last in true_ranges((table[1:] == table[:-1]).all(axis=1)):
            came_and_went = np.bincount(table[before], minlength=n_kinds)
            if (came_and_went[::2] == came_and_went[1::2]).all():
                kept[before + 1 : last + 1] = False
    return moves[once]


def _moved(rows: NDArray[np.int32], held: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the change of live bytes of each row; `held` has the bytes taken by each size."""
    return np.column_stack((held, -held)).ravel()[rows]


def _peak_of(rows: NDArray[np.int32], held: NDArray[np.int64]) -> int:
    return int(np.cumsum(_moved(rows, held)).max(initial=0))


def _peaks_of(moves: _Moves, held: NDArray[np.int64], *, is_large: bool) -> _Peaks:
    """Return the peaks of one kind, for a few lengths spread over the lengths of its requests.

    held: bytes taken by each size.
    """
    moved = _moved(moves.rows, held)
    peaks = [(0, int(np.cumsum(moved).max(initial=0)))]
    own = distinct(held[moves.present])[1:]
    if is_large and len(own):
        for length in own[np.linspace(len(own) - 1, 0, _LENGTHS + 1).astype(int)[-2::-1]].tolist():
            moved = moved[np.abs(moved) >= length]
            peaks.append((length, int(np.cumsum(moved).max(initial=0))))
    return tuple(peaks)


def _present(which: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
    """Return the distinct numbers; fast for few numbers and many rows."""
    return np.flatnonzero(np.bincount(which))


def _oversize_from(config: AllocatorConfig, rounded: NDArray[np.int64]) -> int:
    """Return the size from which requests use separate segments; UNLIMITED if there is none.

    If a segment of a smaller request reaches the limit itself, it may serve oversize requests too,
    so the kinds are not separate.  Expandable segments can grow to any size.
    """
    limit = config.max_split_size
    if limit == UNLIMITED or config.expandable_segments:
        return UNLIMITED
    # Segments of requests below MIN_LARGE_ALLOC have one size per pool.
    below = rounded[rounded < limit]
    longest = (
        below[below < end].max(initial=0) for end in (SMALL_SIZE + 1, MIN_LARGE_ALLOC, limit)
    )
    is_apart = all(config.segment_size(int(size)) < limit for size in longest if size)
    return limit if is_apart else UNLIMITED


@dataclass(slots=True)
class _Kind:
    """State of one kind of memory during the replay; bytes.

    sure: lower bound of the kind's reserved bytes at the peak.
    lengths: request lengths for which `beside` is kept.
    beside: for each length, peak live bytes of requests of at least this length, plus the bytes of
        shorter segments, which cannot hold them.
    held: reserved bytes so far.
    """

    sure: int
    lengths: tuple[int, ...]
    beside: list[int]
    held: int = 0

    def grow(self, size: int) -> int:
        """Add a segment and return the increase of the lower bound."""
        before = self.sure
        self.held += size
        for i, length in enumerate(self.lengths):
            if size < length:
                self.beside[i] += size
        self.sure = max(before, self.held, *self.beside)
        return self.sure - before


class Floor:
    """Lower bound of one replay's peak.

    reserved: bytes that the peak will at least reach.
    """

    def __init__(
        self, demand: Demand, kinds: dict[int, _Kind], oversize: int, longest: int
    ) -> None:
        self._demand = demand
        self._kinds = kinds
        self._oversize = oversize
        self._longest = longest
        self._sum = sum(kind.sure for kind in kinds.values())
        self._before = self._most = self.reserved = 0

    def began(self, allocator: CachingAllocator) -> None:
        """Set the initial bound before the first step."""
        device, limit = allocator.device, allocator.memory_limit
        room = device.free if limit is None else min(device.free, limit)
        self._most = max(room - self._longest, 0)
        self.reserved = min(self._sum, self._most)

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        """Raise the bound after the request of `entry` obtained memory from the driver."""
        if allocator.calls.frees:
            return  # released memory may serve another kind; the bound so far stays valid
        reserved = allocator.reserved_bytes
        added, self._before = reserved - self._before, reserved
        demand = self._demand
        rounded = allocator.round_size(int(demand.size[entry]))
        size_class = _SMALL if rounded <= SMALL_SIZE else _LARGE
        if rounded >= self._oversize:
            size_class = _OVERSIZE
        number = 3 * int(demand.group[entry]) + size_class
        kind = self._kinds.get(number)
        if kind is None:  # the request failed in the recording
            kind = self._kinds[number] = _Kind(0, (), [])
        self._sum += kind.grow(added)
        self.reserved = min(self._sum, self._most)


def needed_of(trace: Trace) -> Lifetimes:
    """Return the blocks of a trace, each until its free is requested.

    No allocator can reuse their memory earlier.
    """
    return lifetimes_of(trace, until=Action.FREE_REQUESTED)


class LivePeak:
    """Peak of live bytes of one recording under any rounding, a lower bound of every peak.

    Blocks from before the recording keep their sizes.  `rounds` is from `period_starts`.
    """

    def __init__(self, lifetimes: Lifetimes, rounds: NDArray[np.int64]) -> None:
        # The sizes of older blocks are stored negated, since they are not rounded again.
        size = np.where(lifetimes.start >= 0, lifetimes.size, -lifetimes.size)
        self._sizes = distinct(size)
        # Repeated rounds are dropped once here, since a sweep computes the peak for each setting.
        moves = _moves_of(np.searchsorted(self._sizes, size), lifetimes.turns)
        self._moves = _once(moves, lifetimes.moments, rounds)
        self._plain = _peak_of(self._moves, np.abs(self._sizes))
        self._known: dict[tuple[int, ...], int] = {}

    def under(self, config: AllocatorConfig | None) -> int:
        """Return the peak under the rounding of `config`; None rounds requests up to 512."""
        if config is None or not config.rounds_to_power2:
            return self._plain
        if config.release.one_division_keeps_size and 1 in config.roundup_power2_divisions:
            return 0  # unrounded sizes may be below the rounded sizes of the lifetimes
        divisions = config.roundup_power2_divisions
        if divisions not in self._known:
            is_asked = self._sizes > 0
            rounded = np.abs(self._sizes)
            rounded[is_asked] = rounded_by(config, self._sizes[is_asked])
            self._known[divisions] = _peak_of(self._moves, rounded)
        return self._known[divisions]
