"""Measures of a replay's memory: fragmentation, bounds, and curves reduced to a few numbers.

R(t) and A(t) are the reserved and allocated bytes after entry t, as in torch.cuda.memory_stats().
The four ratios are those of Johnstone and Wilson, "The Memory Fragmentation Problem: Solved?" (ISMM
1998), as an overhead over allocated memory:

    mean        (Σ R(t)) / (Σ A(t)) - 1
    at_live     R(p) / A(p) - 1      where A(p) = max A, the first such p
    at_reserved R(q) / A(q) - 1      where R(q) = max R, the first such q
    of_peaks    max R / max A - 1

Papers on PyTorch's allocator use the inverse of the last, the utilization max A / max R, and call
one minus the utilization the fragmentation (GMLake, ASPLOS 2024).  Bounds in bytes show how much
memory could be saved:

    lower       peak of requested bytes, each request rounded up to 512; no allocator needs less
    packed      memory that is enough if all requests are known in advance (packing.py)
    avoidable   max(max R - packed, 0); at least this part of the peak could be saved
    open        packed - lower; it is unknown whether this part could be saved
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.metrics.lifetimes import lifetimes_of
from allocsim.metrics.packing import pack
from allocsim.recording import Action, Trace
from allocsim.simulation import DeviceRun, Timeline


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of one device's replay: bytes, and overheads as ratios (0: no overhead).

    mean_overhead, overhead_at_peak_allocated, overhead_at_peak_reserved, overhead_of_peaks: the
        ratios mean, at_live, at_reserved and of_peaks of the module's docstring.
    slack_share: bytes beyond the requested sizes, as a share of all allocated bytes, 0 to 1.
    lower_bound_bytes: peak of the requested bytes; no allocator needs less.
    packed_bytes: memory that is enough if all requests are known in advance.
    n_blocks: number of blocks for which `packed_bytes` was computed.
    n_online: number of these blocks that were placed without knowledge of later requests.
    """

    peak_reserved_bytes: int
    peak_allocated_bytes: int
    mean_overhead: float
    overhead_at_peak_allocated: float
    overhead_at_peak_reserved: float
    overhead_of_peaks: float
    slack_share: float
    lower_bound_bytes: int
    packed_bytes: int
    n_blocks: int
    n_online: int

    @property
    def utilization(self) -> float:
        reserved = self.peak_reserved_bytes
        return self.peak_allocated_bytes / reserved if reserved else 1.0

    @property
    def avoidable_bytes(self) -> int:
        """Bytes of the reserved peak that can be saved if all requests are known in advance."""
        return max(self.peak_reserved_bytes - self.packed_bytes, 0)

    @property
    def open_bytes(self) -> int:
        """Packed bytes minus the lower bound; no placement is known that saves these bytes."""
        return self.packed_bytes - self.lower_bound_bytes


def measures_of(
    trace: Trace, device_run: DeviceRun, periods: NDArray[np.int64] | None = None
) -> Measures:
    """Return the measures of a replay of `trace`, up to the entry where the replay stopped.

    periods: first entry of each period, usually a training step; given only to save time.
    """
    timeline = device_run.timeline
    is_last = np.append(timeline.entry[1:] != timeline.entry[:-1], True)[: len(timeline.entry)]
    reserved, allocated = timeline.reserved[is_last], timeline.allocated[is_last]
    failed = {oom.entry for oom in device_run.ooms}
    recorded = np.flatnonzero(trace.action[: device_run.stopped_at] == Action.OOM).tolist()
    answered = [entry for entry in recorded if entry not in failed]
    lifetimes = lifetimes_of(trace, device_run.stopped_at, answered)
    packing = pack(lifetimes, periods=periods)
    needed = lifetimes_of(trace, device_run.stopped_at, answered, until=Action.FREE_REQUESTED)
    stats = device_run.stats
    blocks = stats["allocated_bytes.all.allocated"]
    asked = stats.get("requested_bytes.all.allocated", blocks)
    return Measures(
        peak_reserved_bytes=device_run.peak_reserved_bytes,
        peak_allocated_bytes=device_run.peak_allocated_bytes,
        mean_overhead=_overhead(int(reserved.sum()), int(allocated.sum())),
        overhead_at_peak_allocated=_highest(allocated, reserved, allocated),
        overhead_at_peak_reserved=_highest(reserved, reserved, allocated),
        overhead_of_peaks=_overhead(
            device_run.peak_reserved_bytes, device_run.peak_allocated_bytes
        ),
        slack_share=1 - asked / blocks if blocks else 0.0,
        lower_bound_bytes=needed.peak_bytes,
        packed_bytes=packing.height,
        n_blocks=len(lifetimes),
        n_online=packing.n_online,
    )


def _highest(
    of: NDArray[np.int64], reserved: NDArray[np.int64], allocated: NDArray[np.int64]
) -> float:
    if not len(of):
        return 0.0
    row = int(np.argmax(of))
    return _overhead(int(reserved[row]), int(allocated[row]))


def _overhead(reserved: int, allocated: int) -> float:
    return reserved / allocated - 1 if allocated else 0.0


_PARTS = 120  # number of parts of an `Outline`

_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Extremes:
    """Minimum and maximum of each group of `step` consecutive values of a curve.

    The last group may be shorter.
    """

    step: int
    low: _Column
    high: _Column


def extremes_of(values: _Column, step: int) -> Extremes:
    if not len(values):
        return Extremes(step, values, values)
    starts = np.arange(0, len(values), step)
    return Extremes(step, np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts))


def levels_of(values: _Column, first: int, factor: int, enough: int) -> tuple[Extremes, ...]:
    """Return minima and maxima at several resolutions, to draw long curves.

    The first level has groups of `first` values, and each next level has `factor` times larger
    groups, until a level has at most `enough` groups.
    """
    levels: list[Extremes] = []
    step = first
    while len(values) > enough and (not levels or len(levels[-1].low) > enough):
        levels.append(extremes_of(values, step))
        step *= factor
    return tuple(levels)


def turning_rows(values: _Column, most: int) -> NDArray[np.intp]:
    """Return the indices at which `values` changes, thinned out to about `most`.

    Of each group of changes, the first, lowest and highest value remain.
    """
    changed = np.flatnonzero(np.diff(values, prepend=values[:1] - 1))
    if len(changed) <= most:
        return changed
    step = -(-3 * len(changed) // most)
    starts = np.arange(0, len(changed), step)
    stretch = np.repeat(np.arange(len(starts)), np.diff([*starts, len(changed)]))
    by_height = np.lexsort((values[changed], stretch))
    ends = [*starts[1:] - 1, len(changed) - 1]
    rows: NDArray[np.intp] = changed[np.unique([*starts, *by_height[starts], *by_height[ends]])]
    return rows


@dataclass(frozen=True, slots=True)
class Outline:
    """Peaks in equally long parts of a recording, for a small chart.

    entries: number of entries of the recording; may be less than the number of parts.
    reserved, allocated: peak bytes of each part.
    """

    entries: int
    reserved: tuple[int, ...]
    allocated: tuple[int, ...]


def outline_of(timeline: Timeline, entries: int) -> Outline | None:
    """Return the peak of each of 120 parts of a recording; None if the timeline is empty."""
    if not len(timeline.entry) or not entries:
        return None
    edges = np.linspace(0, entries, _PARTS + 1)
    starts = np.searchsorted(timeline.entry, edges)
    return Outline(entries, _most(timeline.reserved, starts), _most(timeline.allocated, starts))


def _most(values: NDArray[np.int64], starts: NDArray[np.intp]) -> tuple[int, ...]:
    before = np.concatenate([values[:1], values])
    return tuple(
        int(before[first : max(end, first) + 1].max())
        for first, end in zip(starts.tolist(), starts.tolist()[1:], strict=False)
    )
