"""Whether two settings have the same effect on a recording, proved from its requests alone.

Two settings have the same effect if every comparison that the allocator would make comes out
alike (semantics 1.2 to 1.7, 1.9 to 1.11):

1. Rounding matters only by the rounded sizes of the sizes that are asked for; so are those of
   what was in use before the recording, which may be laid out anew.
2. large_segment_size_mb matters only if a rounded size lies above 1 MiB and below 10 MiB, or if
   memory is mapped in handles of that size.
3. max_split_size_mb M is compared with rounded sizes and with whole segments: pieces of a
   segment of at least M are smaller than M.  So two values with none of these sizes between them
   act alike, and one above all of them acts like none.  Where segments were there before the
   recording, only the latter is claimed.
4. max_non_split_rounding_mb R decides whether a segment of at least M serves a request of at
   least M: by the differences between those sizes.  Without such a request it is inert.
5. garbage_collection_threshold is inert without a memory fraction.
6. per_process_memory_fraction of 1.0 limits nothing.
7. expandable_segments_reserve is inert without expandable segments.

Rule: settings of equal effect have equal trials, byte for byte; the converse is not claimed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from functools import cache

from allocsim.core import (
    MIN_LARGE_ALLOC,
    OPTIONS,
    ROUND_LARGE,
    SMALL_SIZE,
    UNLIMITED,
    AllocatorConfig,
    Release,
)
from allocsim.engine import Effect, Prepared, Setting, large_segments_matter
from allocsim.errors import ConfigError
from allocsim.measures.sizes import RequestedSizes, asked_of
from allocsim.units import round_up

__all__ = ["RULES", "effect_of", "effects_on"]

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
"""The rule by which different values of an option act alike; None: only equal ones do."""

_PLAIN = tuple(OPTIONS[name].field for name, rule in RULES.items() if rule is None)
"""The fields of options of which only equal values act alike."""


def effects_on(prepared: Prepared) -> Effect:
    """The effect of settings on one recording; a setting that the release refuses is its own.

    So is every one where the program changes settings itself.
    """
    sizes = (asked_of(prepared),)

    @cache
    def effect(setting: Setting) -> Hashable:
        if prepared.plan.changes:
            return setting
        try:
            return effect_of(prepared.in_force(setting), prepared.release, sizes)
        except ConfigError:
            return setting

    return effect


def effect_of(setting: Setting, release: Release, parts: tuple[RequestedSizes, ...]) -> Hashable:
    """A value that settings of equal effect on every part share.

    Raises ConfigError where the release refuses the setting.
    """
    config = setting.config(release)
    limit = _limit(setting, config, release)
    return (
        limit,
        config.garbage_collection_threshold if limit is not None else 0.0,
        config.expandable_segments_reserve if config.expandable_segments else None,
        tuple(getattr(config, name) for name in _PLAIN),
        tuple(_effect_on(config, part) for part in parts),
    )


def _limit(setting: Setting, config: AllocatorConfig, release: Release) -> float | None:
    """The fraction that limits the process (1.11)."""
    if setting.call_fraction is not None:
        is_none = setting.call_fraction == 1.0 and not release.full_fraction_is_limit
        return None if is_none else setting.call_fraction
    fraction = config.per_process_memory_fraction
    return fraction if fraction < 1.0 else None


def _effect_on(config: AllocatorConfig, part: RequestedSizes) -> Hashable:
    rounded = part.rounded(config)
    sizes = rounded.distinct
    shares = any(SMALL_SIZE < size < MIN_LARGE_ALLOC for size in sizes)
    large = config.large_segment_size if large_segments_matter(config, sizes) else 0
    return rounded.each, large, _split_effect(config, part, sizes, large if shares else 0)


def _split_effect(
    config: AllocatorConfig, part: RequestedSizes, sizes: tuple[int, ...], shared: int
) -> tuple[object, object]:
    """The effect of max_split_size and max_non_split_rounding.

    shared: the size of segments that requests share, 0 if none does.
    """
    limit, rounding = config.max_split_size, config.max_non_split_rounding
    if limit == UNLIMITED:
        return None, None
    own = {round_up(size, ROUND_LARGE) for size in sizes if size >= MIN_LARGE_ALLOC}
    segments = sorted(own | ({shared} if shared else set()))
    cuts = sorted({*sizes, *segments, *part.present})
    if config.expandable_segments:
        return limit, rounding  # there free memory merges beyond any segment
    if not cuts or limit > cuts[-1]:
        return None, None
    if part.present:
        return limit, rounding
    split = bisect_left(cuts, limit)
    oversize = sizes[bisect_left(sizes, limit) :]
    wastes = sorted({s - size for s in segments for size in oversize if s >= max(size, limit)})
    return split, bisect_left(wastes, rounding) if oversize else None
