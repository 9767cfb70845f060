"""Write recordings as PyTorch snapshots, and replace files without leaving them incomplete.

A snapshot is a pickle in protocol 4, the newest that PyTorch's viewer reads.  It has the same
optional fields as the file that was read, from which the PyTorch release is detected.
"""

from __future__ import annotations

import gzip
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from allocsim.recording.frames import FrameTable
from allocsim.recording.provenance import KEY
from allocsim.recording.recording import Recording
from allocsim.recording.trace import Action, Trace


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces `path` if the `with` statement ends without an error."""
    place = Path(path).resolve()
    beside = place.with_name(f".{place.name[:200]}.{os.getpid()}.part")
    try:
        with beside.open("xb") as file:
            yield file
        beside.replace(place)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@contextmanager
def packed_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces `path` when the `with` statement ends without an error.

    If `path` ends in .gz, the written data is compressed, without a timestamp.
    """
    with whole_file(path) as file:
        if not os.fspath(path).endswith(".gz"):
            yield file
            return
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
            yield cast(BinaryIO, packed)


_PROTOCOL = 4
_OF_BLOCKS = ("address", "size", "requested_size", "state")

Plain = dict[str, object]
Frames = Callable[[int], object]


def write_snapshot(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write `recording` as a pickled snapshot; compress it if `path` ends in .gz."""
    with packed_file(path) as file:
        dump_snapshot(recording, file)


def dump_snapshot(recording: Recording, file: BinaryIO) -> None:
    pickle.dump(snapshot_of(recording), file, protocol=_PROTOCOL)


def snapshot_of(recording: Recording) -> object:
    """Convert a recording to the object that PyTorch pickles as a snapshot."""
    frames = _stacks(recording.frame_table)
    has_pools = "segment_pool_id" in recording.markers or "segments" not in recording.markers
    segments = [
        segment
        for trace in recording.devices
        for segment in segments_plain(trace, frames, has_pools=has_pools)
    ]
    if recording.layout == "segment list":
        return segments
    count = max([recording.n_device_traces, *(trace.device + 1 for trace in recording.devices)])
    traces: list[list[Plain]] = [[] for _ in range(count)]
    for trace in recording.devices:
        traces[trace.device] = _entries(trace, frames)
    snapshot: Plain = {"segments": segments, "device_traces": traces}
    if recording.settings is not None:
        snapshot["allocator_settings"] = recording.settings.plain()
    if "external_annotations" in recording.markers:
        snapshot["external_annotations"] = [mark.plain() for mark in recording.annotations]
    if recording.provenance is not None:
        snapshot[KEY] = recording.provenance.plain(recording.devices)
    if "host_segments" in recording.markers:
        snapshot |= {"host_segments": [], "host_traces": []}
    return snapshot


def segments_plain(trace: Trace, frames: Frames, *, has_pools: bool = True) -> list[Plain]:
    """Return the final segments of `trace` as dictionaries with the keys of PyTorch's snapshots.

    frames: function from a stack index to the value to write for the stack.
    has_pools: True to write the fields that exist since PyTorch 2.1.
    """
    every = []
    for segment in trace.segments:
        plain: Plain = {"device": trace.device, "address": segment.address}
        for name in ("total_size", "allocated_size", "active_size", "requested_size", "stream"):
            plain[name] = getattr(segment, name)
        plain["segment_type"] = "small" if segment.is_small else "large"
        if has_pools:
            plain["segment_pool_id"] = segment.pool_id
            plain["is_expandable"] = segment.is_expandable
            plain["frames"] = frames(segment.frames)
        plain["blocks"] = [
            {name: getattr(block, name) for name in _OF_BLOCKS} | {"frames": frames(block.frames)}
            for block in segment.blocks
        ]
        every.append(plain)
    return every


def _entries(trace: Trace, frames: Frames) -> list[Plain]:
    names = {int(action): action.text for action in Action}
    columns = (trace.action, trace.addr, trace.size, trace.stream, trace.frames)
    entries: list[Plain] = []
    for row in zip(*(column.tolist() for column in columns), strict=True):
        action, addr, size, stream, stack = row
        addr_key = "device_free" if action == Action.OOM else "addr"
        entries.append({"action": names[action], addr_key: addr, "size": size, "stream": stream})
        if stack >= 0:
            entries[-1]["frames"] = frames(stack)
    if trace.time_us is not None:
        for entry, time in zip(entries, trace.time_us.tolist(), strict=True):
            entry["time_us"] = time
    numbered: tuple[tuple[str, NDArray[np.int32] | None, Sequence[object]], ...] = (
        ("pool_id", trace.pool_id, trace.pool_ids),
        ("compile_context", trace.compile_context, trace.texts),
        ("user_metadata", trace.user_metadata, trace.texts),
    )
    for name, column, values in numbered:
        for entry, number in zip(entries, () if column is None else column.tolist(), strict=False):
            if number >= 0:
                entry[name] = values[number]
    return entries


def _stacks(table: FrameTable) -> Frames:
    frames = [{"name": f.name, "filename": f.filename, "line": f.line} for f in table.frames]
    flat = [frames[number] for number in table.flat.tolist()]
    stacks = [flat[first:last] for first, last in pairwise(table.offsets.tolist())]
    stacks.append([])  # index -1: no stack
    return stacks.__getitem__
