"""Convert snapshots of PyTorch's memory history, from any PyTorch release, to recordings.

A snapshot is untrusted: every used value is checked, and the size of the file limits the number of
created objects.
"""

from __future__ import annotations

import dataclasses
from typing import NoReturn

from allocsim.errors import RecordingError
from allocsim.recording.columns import Entries, EntryRows, entries_of, read_trace
from allocsim.recording.fields import Fields, describe
from allocsim.recording.frames import StackReader
from allocsim.recording.provenance import marked, read_annotations, read_provenance
from allocsim.recording.recording import Recording, markers_in
from allocsim.recording.segments import RecordedSettings, SegmentReader, read_settings

_MAX_DEVICES = 1024


def read_snapshot(path: str, value: object, size: int) -> Recording:
    """Convert a snapshot to a recording.

    path: name of the file, for errors.
    value: plain Python values that a pickle or JSON file contains.
    size: bytes of the file, which limit the number of entries, segments, blocks and frames.
    """
    markers: set[str] = set()
    if isinstance(value, list):
        top = Fields(path, "the segment list", {"segments": value})
    elif isinstance(value, dict):
        top = Fields(path, "the snapshot", value)
        markers.add("snapshot")
        markers.update(name for name in markers_in("snapshot") if name in top)
    else:
        raise RecordingError(
            path, f"holds {describe(value)}, expected a snapshot's dictionary or segment list"
        )
    if "segments" not in top:
        _refuse_without_segments(top)
    stacks = StackReader(size)
    reader = SegmentReader(path, stacks.read, size)
    states = reader.read(top.items("segments"))
    markers |= reader.markers
    settings = _settings(top, markers)
    traces = _traces(top, size)
    devices = []
    for device in sorted({*states, *(i for i, entries in enumerate(traces) if len(entries))}):
        entries = traces[device] if device < len(traces) else EntryRows([])
        trace, found = read_trace(path, device, entries, states.get(device, ()), stacks)
        devices.append(trace)
        markers |= found
    table = stacks.table()
    is_old = "segments" in markers and "segment_pool_id" not in markers
    layout = "snapshot 2.0" if is_old else "snapshot"
    return Recording(
        path=path,
        layout=layout if isinstance(value, dict) else "segment list",
        devices=marked(
            top, size, (dataclasses.replace(trace, frame_table=table) for trace in devices)
        ),
        settings=settings,
        frame_table=table,
        annotations=read_annotations(top, size),
        markers=frozenset(markers),
        n_device_traces=len(traces),
        provenance=read_provenance(top),
        wrong_sums=tuple(reader.wrong_sums),
    )


def _refuse_without_segments(top: Fields) -> NoReturn:
    keys = top.keys()
    if any(key.startswith("allocated_bytes.") for key in keys):
        top.refuse("holds the figures of torch.cuda.memory_stats(), and no requests or segments")
    named = ", ".join(map(describe, keys[:3])) if keys else "none"
    top.refuse(
        "holds a dictionary without segments, expected a PyTorch memory snapshot (it has the keys "
        f"{named}{', …' * (len(keys) > 3)})"
    )


def _traces(top: Fields, size: int) -> list[Entries]:
    if "device_traces" not in top:
        return []
    traces = top.items("device_traces")
    if len(traces) > _MAX_DEVICES:
        top.wrong("device_traces", traces, f"at most {_MAX_DEVICES} devices")
    entries = [entries_of(top.path, device, trace) for device, trace in enumerate(traces)]
    total = sum(map(len, entries))
    if total > size:
        top.refuse(f"device_traces holds {total} entries, more than its {size} bytes can hold")
    return entries


def _settings(top: Fields, markers: set[str]) -> RecordedSettings | None:
    if "allocator_settings" not in top:
        return None
    value = top.value("allocator_settings", "a dictionary")
    fields = Fields(top.path, "allocator_settings", value)
    markers.add("settings")
    markers.update(name for name in markers_in("settings") if name in fields)
    return read_settings(fields)
