"""The sizes that a recording asks for, and how much of them lives at once.

Rule: everything here follows from the requests alone, so it holds under every setting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from allocsim.arrays import any_of
from allocsim.core import (
    MIN_BLOCK_SIZE,
    MIN_LARGE_ALLOC,
    SMALL_SIZE,
    AllocatorConfig,
    Release,
)
from allocsim.engine import Prepared, requests_of
from allocsim.measures.lifetimes import lifetimes_of
from allocsim.trace import Action
from allocsim.units import round_up

__all__ = ["Rounded", "Sizes", "merged", "rounded_by", "sizes_of"]


@dataclass(frozen=True, slots=True)
class Rounded:
    """Sizes in bytes as a setting rounds them (1.2).

    each: of every size of `Sizes.counts`, then of `Sizes.living`, in their order.
    distinct: those that come up, ascending.
    """

    each: tuple[int, ...]
    distinct: tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """The requests of one device of a recording; bytes.

    counts: distinct raw sizes, ascending, with how often each is asked for.
    present: sizes of the segments and blocks from before the first entry.
    peak_live: the most that was in use at once, requests rounded up to 512.
    peak_middle: the same of requests above 1 MiB and below 10 MiB, which share segments of
        large_segment_size_mb.
    recorded_peak: the most that the recorded run held from the driver.
    living: raw sizes, ascending, of what was in use before the first entry, and may be asked for
        anew.
    """

    counts: tuple[tuple[int, int], ...]
    present: tuple[int, ...]
    peak_live: int
    peak_middle: int
    recorded_peak: int
    living: tuple[int, ...] = ()

    def rounded(self, config: AllocatorConfig) -> Rounded:
        """The sizes as `config` rounds them; worked out once a rounding."""
        rounding = config.release, config.roundup_power2_divisions
        if rounding not in self._rounded:
            asked = [*(size for size, _ in self.counts), *self.living]
            each = rounded_by(config, asked)
            self._rounded[rounding] = Rounded(tuple(each), tuple(sorted(set(each))))
        return self._rounded[rounding]

    @cached_property
    def _rounded(self) -> dict[tuple[Release, tuple[int, ...]], Rounded]:
        return {}


def rounded_by(config: AllocatorConfig, sizes: Iterable[int]) -> list[int]:
    """Every size as `AllocatorConfig.round_size` rounds it; bytes, of 1 and more (1.2)."""
    if config.rounds_to_power2:
        return [config.round_size(size) for size in sizes]
    # The last case of the rule, without asking for the others: there may be a million sizes.
    return [round_up(max(size, MIN_BLOCK_SIZE), MIN_BLOCK_SIZE) for size in sizes]


def sizes_of(prepared: Prepared) -> Sizes:
    """The sizes of one device of a recording."""
    trace = prepared.trace
    asked = trace.size[any_of(trace.action, (Action.ALLOC, Action.OOM)) & (trace.size > 0)]
    size, count = np.unique(asked, return_counts=True)
    present = {segment.total_size for segment in prepared.start}
    blocks = [block for segment in prepared.start for block in segment.blocks]
    lifetimes = lifetimes_of(trace)
    middle = np.flatnonzero((lifetimes.size > SMALL_SIZE) & (lifetimes.size < MIN_LARGE_ALLOC))
    return Sizes(
        counts=tuple(zip(size.tolist(), count.tolist(), strict=True)),
        present=tuple(sorted(present | {block.size for block in blocks})),
        living=tuple(sorted(requests_of(prepared.start))),
        peak_live=lifetimes.peak_bytes,
        peak_middle=lifetimes.take(middle).peak_bytes,
        recorded_peak=prepared.plan.max_reserved,
    )


def merged(parts: tuple[Sizes, ...]) -> Sizes:
    """Several recordings seen as one: all sizes, the highest of each peak."""
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
