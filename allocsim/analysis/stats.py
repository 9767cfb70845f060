"""Summarise a recording: format of its file, contents and memory of each device.

All numbers are counted from the file without a replay.  The peak of allocated memory needs a
replay, so it is not among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from allocsim._fast_numpy import distinct
from allocsim._repr import Shown
from allocsim.recording import Action, FileForm, Provenance, Recording, Trace, find_defects, form_of
from allocsim.state import ALLOCATED, SegmentState
from allocsim.units import format_size


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """Contents of a recording for one device; sizes are bytes.

    entries: number of history entries.
    actions: dictionary from PyTorch's name of an action ("alloc", "free_requested", …) to the
        number of entries with this action.
    begins: memory before the first entry: "empty" if none is held, "mid_run" if some is held;
        "unsound" if the entries contradict the recorded segments; "state" if there are no entries;
        "requests" if the file contains only requests and frees.
    start_segments, start_bytes: number and bytes of segments before the first entry; None if
        unknown.
    first_us, last_us: times of the first and last entry in microseconds; None if not recorded.
    peak_reserved_bytes, peak_requested_bytes: peaks of reserved memory and of live requests; None
        if the entries are missing or contradict the recorded segments.
    segments, reserved_bytes, allocated_bytes, active_bytes: number of segments, and bytes, after
        the last entry.
    requested_bytes: bytes of the active blocks at the end, before rounding.
    blocks: number of allocated blocks at the end.
    streams, pools: number of distinct streams and pools.
    stackless: number of allocations without a recorded stack.
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
    """Summary of a recording.

    form: format of the file; None if the recording is not in a file.
    layout: arrangement of the contents, such as "snapshot" or "segment list"; the values are those
        of `Recording.layout`.
    releases: PyTorch releases that write this layout, oldest first; empty if the file contains only
        requests and frees.
    torch_version, device_name, device_memory, is_phantom, command: facts about the recorded run
        that `allocsim record` or `allocsim.capture` stored; "", 0 and False if not stored.
        `is_phantom` means that it ran on a phantom GPU.
    conf: PYTORCH_CUDA_ALLOC_CONF of the run; None if not recorded.
    stacks, frames: number of distinct stacks and frames.
    deepest: number of frames in the deepest stack.
    annotations: number of named time ranges that the program recorded, such as optimizer steps.
    marks: number of recorded calls that have no entry, such as empty_cache().
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
    devices: tuple[DeviceSummary, ...]
    stacks: int
    frames: int
    deepest: int
    annotations: int
    marks: int

    def headline(self) -> str:
        name = self.path.rsplit("/", 1)[-1]
        devices = (f"{d.entries:,} entries, {format_size(d.reserved_bytes)}" for d in self.devices)
        return f"{name}: {'; '.join(devices) or 'no device'}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        yield "form", str(self.form) if self.form is not None else "no file"
        for each in self.devices:
            yield f"device {each.device}", f"{each.entries:,} entries, {each.segments} segments"


def stats(recording: Recording) -> Stats:
    """Return a summary of `recording`; the format of its file is None if the file is gone.

    Raises RecordingError if the file exists and cannot be read.
    """
    made = recording.provenance or Provenance()
    starts = {} if recording.is_requests else _starts(recording)
    table = recording.frame_table
    lengths = np.diff(table.offsets)
    return Stats(
        path=recording.path,
        form=form_of(recording.path) if Path(recording.path).is_file() else None,
        layout=recording.layout,
        releases=() if recording.is_requests else recording.releases,
        torch_version=made.torch_version,
        device_name=made.device_name,
        device_memory=made.device_memory,
        is_phantom=made.is_phantom,
        command=made.command,
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


def _starts(recording: Recording) -> dict[int, tuple[SegmentState, ...]]:
    starts: dict[int, tuple[SegmentState, ...]] = {}
    find_defects(recording, starts)
    # The segments of a device without requests are its final state, not a start state.
    with_history = {trace.device for trace in recording.devices if len(trace.inputs())}
    return {device: start for device, start in starts.items() if device in with_history}


def _device(trace: Trace, start: tuple[SegmentState, ...] | None) -> DeviceSummary:
    peaks = None if start is None else _peaks(trace, start)
    times = trace.time_us if trace.time_us is not None and len(trace) else None
    allocs = trace.action == Action.ALLOC
    streams = {*distinct(trace.stream[trace.inputs()]).tolist()}
    streams |= {segment.stream for segment in trace.segments}
    pools = {segment.pool_id for segment in trace.segments} | set(trace.pool_ids)
    return DeviceSummary(
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
        streams=len(streams),
        pools=len(pools),
        stackless=int(np.count_nonzero(trace.frames[allocs] < 0)),
    )


def _requests_of(trace: Trace) -> DeviceSummary:
    _, requested = _peaks(trace, ())
    found = _device(trace, None)
    return replace(found, begins="requests", peak_requested_bytes=requested)


def _begins(trace: Trace, start: tuple[SegmentState, ...] | None) -> str:
    if start is None:
        return "unsound" if len(trace.inputs()) else "state"
    return "mid_run" if start else "empty"


def _peaks(trace: Trace, start: tuple[SegmentState, ...]) -> tuple[int, int]:
    held = sum(segment.total_size for segment in start)
    live = [b for segment in start for b in segment.blocks if b.state == ALLOCATED]
    asked = sum(block.requested_size for block in live)
    allocs, frees = trace.action == Action.ALLOC, trace.action == Action.FREE_REQUESTED
    requested = asked + np.cumsum(trace.size * (allocs.astype(np.int64) - frees))
    return trace.most_reserved(held), max(asked, int(requested.max(initial=0)))
