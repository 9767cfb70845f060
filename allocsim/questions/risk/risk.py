"""How near a recording comes to an out-of-memory error on a device, and on which it would not.

Rules: every size is one that a replay proved (`smallest_device`).  Only a request that needs memory
from the driver can fail, so the device is looked at when one has been answered that way.  Its
headroom then is what the driver had left, plus what PyTorch could have given back: whole free
segments and whole free handles of expandable segments.

Unusable is what is reserved, in no block in use, and in no piece that would serve the largest
request of the recording: the external fragmentation seen by that request (the "unusable free
space index" of Gorman and Whitcroft, Ottawa Linux Symposium 2006, in bytes and for one size).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from allocsim.arrays import any_of
from allocsim.core import SMALL_SIZE, Block, CachingAllocator, free_blocks, returnable_bytes
from allocsim.display import Shown
from allocsim.engine import (
    Capacity,
    DeviceRun,
    Observer,
    Prepared,
    Progress,
    Run,
    Setting,
    Timeline,
    Trials,
    Watch,
    bytes_of,
    prepare,
    replay_prepared,
    smallest_device,
)
from allocsim.errors import RecordingError
from allocsim.measures import (
    Case,
    Code,
    Measures,
    Recommendation,
    allows_expandable,
    code_at,
    effects_on,
    measures_of,
    read_alike,
    recommend,
    rounds_of,
    usual_settings,
)
from allocsim.trace import Action, Recording, Trace
from allocsim.units import format_size

__all__ = ["HeadroomPoint", "Need", "Risk", "Span", "risk_of"]

_SPANS = 12


@dataclass(frozen=True, slots=True)
class HeadroomPoint:
    """The device after the request of `entry` was answered with memory from the driver.

    free_bytes: of the device and within the limit of a memory fraction.
    returnable_bytes: what PyTorch could have given back.
    idle_bytes: reserved and in no block in use.
    unusable_bytes: the part of the idle that could not serve the largest request.
    """

    entry: int
    reserved_bytes: int
    free_bytes: int
    returnable_bytes: int
    idle_bytes: int
    unusable_bytes: int

    @property
    def headroom_bytes(self) -> int:
        """What a request could still have had of the driver."""
        return self.free_bytes + self.returnable_bytes


class HeadroomWatch(Observer):
    """Notes the headroom whenever memory came from the driver; an observer for `replay`.

    largest: the rounded size and the stream of the recording's largest request.
    """

    def __init__(self, largest: tuple[int, int]) -> None:
        self.points: list[HeadroomPoint] = []
        self._size, self._stream = largest

    @property
    def tightest(self) -> HeadroomPoint | None:
        """The first point of the least headroom; None if nothing came from the driver."""
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
        """Whether a free block would serve the largest request."""
        pool = block.pool
        is_its_pool = pool.owner is None and pool.is_small == (self._size <= SMALL_SIZE)
        return is_its_pool and block.stream == self._stream and block.size >= self._size


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of entries.  allocated_bytes, reserved_bytes: their highest in it."""

    first: int
    last: int
    allocated_bytes: int
    reserved_bytes: int


def spans_of(timeline: Timeline, count: int) -> tuple[Span, ...]:
    """`count` stretches of about as many steps each; fewer if there are fewer steps."""
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
    """The first entry with the largest request, a failed one included; None without any."""
    asks = np.flatnonzero(any_of(trace.action, (Action.ALLOC, Action.OOM)))
    return int(asks[np.argmax(trace.size[asks])]) if len(asks) else None


@dataclass(frozen=True, slots=True)
class Need:
    """What one setting needs.  capacity: None if PyTorch refuses it or would not survive it."""

    conf: str
    capacity: Capacity | None


@dataclass(frozen=True, slots=True, repr=False)
class Risk(Shown):
    """One device of a recording on the device memory asked for.

    points: the headroom wherever memory came from the driver.
    tightest: the first of the least headroom; code: of its request.
    largest_bytes: the largest request, at `largest_entry`.
    recommendation: the one setting to paste, on the device memory asked for.
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
    def most_unusable(self) -> HeadroomPoint | None:
        """The first point at which the most reserved memory was of no use to the largest request;
        None if nothing came from the driver."""
        return max(self.points, key=lambda point: point.unusable_bytes, default=None)

    def headline(self) -> str:
        """The least headroom, and what the replay came to."""
        tight = self.tightest
        near = "" if tight is None else f"; {format_size(tight.headroom_bytes)} of headroom"
        at = "" if tight is None else f" at entry {tight.entry:,}"
        return f"{self.device_run.headline()}{near}{at}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """The figures of the replay, the headroom, the smallest device of each setting."""
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
    """The risk of one device of `recording` (default: the only one).

    confs: settings whose smallest device is looked for besides `conf`; None: those that a cure
    tries.  The other arguments are those of `replay`.
    Raises RecordingError if several devices are recorded and none is named, or if the device has
    no entries.
    """
    (prepared,) = prepare(recording, recording.only_device(device).device, torch_version)
    if not len(prepared.trace):
        what = f"device {prepared.trace.device} has no entries, so that no request can be judged"
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
    trials.note(setting, device_run)
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
        measures=measures_of(trace, device_run, rounds_of(prepared)),
        recommendation=recommend([Case(trials, device_run)], setting, confs, in_full=False),
    )


def _needs(trials: Trials, setting: Setting, confs: Sequence[str] | None) -> tuple[Need, ...]:
    prepared = trials.prepared
    config = setting.config(prepared.release)
    usual = usual_settings(config, expandable=allows_expandable(prepared))
    others = read_alike(usual, [prepared], config) if confs is None else tuple(map(Setting, confs))
    for each in others:
        each.config(prepared.release)  # a wrong one is the user's to know
    every = dict.fromkeys([setting, *others])
    return tuple(Need(each.conf, smallest_device(trials, each)) for each in every)
