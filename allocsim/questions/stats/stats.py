"""A file in figures: what it is, what it holds of each device, and how much memory that was.

Rule: every figure is counted from the file; nothing is replayed.  What was requested is in the
entries, what blocks were rounded to is not: that is `replay`'s to tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from allocsim.arrays import distinct
from allocsim.display import Shown
from allocsim.state import ALLOCATED, SegmentState
from allocsim.trace import Action, FileForm, Recording, Trace, form_of, lint
from allocsim.units import format_size

__all__ = ["DeviceStats", "Stats", "stats"]


@dataclass(frozen=True, slots=True)
class DeviceStats:
    """One device; sizes are bytes.

    actions: by PyTorch's name, how many entries have it.
    begins: "empty": at an empty device; "mid_run": with memory held before the first entry;
        "state": there is no history; "unsound": the entries contradict the state; "requests": the
        file holds requests and frees alone.
    start_segments, start_bytes: held before the first entry, None where that cannot be told.
    first_us, last_us: the times of the first and the last entry, None where none is recorded.
    peak_reserved_bytes, peak_requested_bytes: the most held from the driver, and asked for and not
        yet freed, after any entry; None without a sound history.
    segments, reserved_bytes, allocated_bytes, active_bytes, requested_bytes, blocks: at the end;
        `blocks` are those allocated, requested is by the active ones.
    streams, pools: how many different ones entries and segments name.
    stackless: requests without a stack.
    """

    device: int
    entries: int
    actions: dict[str, int]
    begins: str
    start_segments: int | None
    start_bytes: int | None
    first_us: int | None
    last_us: int | None
    peak_reserved_bytes: int | None
    peak_requested_bytes: int | None
    segments: int
    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int
    blocks: int
    streams: int
    pools: int
    stackless: int


@dataclass(frozen=True, slots=True, repr=False)
class Stats(Shown):
    """What is in a file.

    form: None of a recording that no file holds.
    layout: as in `Recording`.
    releases: of PyTorch, that write such a layout, the oldest first; none of requests alone.
    torch_version, device_name, device_memory, is_phantom, command: as noted by `allocsim record` or
        `allocsim.capture`; "", 0 and False where nobody noted them.
    conf: the option string, None where none is recorded.
    stacks, frames: different ones.  deepest: frames of the deepest stack.
    annotations: of the program, such as steps of an optimizer.  marks: of calls without an entry.
    """

    path: str
    form: FileForm | None
    layout: str
    releases: tuple[str, ...]
    torch_version: str
    device_name: str
    device_memory: int
    is_phantom: bool
    command: str
    conf: str | None
    devices: tuple[DeviceStats, ...]
    stacks: int
    frames: int
    deepest: int
    annotations: int
    marks: int

    def headline(self) -> str:
        """The file and its devices."""
        name = self.path.rsplit("/", 1)[-1]
        told = (f"{d.entries:,} entries, {format_size(d.reserved_bytes)}" for d in self.devices)
        return f"{name}: {'; '.join(told) or 'no device'}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """The figures of each device."""
        yield "form", str(self.form) if self.form is not None else "no file"
        for each in self.devices:
            yield f"device {each.device}", f"{each.entries:,} entries, {each.segments} segments"


def stats(recording: Recording) -> Stats:
    """What is in `recording`, and in the file that it was loaded from, if that is still there.

    Raises RecordingError if the file is there and cannot be read.
    """
    made = recording.provenance
    starts = {} if recording.is_requests else _starts(recording)
    table = recording.frame_table
    lengths = np.diff(table.offsets)
    return Stats(
        path=recording.path,
        form=_form(recording.path),
        layout=recording.layout,
        releases=() if recording.is_requests else recording.releases,
        torch_version="" if made is None else made.torch_version,
        device_name="" if made is None else made.device_name,
        device_memory=0 if made is None else made.device_memory,
        is_phantom=made is not None and made.is_phantom,
        command="" if made is None else made.command,
        conf=None if recording.settings is None else recording.settings.conf,
        devices=tuple(
            _requests_of(trace)
            if recording.is_requests
            else _device(trace, starts.get(trace.device))
            for trace in recording.devices
        ),
        stacks=len(table),
        frames=len(table.frames),
        deepest=int(lengths.max(initial=0)),
        annotations=len(recording.annotations),
        marks=sum(len(trace.marks) for trace in recording.devices),
    )


def _form(path: str) -> FileForm | None:
    return form_of(path) if Path(path).is_file() else None


def _starts(recording: Recording) -> dict[int, tuple[SegmentState, ...]]:
    """The segments before the first entry, of each device with a sound history."""
    starts: dict[int, tuple[SegmentState, ...]] = {}
    lint(recording, starts)
    with_history = {trace.device for trace in recording.devices if len(trace.inputs())}
    return {device: start for device, start in starts.items() if device in with_history}


def _device(trace: Trace, start: tuple[SegmentState, ...] | None) -> DeviceStats:
    peaks = None if start is None else _peaks(trace, start)
    times = trace.time_us if trace.time_us is not None and len(trace) else None
    allocs = trace.action == Action.ALLOC
    pools = {segment.pool_id for segment in trace.segments} | set(trace.pool_ids)
    return DeviceStats(
        device=trace.device,
        entries=len(trace),
        actions={action.text: n for action in Action if (n := trace.count(action))},
        begins=_begins(trace, start),
        start_segments=None if start is None else len(start),
        start_bytes=None if start is None else sum(segment.total_size for segment in start),
        first_us=None if times is None else int(times[0]),
        last_us=None if times is None else int(times[-1]),
        peak_reserved_bytes=None if peaks is None else peaks[0],
        peak_requested_bytes=None if peaks is None else peaks[1],
        segments=len(trace.segments),
        reserved_bytes=sum(segment.total_size for segment in trace.segments),
        allocated_bytes=sum(segment.allocated_size for segment in trace.segments),
        active_bytes=sum(segment.active_size for segment in trace.segments),
        requested_bytes=sum(segment.requested_size for segment in trace.segments),
        blocks=sum(b.state == ALLOCATED for segment in trace.segments for b in segment.blocks),
        streams=len({*distinct(trace.stream[trace.inputs()]).tolist(), *_streams(trace)}),
        pools=len(pools),
        stackless=int(np.count_nonzero(trace.frames[allocs] < 0)),
    )


def _requests_of(trace: Trace) -> DeviceStats:
    """A device of a file that knows no segments."""
    _, requested = _peaks(trace, ())
    found = _device(trace, None)
    return replace(found, begins="requests", peak_requested_bytes=requested)


def _streams(trace: Trace) -> set[int]:
    return {segment.stream for segment in trace.segments}


def _begins(trace: Trace, start: tuple[SegmentState, ...] | None) -> str:
    if start is None:
        return "unsound" if len(trace.inputs()) else "state"
    return "mid_run" if start else "empty"


def _peaks(trace: Trace, start: tuple[SegmentState, ...]) -> tuple[int, int]:
    """The most bytes reserved, and the most requested and not freed, after any entry."""
    held = sum(segment.total_size for segment in start)
    live = [b for segment in start for b in segment.blocks if b.state == ALLOCATED]
    asked = sum(block.requested_size for block in live)
    allocs, frees = trace.action == Action.ALLOC, trace.action == Action.FREE_REQUESTED
    requested = asked + np.cumsum(trace.size * (allocs.astype(np.int64) - frees))
    return trace.most_reserved(held), max(asked, int(requested.max(initial=0)))
