"""Read files with recordings of PyTorch's memory history.

A file is untrusted: nothing in it is executed, every used value is checked, and the number of
created objects is limited by the file's size.  docs/reference/formats.md lists all formats.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from typing import Any, BinaryIO

from allocsim.collector import collector_paused
from allocsim.errors import RecordingError
from allocsim.recording.fields import describe
from allocsim.recording.pickle_rows import OtherForm
from allocsim.recording.recording import Recording
from allocsim.recording.snapshot import read_snapshot
from allocsim.recording.source import HEAD, Kind, kind_of, open_source
from allocsim.recording.store import read_npz, with_cache
from allocsim.recording.straight import read_straight
from allocsim.recording.trace import Trace
from allocsim.recording.unpickle import check_density, unpickle
from allocsim.units import MIB

_LARGE = MIB
_BYTES_AN_OPERATION = 40
"""Bytes of a pickle for each pickle operation that straight.py may read singly.

straight.py reads similar entries together, and other pickle operations singly.  A pickle with more
single operations than its size divided by this number is read by `unpickle` instead.
"""


def load(path: str | os.PathLike[str]) -> Recording:
    """Return the recording in a file of any supported format, detected from the contents.

    Formats: PyTorch's snapshots as a pickle, JSON or web page of `_memory_viz trace_plot`; column
    files of allocsim (.npz); and files with only requests and frees, which are traces and memory
    timelines of PyTorch's profiler, CSV, or JSON rows.  All except .npz may be compressed by gzip,
    xz, zstd or zip.  The columns of large files are cached (docs/commands/convert.md).

    Raises RecordingError for any other file.
    """
    return with_cache(os.fspath(path), _load)


def _load(name: str) -> Recording:
    try:
        with open_source(name) as file, collector_paused():
            return _read(name, file)
    except MemoryError:
        raise RecordingError(name, "does not fit in this machine's memory") from None
    except OSError as error:
        raise RecordingError(name, f"cannot be read ({error.strerror or error})") from None


def read_object(name: str) -> tuple[object, int]:
    """Return the snapshot in a pickle or JSON file as plain Python values, and the file's size.

    The size is in bytes, after unpacking.
    """
    with open_source(name) as file, collector_paused():
        kind = kind_of(name, file.read(HEAD))
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if kind is Kind.JSON:
            return _read_json(name, file.read(), size), size
        if kind is Kind.PICKLE:
            return unpickle(name, file), size
    raise RecordingError(name, "is no snapshot as a pickle or JSON")


def _read(name: str, file: BinaryIO) -> Recording:
    kind = kind_of(name, file.read(HEAD))
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    match kind:
        case Kind.ZIP:
            return read_npz(name, file)
        case Kind.PAGE:
            from allocsim.recording.packings import snapshot_in_page  # noqa: PLC0415

            with snapshot_in_page(name, file) as pickled:
                return read_snapshot(name, unpickle(name, pickled), size)
        case Kind.CSV | Kind.LINES:
            from allocsim.recording.requests import read_csv, read_lines  # noqa: PLC0415

            return (read_csv if kind is Kind.CSV else read_lines)(name, file)
        case Kind.JSON:
            return _from_json(name, file, size)
    return _read_pickle(name, file, size)


def _read_pickle(path: str, file: BinaryIO, size: int) -> Recording:
    if size >= _LARGE:
        # `unpickle` finds the same error again, and names the entry in its message.
        with contextlib.suppress(OtherForm, RecordingError):
            return read_snapshot(path, read_straight(file, size // _BYTES_AN_OPERATION), size)
    return read_snapshot(path, unpickle(path, file), size)


def _from_json(path: str, file: BinaryIO, size: int) -> Recording:
    from allocsim.recording.requests import (  # noqa: PLC0415
        is_profiler_trace,
        is_rows,
        is_timeline,
        read_profiler_trace,
        read_row_objects,
        read_timeline,
    )

    data = file.read()
    if is_profiler_trace(data):
        return read_profiler_trace(path, data)
    value = _read_json(path, data, size)
    if isinstance(value, list) and is_timeline(value):
        return read_timeline(path, value)
    if is_rows(value):
        return read_row_objects(path, value)
    if isinstance(value, list) and value and not _is_segment(value[0]):
        raise RecordingError(
            path,
            f"holds a list whose first item is {describe(value[0])}, expected segments, rows with "
            "an action, or a profiler's events",
        )
    return read_snapshot(path, value, size)


def _is_segment(value: object) -> bool:
    return isinstance(value, dict) and "segment_type" in value


def _read_json(path: str, data: bytes, size: int) -> object:
    check_density(path, size, dicts=data.count(b"{"), lists=data.count(b"["))
    frames: dict[tuple[object, ...], dict[str, Any]] = {}

    def interned(value: dict[str, Any]) -> dict[str, Any]:
        # JSON repeats each frame in each stack; a million equal dictionaries would fill the memory.
        if len(value) != 3 or "filename" not in value:
            return value
        key = (value["filename"], value.get("name"), value.get("line"))
        if any(type(part) not in (str, int) for part in key):
            return value
        return frames.setdefault(key, value)

    try:
        return json.loads(data, object_hook=interned)
    except RecursionError:
        raise RecordingError(path, "is nested too deeply to be a recording") from None
    except (ValueError, UnicodeDecodeError) as error:
        reason = ascii(str(error)[:100])[1:-1]
        raise RecordingError(path, f"is neither a pickle nor sound JSON ({reason})") from None


HOST = -1
"""Device index that snapshots give to pinned host memory."""

_HOW = "record_pinned_host_memory=True of _record_memory_history() records it from torch 2.14 on"


def load_host(path: str | os.PathLike[str]) -> Trace:
    """Return the recorded pinned host memory of a snapshot file, as a trace of device -1."""
    name = os.fspath(path)
    value, size = read_object(name)
    if not isinstance(value, dict) or "host_traces" not in value:
        raise RecordingError(name, f"has no pinned host memory; {_HOW}")
    segments = value.get("host_segments")
    if isinstance(segments, list):
        # PyTorch writes the device number -1, which `read_snapshot` refuses.
        segments = [s | {"device": 0} if isinstance(s, dict) else s for s in segments]
    plain = {"segments": segments, "device_traces": [value["host_traces"]]}
    devices = read_snapshot(name, plain, size).devices
    if not devices:
        raise RecordingError(name, f"has an empty history of pinned host memory; {_HOW}")
    return dataclasses.replace(devices[0], device=HOST)
