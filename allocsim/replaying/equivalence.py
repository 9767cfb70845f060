"""Find settings that have the same effect on a recording, from its request sizes alone.

A search replays only one of several equivalent settings.  Two settings are equivalent if every
comparison that the allocator makes has the same result under both settings.  Source: semantics 1.2
to 1.7, 1.9 to 1.11.  For each option:

1. Rounding has an effect only through the rounded values of the requested sizes.  The sizes of
   blocks from before the recording count too, since a replay may start empty and request them.
2. large_segment_size_mb has an effect only if a rounded size is between 1 MiB and 10 MiB, or if
   memory is mapped in handles of that size.
3. max_split_size_mb (M) is compared with rounded sizes and with sizes of whole segments, since a
   segment of M or more is never split.  So (a) a value above all these sizes is equivalent to no
   limit, and (b) two values are equivalent if no such size is between them.  If the recording
   starts with segments, only (a) is applied; with expandable segments, neither is.
4. max_non_split_rounding_mb has an effect only if a request and a segment both have M or more.  The
   option is compared with the bytes by which the segment exceeds the request.
5. garbage_collection_threshold has no effect without a memory fraction, set or inferred.
6. per_process_memory_fraction of 1.0 has no effect.
7. expandable_segments_reserve has no effect without expandable segments.

Equivalent settings have equal replays, byte for byte.  Settings with equal replays may still count
as different.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of, distinct
from allocsim.core import (
    MIN_LARGE_ALLOC,
    OPTIONS,
    ROUND_LARGE,
    SMALL_SIZE,
    UNLIMITED,
    AllocatorConfig,
    Release,
)
from allocsim.errors import ConfigError
from allocsim.recording import Action, Trace
from allocsim.simulation import RecordedDevice, Setting, live_requests
from allocsim.units import round_up

if TYPE_CHECKING:
    from allocsim.replaying.prepared import Prepared


@dataclass(frozen=True, slots=True)
class Rounded:
    """Request sizes rounded under a setting (semantics.md, section 1.2).

    each: rounded sizes in the order of `RequestedSizes.sizes`, as the raw bytes of an int64 array,
        because bytes are fast to compare and hash.
    distinct: distinct rounded sizes in bytes, ascending.
    """

    each: bytes
    distinct: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RequestedSizes:
    """Sizes in bytes that decide whether two settings have the same effect on a device.

    sizes: distinct sizes of the recorded requests before rounding, ascending; then the requested
        sizes of the blocks that existed before the first entry.
    present: sizes of those blocks and of the segments that existed before the first entry.
    """

    sizes: NDArray[np.int64]
    present: tuple[int, ...]

    def rounded(self, config: AllocatorConfig) -> Rounded:
        rounding = config.release, config.roundup_power2_divisions
        if rounding not in self._rounded:
            each = rounded_by(config, self.sizes)
            self._rounded[rounding] = Rounded(each.tobytes(), tuple(distinct(each).tolist()))
        return self._rounded[rounding]

    @cached_property
    def _rounded(self) -> dict[tuple[Release, tuple[int, ...]], Rounded]:
        return {}


def rounded_by(config: AllocatorConfig, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the block size for each request size; both are bytes (semantics.md, section 1.2)."""
    starts, steps = _rounding_intervals(config, int(sizes.max(initial=1)).bit_length())
    step = steps[np.searchsorted(starts, sizes, side="right") - 1]
    return -(-sizes // step) * step


_Pieces = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Intervals of request sizes: (first size, multiple to which sizes of the interval are rounded up).

Both arrays are in bytes and have one item per interval.
"""

_PIECES: dict[tuple[str, tuple[int, ...], int], _Pieces] = {}
"""Cache of `_rounding_intervals`, keyed by release, roundup option and bits of the largest size.

A search needs the same intervals for many settings and devices.
"""


def _rounding_intervals(config: AllocatorConfig, n_bits: int) -> _Pieces:
    key = config.release.version, config.roundup_power2_divisions, n_bits
    if key not in _PIECES:
        _PIECES[key] = _find_pieces(config, n_bits)
    return _PIECES[key]


def _find_pieces(config: AllocatorConfig, n_bits: int) -> _Pieces:
    starts = [1]
    for bits in range(n_bits):
        low, high = 1 << bits, (2 << bits) - 1
        first = config.rounding_step(low)
        if config.rounding_step(high) != first:
            sizes = range(low, high + 1)
            starts.append(
                low + bisect_left(sizes, 1, key=lambda s: config.rounding_step(s) != first)
            )
        starts.append(high + 1)
    return np.array(starts[:-1]), np.array([config.rounding_step(start) for start in starts[:-1]])


def requested_of(device: RecordedDevice) -> RequestedSizes:
    sizes = np.concatenate((distinct(sizes_in(device.trace)), sizes_at_start(device)))
    return RequestedSizes(sizes.astype(np.int64), sizes_present(device))


def sizes_in(trace: Trace) -> NDArray[np.int64]:
    return trace.size[any_of(trace.action, (Action.ALLOC, Action.OOM)) & (trace.size > 0)]


def sizes_present(device: RecordedDevice) -> tuple[int, ...]:
    blocks = [block for segment in device.start for block in segment.blocks]
    present = {segment.total_size for segment in device.start}
    return tuple(sorted(present | {block.size for block in blocks}))


def sizes_at_start(device: RecordedDevice) -> tuple[int, ...]:
    return tuple(sorted(live_requests(device.start)))


Effect = Callable[[Setting], Hashable]
"""Function that returns equal values for settings that have the same effect on a recording."""

RULES: dict[str, int | None] = {
    "roundup_power2_divisions": 1,
    "large_segment_size_mb": 2,
    "max_split_size_mb": 3,
    "max_non_split_rounding_mb": 4,
    "garbage_collection_threshold": 5,
    "per_process_memory_fraction": 6,
    "expandable_segments_reserve": 7,
    "expandable_segments": None,
    "throw_on_cudamalloc_oom": None,
    "graph_capture_record_stream_reuse": None,
}
"""Dictionary from option to the number of its rule in the module's docstring.

None for an option whose different values always count as different.
"""

_PLAIN = tuple(OPTIONS[name].field for name, rule in RULES.items() if rule is None)
"""Fields of `AllocatorConfig` of the options without a rule."""


def effects_on(prepared: Prepared) -> Effect:
    """Return a function from a setting to a key; settings with equal keys have equal replays."""
    sizes, is_limited = (requested_of(prepared),), prepared.plan.limit is not None

    @cache
    def effect(setting: Setting) -> Hashable:
        if prepared.plan.changes:
            return setting
        try:
            return effect_of(prepared.in_force(setting), prepared.release, sizes, is_limited)
        except ConfigError:
            return setting

    return effect


def effect_of(
    setting: Setting,
    release: Release,
    parts: tuple[RequestedSizes, ...],
    is_limited: bool = False,
) -> Hashable:
    """Return a key for `setting`; settings with equal keys have equal replays.

    parts: request sizes of each device.
    is_limited: True if the recording implies that a call of the program set a memory limit.
    """
    config = setting.config(release)
    limit = _limiting_fraction(setting, config, release)
    return (
        limit,
        config.garbage_collection_threshold if limit is not None or is_limited else 0.0,
        config.expandable_segments_reserve if config.expandable_segments else None,
        tuple(getattr(config, name) for name in _PLAIN),
        tuple(_effect_on(config, part) for part in parts),
    )


def _limiting_fraction(setting: Setting, config: AllocatorConfig, release: Release) -> float | None:
    # Semantics 1.11.
    if setting.call_fraction is not None:
        is_none = setting.call_fraction == 1.0 and not release.full_fraction_is_limit
        return None if is_none else setting.call_fraction
    fraction = config.per_process_memory_fraction
    return fraction if fraction < 1.0 else None


def large_segments_matter(config: AllocatorConfig, rounded: Iterable[int]) -> bool:
    """Return True if large_segment_size affects requests of these rounded sizes, in bytes."""
    least = UNLIMITED if config.expandable_segments else MIN_LARGE_ALLOC
    return any(SMALL_SIZE < size < least for size in rounded)


def _effect_on(config: AllocatorConfig, part: RequestedSizes) -> Hashable:
    rounded = part.rounded(config)
    sizes = rounded.distinct
    shares = any(SMALL_SIZE < size < MIN_LARGE_ALLOC for size in sizes)
    large = config.large_segment_size if large_segments_matter(config, sizes) else 0
    return rounded.each, large, _split_effect(config, part, sizes, large if shares else 0)


def _split_effect(
    config: AllocatorConfig, part: RequestedSizes, sizes: tuple[int, ...], shared: int
) -> tuple[object, object]:
    # shared: bytes of the segments that several requests share; 0 if there are none.
    limit, rounding = config.max_split_size, config.max_non_split_rounding
    if limit == UNLIMITED:
        return None, None
    own = {round_up(size, ROUND_LARGE) for size in sizes if size >= MIN_LARGE_ALLOC}
    segments = sorted(own | ({shared} if shared else set()))
    cuts = sorted({*sizes, *segments, *part.present})
    if config.expandable_segments:
        return limit, rounding  # free memory merges across segments there
    if not cuts or limit > cuts[-1]:
        return None, None
    if part.present:
        return limit, rounding
    split = bisect_left(cuts, limit)
    oversize = sizes[bisect_left(sizes, limit) :]
    wastes = sorted({s - size for s in segments for size in oversize if s >= max(size, limit)})
    return split, bisect_left(wastes, rounding) if oversize else None
