"""Request sizes of a recording, and peaks of the live requests.

They depend on the program alone, so they are the same under every allocator setting.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from allocsim.core import MIN_LARGE_ALLOC, SMALL_SIZE
from allocsim.metrics.lifetimes import lifetimes_of
from allocsim.replaying import Prepared
from allocsim.simulation import RequestedSizes, sizes_at_start, sizes_in, sizes_present


@dataclass(frozen=True)
class Sizes:
    """Request sizes and peaks of one device of a recording, in bytes.

    counts: distinct request sizes before rounding, ascending, each with its number of requests.
    present: sizes of the segments and blocks from before the first entry.
    peak_live: peak of the live requests, each rounded up to 512.
    peak_middle: peak of the live requests above 1 MiB and below 10 MiB, each rounded up to 512.
        They share segments of large_segment_size_mb.
    recorded_peak: peak reserved bytes in the recording.
    living: request sizes, ascending, of blocks from before the first entry.
    """

    counts: tuple[tuple[int, int], ...]
    present: tuple[int, ...]
    peak_live: int
    peak_middle: int
    recorded_peak: int
    living: tuple[int, ...] = ()

    @cached_property
    def asked(self) -> RequestedSizes:
        """The sizes without counts and peaks."""
        counted = np.fromiter((size for size, _ in self.counts), np.int64, len(self.counts))
        return RequestedSizes(np.concatenate((counted, self.living)).astype(np.int64), self.present)


def sizes_of(prepared: Prepared) -> Sizes:
    """Return the request sizes of one device of a recording, with counts and peaks."""
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
    """Return the sizes of several devices as one: sums of the counts, maximum of each peak."""
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
