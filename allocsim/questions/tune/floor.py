"""A lower bound of what a setting will have reserved at its peak, known while its replay runs.

Rule: memory is of kinds, and none ever serves the requests of another: each private pool and
stream, small and large requests (semantics 1.4, 1.5, 5.1), and with max_split_size_mb requests
from there on, which take whole segments (1.6, 1.7).  As long as nothing is given back, a kind keeps
what it has and will hold at once all that lives in it; so the peak is at least the sum, over the
kinds, of the greater of the two.  Nor does a segment serve a request longer than itself: what lives
of such requests comes on top of all shorter segments.

Memory is given back where garbage is collected, where the program empties its cache, and where a
request was refused.  In the first two cases nothing is claimed; a refusal means that reserved
memory was within one segment of the limit, so no more than that is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import any_of, distinct, numbered
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
from allocsim.engine import Prepared
from allocsim.measures import (
    Lifetimes,
    equally_long,
    lifetimes_of,
    rounded_by,
    rounds_of,
    runs_of,
)
from allocsim.trace import Action, Trace, pools_of
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
"""For each option with an effect whether the bound holds where it is set."""

_UNBOUND = tuple(OPTIONS[name].field for name, holds in HOLDS.items() if not holds)
"""Fields of the options without a bound, unless they have their default."""

_SMALL, _LARGE, _OVERSIZE = range(3)

_SORTED = 4  # ways to sort sizes into classes that are kept, each as long as the recording

_LENGTHS = 3  # lengths of request for which shorter segments are counted: more hardly ever help

_Peaks = tuple[tuple[int, int], ...]
"""(length, the most bytes in use at once of requests so long or longer), the first of all."""


class Demand:
    """What a recording asks for, by pool and stream; answers for any setting.

    size: of each entry.  group: its pool and stream, numbered.
    """

    def __init__(self, prepared: Prepared) -> None:
        trace, release = prepared.trace, prepared.release
        # A scope of one stream is known by its segments only, so that requests may be elsewhere.
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
        """For each group, in order, which size came into use or came free (see `_Moves`)."""
        lifetimes = lifetimes_of(prepared.trace)
        rows = np.flatnonzero((lifetimes.start >= 0) & (self.size[lifetimes.start] > 0))
        asked = lifetimes if len(rows) == len(lifetimes) else lifetimes.take(rows)
        order, start = asked.turns, asked.start
        moves = _moves_of(np.searchsorted(self._sizes, self.size[start]), order)
        moment, rounds = asked.moments, rounds_of(prepared)
        if len(self._is_private) == 1:
            return [_once(moves, moment, rounds)]
        group = np.tile(self.group[start], 2)[order]
        own = (np.flatnonzero(group == g) for g in range(len(self._is_private)))
        return [_once(moves[rows], moment[rows], rounds) for rows in own]

    def floor(self, config: AllocatorConfig) -> Floor | None:
        """The bound under `config`; None: there is none."""
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
        """By the number of the kind: its group's, three times, and its class of sizes."""
        size_class = np.where(rounded <= SMALL_SIZE, _SMALL, _LARGE)
        size_class[rounded >= min(oversize, 1 << 62)] = _OVERSIZE
        pages = -(-rounded // ROUND_LARGE) * ROUND_LARGE
        held = np.where(size_class == _OVERSIZE, pages, rounded)
        return {
            number: _peaks_of(moves, held, is_large=number % 3 != _SMALL)
            for number, moves in self._moves_by_kind(size_class).items()
        }

    def _moves_by_kind(self, size_class: NDArray[np.int64]) -> dict[int, _Moves]:
        """Most settings sort the sizes into the same classes, so that the last few are kept."""
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
    """What came and went of one kind of memory.

    rows: in order, twice the number of a size that came into use, one more where it came free.
    present: the numbers of the sizes.
    """

    rows: NDArray[np.int32]
    present: NDArray[np.intp]


def _moves_of(which: NDArray[np.intp], turns: NDArray[np.intp]) -> NDArray[np.int32]:
    """The rows of `_Moves` of blocks whose sizes have these numbers.

    Few numbers, so that a setting's sizes are looked up with their signs in one go.
    """
    starts = (2 * which).astype(np.int32)
    return np.concatenate((starts, starts + 1))[turns]


def _once(
    moves: NDArray[np.int32], moment: NDArray[np.int64], rounds: NDArray[np.int64]
) -> NDArray[np.int32]:
    """The moves that reach every sum that all reach.

    A round that moves what the one before it moved, and leaves as much of each size in use as it
    found, comes to the same sums; so it is left out.  moment: of each move.
    """
    once = np.ones(len(moves), dtype=bool)
    n_kinds = 2 * (int(moves.max(initial=0)) // 2 + 1)  # each size comes and goes
    for first, end, length in equally_long(moment, rounds):
        table = moves[first:end].reshape(-1, length)
        kept = once[first:end].reshape(-1, length)
        for before, last in runs_of((table[1:] == table[:-1]).all(axis=1)):
            came_and_went = np.bincount(table[before], minlength=n_kinds)
            if (came_and_went[::2] == came_and_went[1::2]).all():
                kept[before + 1 : last + 1] = False
    return moves[once]


def _moved(rows: NDArray[np.int32], held: NDArray[np.int64]) -> NDArray[np.int64]:
    """By how many bytes the memory in use changes; held: of each size, what it takes."""
    return np.column_stack((held, -held)).ravel()[rows]


def _peak_of(rows: NDArray[np.int32], held: NDArray[np.int64]) -> int:
    return int(np.cumsum(_moved(rows, held)).max(initial=0))


def _peaks_of(moves: _Moves, held: NDArray[np.int64], *, is_large: bool) -> _Peaks:
    """Of one kind; the lengths, spread over its own, that large requests have.

    held: of each size, the bytes that it takes.
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
    """The numbers that occur, each once; of few numbers and many rows."""
    return np.flatnonzero(np.bincount(which))


def _oversize_from(config: AllocatorConfig, rounded: NDArray[np.int64]) -> int:
    """From which size on requests have memory of their own; UNLIMITED if none have.

    A segment that a smaller request asked for must not reach that size itself, or it would serve
    either, in turn; expandable segments merge beyond any size.
    """
    limit = config.max_split_size
    if limit == UNLIMITED or config.expandable_segments:
        return UNLIMITED
    # Segments of requests below MIN_LARGE_ALLOC are of one size for each pool.
    below = rounded[rounded < limit]
    longest = (
        below[below < end].max(initial=0) for end in (SMALL_SIZE + 1, MIN_LARGE_ALLOC, limit)
    )
    is_apart = all(config.segment_size(int(size)) < limit for size in longest if size)
    return limit if is_apart else UNLIMITED


@dataclass(slots=True)
class _Kind:
    """Memory of one kind while the replay runs; bytes.

    sure: what it will have at least.
    lengths: of requests.
    beside: for each length what will live of requests so long or longer, and the segments shorter
        than that, in which they cannot be.
    """

    sure: int
    lengths: tuple[int, ...]
    beside: list[int]
    held: int = 0

    def grow(self, size: int) -> int:
        """A segment comes; by how much more is sure."""
        before = self.sure
        self.held += size
        for i, length in enumerate(self.lengths):
            if size < length:
                self.beside[i] += size
        self.sure = max(before, self.held, *self.beside)
        return self.sure - before


class Floor:
    """The bound of one replay; reserved: bytes that its peak will reach, as far as known by now."""

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
        """Before the first step."""
        device, limit = allocator.device, allocator.memory_limit
        room = device.free if limit is None else min(device.free, limit)
        self._most = max(room - self._longest, 0)
        self.reserved = min(self._sum, self._most)

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        """After the request of `entry`, for which memory was got."""
        if allocator.calls.frees:
            return  # what was given back may serve another kind; the bound so far holds
        reserved = allocator.reserved_bytes
        added, self._before = reserved - self._before, reserved
        demand = self._demand
        rounded = allocator.round_size(int(demand.size[entry]))
        size_class = _SMALL if rounded <= SMALL_SIZE else _LARGE
        if rounded >= self._oversize:
            size_class = _OVERSIZE
        number = 3 * int(demand.group[entry]) + size_class
        kind = self._kinds.get(number)
        if kind is None:  # of a request that failed when it was recorded
            kind = self._kinds[number] = _Kind(0, (), [])
        self._sum += kind.grow(added)
        self.reserved = min(self._sum, self._most)


def needed_of(trace: Trace) -> Lifetimes:
    """The blocks of a trace for as long as no allocator can do without them."""
    return lifetimes_of(trace, until=Action.FREE_REQUESTED)


class LivePeak:
    """The most bytes in use at once under any rounding, of one recording; no peak undercuts it.

    Blocks from before the recording keep their sizes.
    """

    def __init__(self, lifetimes: Lifetimes, rounds: NDArray[np.int64]) -> None:
        """rounds: as `rounds_of` says."""
        size = np.where(lifetimes.start >= 0, lifetimes.size, -lifetimes.size)
        self._sizes = distinct(size)
        # Once, because a sweep asks for every setting.
        moves = _moves_of(np.searchsorted(self._sizes, size), lifetimes.turns)
        self._moves = _once(moves, lifetimes.moments, rounds)
        self._plain = _peak_of(self._moves, np.abs(self._sizes))
        self._known: dict[tuple[int, ...], int] = {}

    def under(self, config: AllocatorConfig | None) -> int:
        """The peak under the rounding of `config`; None: requests rounded up to 512."""
        if config is None or not config.rounds_to_power2:
            return self._plain
        if config.release.one_division_keeps_size and 1 in config.roundup_power2_divisions:
            return 0  # sizes that stay unrounded are below those of the lifetimes
        divisions = config.roundup_power2_divisions
        if divisions not in self._known:
            is_asked = self._sizes > 0
            rounded = np.abs(self._sizes)
            rounded[is_asked] = rounded_by(config, self._sizes[is_asked])
            self._known[divisions] = _peak_of(self._moves, rounded)
        return self._known[divisions]
