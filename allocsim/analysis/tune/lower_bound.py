"""Lower bound of a replay's peak reserved memory, computed while the replay runs.

A replay can stop as soon as this bound exceeds the peak of a finished setting.

Requests of the same pool, stream and size class (small, large or oversize) share segments, which
serve no other requests (semantics.md, sections 1.4 and 1.7).  The bound is a sum over these groups
of requests.  Each group adds the largest of these numbers:

- the bytes that it has reserved so far;
- its peak of live requests in the whole recording;
- for a threshold (a request size): the peak of its live requests of at least this size, plus its
  segments that are smaller than the threshold, since a segment cannot serve a larger request.

Garbage collection and empty_cache() release memory, so there is no bound for replays with them.  A
request that the driver refuses also releases cached memory, but only when reserved memory is within
one segment of the limit.  The bound is therefore at most the limit minus one segment.
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
    pack,
    period_starts,
    true_ranges,
)
from allocsim.recording import Action, Trace, pools_of
from allocsim.replaying import Prepared, rounded_by
from allocsim.units import round_up

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
    # With a small reserve of address space, requests fail far below any limit of memory.
    "expandable_segments_reserve": False,
}
"""Dictionary from each option that affects memory to True if the bound holds for all its values."""

_UNBOUND = tuple(OPTIONS[name].field for name, holds in HOLDS.items() if not holds)
"""Fields of `AllocatorConfig` that must have their default value for the bound to hold."""

_SMALL, _LARGE, _OVERSIZE = range(3)

_SORTED = 4  # number of cached results of `_changes_by_class`; each is as long as the recording

_THRESHOLDS = 3  # number of thresholds per group of requests; more would rarely raise the bound

_Peaks = tuple[tuple[int, int], ...]
"""Pairs (threshold, peak of live bytes in requests of at least this size); first threshold: 0."""


class Demand:
    """Requests of a recording, prepared to compute a lower bound under many settings.

    size: bytes of each entry of the recording.
    group: index of the (pool, stream) pair of each entry.
    """

    def __init__(self, prepared: Prepared) -> None:
        trace, release = prepared.trace, prepared.release
        # If begin_allocate_to_pool() applies to one stream only, the pool of a request is inferred
        # from segments and uncertain.
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
        self._changes = self._changes_of_groups(prepared)
        self._sorted: dict[bytes, dict[int, _Changes]] = {}
        self._rounded: dict[tuple[int, ...], NDArray[np.int64]] = {}
        self._known: dict[tuple[tuple[int, ...], int], dict[int, _Peaks]] = {}

    def _changes_of_groups(self, prepared: Prepared) -> list[NDArray[np.int32]]:
        lifetimes = lifetimes_of(prepared.trace)
        rows = np.flatnonzero((lifetimes.start >= 0) & (self.size[lifetimes.start] > 0))
        asked = lifetimes if len(rows) == len(lifetimes) else lifetimes.take(rows)
        order, start = asked.turns, asked.start
        changes = _changes_of(np.searchsorted(self._sizes, self.size[start]), order)
        moment, periods = asked.moments, period_starts(prepared)
        if len(self._is_private) == 1:
            return [_without_equal_periods(changes, moment, periods)]
        group = np.tile(self.group[start], 2)[order]
        own = (np.flatnonzero(group == g) for g in range(len(self._is_private)))
        return [_without_equal_periods(changes[rows], moment[rows], periods) for rows in own]

    def floor(self, config: AllocatorConfig) -> Floor | None:
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
        classes = {number: self._class_of(config, number, peaks) for number, peaks in known.items()}
        largest = max(config.segment_size(int(rounded.max())), config.large_segment_size)
        if config.expandable_segments:
            largest = round_up(largest, config.large_segment_size)
        return Floor(self, classes, oversize, largest)

    def _peaks(self, rounded: NDArray[np.int64], oversize: int) -> dict[int, _Peaks]:
        # The keys of the result are 3 * group + size class.
        size_class = np.where(rounded <= SMALL_SIZE, _SMALL, _LARGE)
        size_class[rounded >= min(oversize, 1 << 62)] = _OVERSIZE
        pages = -(-rounded // ROUND_LARGE) * ROUND_LARGE
        held = np.where(size_class == _OVERSIZE, pages, rounded)
        return {
            number: _peaks_of(changes, held, is_large=number % 3 != _SMALL)
            for number, changes in self._changes_by_class(size_class).items()
        }

    def _changes_by_class(self, size_class: NDArray[np.int64]) -> dict[int, _Changes]:
        key = size_class.tobytes()
        if key not in self._sorted:
            if len(self._sorted) == _SORTED:
                self._sorted.pop(next(iter(self._sorted)))
            self._sorted[key] = found = {}
            for group, changes in enumerate(self._changes):
                for each in np.unique(size_class[_present(changes >> 1)]).tolist():
                    own = changes[np.repeat(size_class == each, 2)[changes]]
                    found[3 * group + each] = _Changes(own, _present(own >> 1))
        return self._sorted[key]

    def _class_of(self, config: AllocatorConfig, number: int, peaks: _Peaks) -> _RequestClass:
        group, size_class = divmod(number, 3)
        maps = config.expandable_segments and (self._maps_private or not self._is_private[group])
        handle = config.large_segment_size if maps and size_class != _SMALL else SMALL_BUFFER
        larger = () if maps else peaks[1:]
        return _RequestClass(
            bound=round_up(peaks[0][1], handle),
            thresholds=tuple(threshold for threshold, _ in larger),
            needed=[peak for _, peak in larger],
        )


class _Changes(NamedTuple):
    # `rows` encodes allocations and frees in order of time: 2 * s for an allocation of the size
    # with index s, and 2 * s + 1 for its free.  `_signed` looks up their sizes under a setting.
    rows: NDArray[np.int32]
    present: NDArray[np.intp]  # indices of the sizes that occur


def _changes_of(which: NDArray[np.intp], turns: NDArray[np.intp]) -> NDArray[np.int32]:
    # `turns` are positions that sort all allocations, followed by all frees, by time.
    starts = (2 * which).astype(np.int32)
    return np.concatenate((starts, starts + 1))[turns]


def _without_equal_periods(
    changes: NDArray[np.int32], moment: NDArray[np.int64], periods: NDArray[np.int64]
) -> NDArray[np.int32]:
    # If a period equals the previous period, and the latter frees as many blocks of each size as it
    # allocates, then it reaches the same peaks of live bytes and is dropped.
    once = np.ones(len(changes), dtype=bool)
    n_codes = 2 * (int(changes.max(initial=0)) // 2 + 1)  # two codes for each size
    for first, end, length in equal_periods(moment, periods):
        table = changes[first:end].reshape(-1, length)
        kept = once[first:end].reshape(-1, length)
        for before, last in true_ranges((table[1:] == table[:-1]).all(axis=1)):
            came_and_went = np.bincount(table[before], minlength=n_codes)
            if (came_and_went[::2] == came_and_went[1::2]).all():
                kept[before + 1 : last + 1] = False
    return changes[once]


def _signed(rows: NDArray[np.int32], held: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.column_stack((held, -held)).ravel()[rows]


def _peak_of(rows: NDArray[np.int32], held: NDArray[np.int64]) -> int:
    return int(np.cumsum(_signed(rows, held)).max(initial=0))


def _peaks_of(changes: _Changes, held: NDArray[np.int64], *, is_large: bool) -> _Peaks:
    # Returns pairs (request size, peak of live bytes in requests of at least this size).
    signed = _signed(changes.rows, held)
    peaks = [(0, int(np.cumsum(signed).max(initial=0)))]
    own = distinct(held[changes.present])[1:]
    if is_large and len(own):
        picked = np.linspace(len(own) - 1, 0, _THRESHOLDS + 1).astype(int)[-2::-1]
        for threshold in own[picked].tolist():
            signed = signed[np.abs(signed) >= threshold]
            peaks.append((threshold, int(np.cumsum(signed).max(initial=0))))
    return tuple(peaks)


def _present(which: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
    return np.flatnonzero(np.bincount(which))


def _oversize_from(config: AllocatorConfig, rounded: NDArray[np.int64]) -> int:
    # Returns the size from which requests are oversize and have separate segments.  There is no
    # such size if the segment of a smaller request can reach max_split_size_mb, since it may then
    # serve oversize requests.  Expandable segments can grow to any size.
    limit = config.max_split_size
    if limit == UNLIMITED or config.expandable_segments:
        return UNLIMITED
    # In each pool, all segments of requests below MIN_LARGE_ALLOC have the same size.
    below = rounded[rounded < limit]
    largest = (
        below[below < end].max(initial=0) for end in (SMALL_SIZE + 1, MIN_LARGE_ALLOC, limit)
    )
    is_apart = all(config.segment_size(int(size)) < limit for size in largest if size)
    return limit if is_apart else UNLIMITED


@dataclass(slots=True)
class _RequestClass:  # requests of one pool, stream and size class
    bound: int  # lower bound of the reserved bytes at the peak
    thresholds: tuple[int, ...]  # request sizes, ascending
    # For each threshold: peak live bytes of requests of at least this size, plus the bytes of the
    # segments that are too small for them.
    needed: list[int]
    held: int = 0  # bytes reserved so far

    def grow(self, size: int) -> int:
        before = self.bound
        self.held += size
        for i, threshold in enumerate(self.thresholds):
            if size < threshold:
                self.needed[i] += size
        self.bound = max(before, self.held, *self.needed)
        return self.bound - before


class Floor:
    """Lower bound of a replay's peak reserved memory, in bytes; it rises while the replay runs."""

    def __init__(
        self, demand: Demand, classes: dict[int, _RequestClass], oversize: int, largest: int
    ) -> None:
        self._demand = demand
        self._classes = classes
        self._oversize = oversize
        self._largest = largest
        self._sum = sum(each.bound for each in classes.values())
        self._before = self._most = self.reserved = 0

    def began(self, allocator: CachingAllocator) -> None:
        device, limit = allocator.device, allocator.memory_limit
        room = device.free if limit is None else min(device.free, limit)
        self._most = max(room - self._largest, 0)
        self.reserved = min(self._sum, self._most)

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        if allocator.calls.frees:
            return  # released memory may serve another class; the bound so far stays valid
        reserved = allocator.reserved_bytes
        added, self._before = reserved - self._before, reserved
        demand = self._demand
        rounded = allocator.round_size(int(demand.size[entry]))
        size_class = _SMALL if rounded <= SMALL_SIZE else _LARGE
        if rounded >= self._oversize:
            size_class = _OVERSIZE
        number = 3 * int(demand.group[entry]) + size_class
        found = self._classes.get(number)
        if found is None:  # the request failed in the recording
            found = self._classes[number] = _RequestClass(0, (), [])
        self._sum += found.grow(added)
        self.reserved = min(self._sum, self._most)


def shortest_lifetimes(trace: Trace) -> Lifetimes:
    # Lifetimes end at the requested free: no allocator can reuse memory earlier, so sums of live
    # bytes are a lower bound for every allocator.
    return lifetimes_of(trace, until=Action.FREE_REQUESTED)


class LivePeak:
    """Peak of live bytes in a recording, computed for the size rounding of any setting.

    A replay reserves at least the peak for its setting.
    """

    def __init__(self, lifetimes: Lifetimes, periods: NDArray[np.int64]) -> None:
        # The sizes of older blocks are stored negated, since they are not rounded again.
        size = np.where(lifetimes.start >= 0, lifetimes.size, -lifetimes.size)
        self._sizes = distinct(size)
        # Equal periods are dropped once, here, since a search computes the peak for every setting.
        changes = _changes_of(np.searchsorted(self._sizes, size), lifetimes.turns)
        self._changes = _without_equal_periods(changes, lifetimes.moments, periods)
        self._plain = _peak_of(self._changes, np.abs(self._sizes))
        self._known: dict[tuple[int, ...], int] = {}

    def under(self, config: AllocatorConfig | None) -> int:
        """Return the peak of live bytes with the size rounding of `config`.

        config: None for the default rounding, up to a multiple of 512 bytes.
        """
        if config is None or not config.rounds_to_power2:
            return self._plain
        if config.release.one_division_keeps_size and 1 in config.roundup_power2_divisions:
            return 0  # sizes of `lifetimes` are rounded, but this setting keeps sizes unrounded
        divisions = config.roundup_power2_divisions
        if divisions not in self._known:
            is_asked = self._sizes > 0
            rounded = np.abs(self._sizes)
            rounded[is_asked] = rounded_by(config, self._sizes[is_asked])
            self._known[divisions] = _peak_of(self._changes, rounded)
        return self._known[divisions]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Memory that the requests of one device need, in bytes.

    peak_live_bytes: peak of live requests, each rounded up to 512 bytes; no allocator needs less.
    packed_bytes: memory that suffices for an allocator that knows all requests in advance.
    """

    peak_live_bytes: int
    packed_bytes: int

    def above_ideal(self, reserved: int) -> int:
        return max(reserved - self.peak_live_bytes, 0)


def bounds_of(prepared: Prepared) -> Bounds:
    trace = prepared.trace
    return Bounds(
        peak_live_bytes=shortest_lifetimes(trace).peak_bytes,
        packed_bytes=pack(lifetimes_of(trace), periods=period_starts(prepared)).height,
    )
