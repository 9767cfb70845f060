"""The sizes that a recording asks for, and how much of them lives at once.

Rule: everything here follows from the requests alone, so it holds under every setting.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import any_of, distinct
from allocsim.core import MIN_LARGE_ALLOC, SMALL_SIZE, AllocatorConfig, Release
from allocsim.engine import Prepared, requests_of
from allocsim.measures.lifetimes import lifetimes_of
from allocsim.trace import Action, Trace

__all__ = ["RequestedSizes", "Rounded", "Sizes", "asked_of", "merged", "rounded_by", "sizes_of"]


@dataclass(frozen=True, slots=True)
class Rounded:
    """Sizes in bytes as a setting rounds them (1.2).

    each: of every size of `RequestedSizes`, in their order; as the bytes of a column, since it is
        compared and hashed as a whole.
    distinct: those that come up, ascending.
    """

    each: bytes
    distinct: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RequestedSizes:
    """The sizes that requests of one device of a recording have, and what they find; bytes.

    sizes: distinct raw ones, ascending, and after them those of `Sizes.living`.
    present: of the segments and blocks from before the first entry.
    """

    sizes: NDArray[np.int64]
    present: tuple[int, ...]

    def rounded(self, config: AllocatorConfig) -> Rounded:
        """The sizes as `config` rounds them; worked out once a rounding."""
        rounding = config.release, config.roundup_power2_divisions
        if rounding not in self._rounded:
            each = rounded_by(config, self.sizes)
            self._rounded[rounding] = Rounded(each.tobytes(), tuple(distinct(each).tolist()))
        return self._rounded[rounding]

    @cached_property
    def _rounded(self) -> dict[tuple[Release, tuple[int, ...]], Rounded]:
        return {}


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

    @cached_property
    def asked(self) -> RequestedSizes:
        """The sizes alone."""
        counted = np.fromiter((size for size, _ in self.counts), np.int64, len(self.counts))
        return RequestedSizes(np.concatenate((counted, self.living)).astype(np.int64), self.present)


def rounded_by(config: AllocatorConfig, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every size as `AllocatorConfig.round_size` rounds it; bytes, of 1 and more (1.2)."""
    starts, steps = _pieces(config, int(sizes.max(initial=1)))
    step = steps[np.searchsorted(starts, sizes, side="right") - 1]
    return -(-sizes // step) * step


def _pieces(config: AllocatorConfig, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """From which size on, up to the next, which step holds, for sizes up to `most`."""
    starts = [1]
    for bits in range(most.bit_length()):
        low, high = 1 << bits, (2 << bits) - 1
        first = config.rounding_step(low)
        if config.rounding_step(high) != first:
            sizes = range(low, high + 1)
            starts.append(
                low + bisect_left(sizes, 1, key=lambda s: config.rounding_step(s) != first)
            )
        starts.append(high + 1)
    return np.array(starts[:-1]), np.array([config.rounding_step(start) for start in starts[:-1]])


def asked_of(prepared: Prepared) -> RequestedSizes:
    """The sizes of one device of a recording, without how much of them lives at once."""
    sizes = np.concatenate((distinct(_asked_in(prepared.trace)), _living(prepared)))
    return RequestedSizes(sizes.astype(np.int64), _present(prepared))


def sizes_of(prepared: Prepared) -> Sizes:
    """The sizes of one device of a recording."""
    size, count = np.unique(_asked_in(prepared.trace), return_counts=True)
    lifetimes = lifetimes_of(prepared.trace)
    is_middle = (lifetimes.size > SMALL_SIZE) & (lifetimes.size < MIN_LARGE_ALLOC)
    return Sizes(
        counts=tuple(zip(size.tolist(), count.tolist(), strict=True)),
        present=_present(prepared),
        living=_living(prepared),
        peak_live=lifetimes.peak_bytes,
        peak_middle=lifetimes.peak_bytes_among(is_middle),
        recorded_peak=prepared.plan.max_reserved,
    )


def _asked_in(trace: Trace) -> NDArray[np.int64]:
    return trace.size[any_of(trace.action, (Action.ALLOC, Action.OOM)) & (trace.size > 0)]


def _present(prepared: Prepared) -> tuple[int, ...]:
    blocks = [block for segment in prepared.start for block in segment.blocks]
    present = {segment.total_size for segment in prepared.start}
    return tuple(sorted(present | {block.size for block in blocks}))


def _living(prepared: Prepared) -> tuple[int, ...]:
    return tuple(sorted(requests_of(prepared.start)))


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
