"""Request sizes of a recording, and peaks of the live requests.

They depend on the program alone, so they are the same under every allocator setting.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of, distinct
from allocsim.core import MIN_LARGE_ALLOC, SMALL_SIZE, AllocatorConfig, Release
from allocsim.metrics.lifetimes import lifetimes_of
from allocsim.recording import Action, Trace
from allocsim.replaying import Prepared
from allocsim.simulation import live_requests


@dataclass(frozen=True, slots=True)
class Rounded:
    """Request sizes rounded under a setting (semantics 1.2).

    each: rounded size of every item of `RequestedSizes.sizes`, as the raw bytes of an int64 array,
        which are fast to compare and hash.
    distinct: distinct rounded sizes in bytes, ascending.
    """

    each: bytes
    distinct: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RequestedSizes:
    """Sizes of one device's requests and initial blocks, in bytes.

    sizes: distinct request sizes before rounding, ascending, followed by the request sizes of
        blocks from before the first entry.
    present: sizes of the segments and blocks from before the first entry.
    """

    sizes: NDArray[np.int64]
    present: tuple[int, ...]

    def rounded(self, config: AllocatorConfig) -> Rounded:
        """Return the sizes as rounded under `config`; cached."""
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


def rounded_by(config: AllocatorConfig, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the block size for each request size; both are bytes (semantics 1.2).

    sizes: request sizes, at least 1 byte each.
    """
    starts, steps = _pieces(config, int(sizes.max(initial=1)))
    step = steps[np.searchsorted(starts, sizes, side="right") - 1]
    return -(-sizes // step) * step


def _pieces(config: AllocatorConfig, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts of size intervals up to `most` bytes, and the rounding step in each."""
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


def requested_of(prepared: Prepared) -> RequestedSizes:
    """Return the request sizes of one device of a recording, without counts and peaks."""
    sizes = np.concatenate((distinct(_asked_in(prepared.trace)), _living(prepared)))
    return RequestedSizes(sizes.astype(np.int64), _present(prepared))


def sizes_of(prepared: Prepared) -> Sizes:
    """Return the request sizes of one device of a recording, with counts and peaks."""
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
    return tuple(sorted(live_requests(prepared.start)))


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
