"""Headroom of a recording on a device, and the smallest sufficient device for several settings.

*Headroom* is the free memory of the device, plus the memory that PyTorch could return to the
driver.  It is measured after each request for which the driver provides memory.  *Unusable* memory
is in free blocks that cannot serve the largest request of the recording (the "unusable free space
index" of Gorman and Whitcroft, Ottawa Linux Symposium 2006, in bytes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from allocsim._fast_numpy import any_of
from allocsim._repr import Shown
from allocsim.core import SMALL_SIZE, Block, CachingAllocator, free_blocks, returnable_bytes
from allocsim.errors import RecordingError
from allocsim.metrics import Code, Measures, code_at, measures_of, period_starts
from allocsim.recommend import (
    Case,
    Recommendation,
    allows_expandable,
    applicable_settings,
    entries_left,
    recommend,
    usual_settings,
)
from allocsim.recording import Action, Recording, Trace
from allocsim.replaying import (
    Capacity,
    Prepared,
    Trials,
    Watch,
    bytes_of,
    effects_on,
    prepare,
    replay_prepared,
    smallest_device,
)
from allocsim.simulation import DeviceRun, Observer, Progress, Run, Setting, Timeline
from allocsim.units import format_size

_SPANS = 12


@dataclass(frozen=True, slots=True)
class HeadroomPoint:
    """Memory after a request for which the driver provided memory.

    entry: index of the recorded history entry of the request.
    free_bytes: free device memory, or the part of it that a memory fraction still allows.
    returnable_bytes: memory that PyTorch could return to the driver.
    idle_bytes: memory in free blocks.
    unusable_bytes: memory in free blocks that cannot serve the largest request of the recording.
    """

    entry: int
    reserved_bytes: int
    free_bytes: int
    returnable_bytes: int
    idle_bytes: int
    unusable_bytes: int

    @property
    def headroom_bytes(self) -> int:
        return self.free_bytes + self.returnable_bytes


class HeadroomWatch(Observer):
    """Observer of a replay; it measures headroom after each request that needed driver memory."""

    def __init__(self, largest: tuple[int, int]) -> None:
        self.points: list[HeadroomPoint] = []
        self._size, self._stream = largest

    @property
    def tightest(self) -> HeadroomPoint | None:
        return min(self.points, key=lambda point: point.headroom_bytes, default=None)

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        reserved = allocator.reserved_bytes
        free, limit = allocator.device.free, allocator.memory_limit
        if limit is not None:
            free = min(free, max(limit - reserved, 0))
        returnable = idle = usable = 0
        for block in free_blocks(allocator):
            idle += block.size
            returnable += returnable_bytes(allocator, block)
            if self._serves(block):
                usable += block.size
        self.points.append(HeadroomPoint(entry, reserved, free, returnable, idle, idle - usable))

    def _serves(self, block: Block) -> bool:
        pool = block.pool
        is_its_pool = pool.owner is None and pool.is_small == (self._size <= SMALL_SIZE)
        return is_its_pool and block.stream == self._stream and block.size >= self._size


@dataclass(frozen=True, slots=True)
class Span:
    """Range of history entries, `first` to `last`, and the peaks of memory in this range."""

    first: int
    last: int
    allocated_bytes: int
    reserved_bytes: int


def spans_of(timeline: Timeline, count: int) -> tuple[Span, ...]:
    """Divide a run into at most `count` spans with about equally many changes of memory.

    timeline: memory after each allocator call of a replay.
    """
    rows = len(timeline.entry)
    edges = np.unique(np.linspace(0, rows, count + 1).astype(np.int64))
    return tuple(
        Span(
            first=int(timeline.entry[start]),
            last=int(timeline.entry[stop - 1]),
            allocated_bytes=int(timeline.allocated[start:stop].max()),
            reserved_bytes=int(timeline.reserved[start:stop].max()),
        )
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    )


def largest_entry(trace: Trace) -> int | None:
    asks = np.flatnonzero(any_of(trace.action, (Action.ALLOC, Action.OOM)))
    return int(asks[np.argmax(trace.size[asks])]) if len(asks) else None


@dataclass(frozen=True, slots=True)
class Need:
    """Smallest device on which every request succeeds under one setting.

    conf: the setting, a value of PYTORCH_CUDA_ALLOC_CONF.
    capacity: size of the device, proved by a replay; None if a request fails on any device.
    """

    conf: str
    capacity: Capacity | None


@dataclass(frozen=True, slots=True, repr=False)
class Risk(Shown):
    """Risk that one device of a recording runs out of memory.

    prepared: device of the recording, ready for further replays.
    run, device_run: replay with the given device memory, and its result for the device.
    spans: peaks of memory in successive parts of the recording.
    points: headroom after each request for which the driver provided memory.
    tightest: first point with the least headroom; None if there are no points.
    code: line and stack of the request at `tightest`; None if unknown.
    largest_entry, largest_bytes: index of the history entry of the largest request, and its size.
    needs: smallest sufficient device for each setting.
    measures: numbers that describe fragmentation.
    recommendation: recommended setting for the given device memory.
    """

    prepared: Prepared
    run: Run
    device_run: DeviceRun
    spans: tuple[Span, ...]
    points: tuple[HeadroomPoint, ...]
    tightest: HeadroomPoint | None
    code: Code | None
    largest_entry: int | None
    largest_bytes: int
    needs: tuple[Need, ...]
    measures: Measures
    recommendation: Recommendation

    @property
    def entries_left(self) -> int | None:
        """Number of entries after the last recorded error; None if the replay has no error."""
        return entries_left(self.prepared) if self.device_run.ooms else None

    @property
    def most_unusable(self) -> HeadroomPoint | None:
        """Point with the most memory in free blocks that cannot serve the largest request.

        The first of several equal points; None if there are no points.
        """
        return max(self.points, key=lambda point: point.unusable_bytes, default=None)

    def headline(self) -> str:
        tight = self.tightest
        near = "" if tight is None else f"; {format_size(tight.headroom_bytes)} of headroom"
        at = "" if tight is None else f" at entry {tight.entry:,}"
        return f"{self.device_run.headline()}{near}{at}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        yield from self.device_run.figures_shown()
        if self.tightest is not None:
            yield "least headroom", format_size(self.tightest.headroom_bytes)
        for need in self.needs:
            least = "none" if need.capacity is None else format_size(need.capacity.device_memory)
            yield f"smallest device, {need.conf or 'defaults'}", least


def risk_of(
    recording: Recording,
    conf: str | None = None,
    *,
    device_memory: int | str | None = None,
    torch_version: str | None = None,
    device: int | None = None,
    confs: Sequence[str] | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Risk:
    """Return the headroom of one device of `recording`, and its smallest sufficient device.

    conf: PYTORCH_CUDA_ALLOC_CONF; None for the recorded value.
    device_memory: bytes or "24GiB"; None for the recorded or inferred size.
    torch_version: PyTorch release to model; None to choose it from the recording.
    device: device number; None if only one device is recorded.
    confs: further settings for which to find the smallest device; None for the usual settings.
    progress: callback for the progress of the first replay.
    watch: function that is called with the conf of each further replay; it returns a progress
        callback for this replay, or None for no progress.
    """
    (prepared,) = prepare(recording, recording.only_device(device).device, torch_version)
    if not len(prepared.trace):
        what = f"device {prepared.trace.device} has no entries; expected a recording with requests"
        raise RecordingError(recording.path, what)
    trace, largest = prepared.trace, largest_entry(prepared.trace)
    size, stream = 0, 0
    if largest is not None:
        size, stream = int(trace.size[largest]), int(trace.stream[largest])
    seen = HeadroomWatch((size, stream))
    setting = prepared.recorded if conf is None else Setting(conf)
    memory = bytes_of(device_memory)
    prepared = prepared.on(memory)
    run = replay_prepared(
        (prepared,), setting, device_memory=memory, progress=progress, observers=(seen,)
    )
    device_run = run.devices[0]
    tightest = seen.tightest
    trials = Trials(prepared, watch, effects_on(prepared))
    trials.add(setting, device_run)
    return Risk(
        prepared=prepared,
        run=run,
        device_run=device_run,
        spans=spans_of(device_run.timeline, _SPANS),
        points=tuple(seen.points),
        tightest=tightest,
        code=None if tightest is None else code_at(trace, tightest.entry),
        largest_entry=largest,
        largest_bytes=size,
        needs=_needs(trials, setting, confs),
        measures=measures_of(trace, device_run, period_starts(prepared)),
        recommendation=recommend([Case(trials, device_run)], setting, confs, in_full=False),
    )


def _needs(trials: Trials, setting: Setting, confs: Sequence[str] | None) -> tuple[Need, ...]:
    prepared = trials.prepared
    config = setting.config(prepared.release)
    usual = usual_settings(config, expandable=allows_expandable(prepared))
    others = (
        applicable_settings(usual, [prepared], config)
        if confs is None
        else tuple(map(Setting, confs))
    )
    for each in others:
        each.config(prepared.release)  # raises ConfigError for a setting that the release refuses
    every = dict.fromkeys([setting, *others])
    return tuple(Need(each.conf, smallest_device(trials, each)) for each in every)
