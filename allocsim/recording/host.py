"""Read the pinned host memory of a snapshot, which PyTorch records from 2.14 on.

Its segments and entries have the layout of a device, with -1 for the device's number (semantics
13.7).
"""

from __future__ import annotations

import dataclasses
import os

from allocsim.errors import RecordingError
from allocsim.recording.load import read_object, read_snapshot
from allocsim.recording.trace import Trace

HOST = -1
"""Device number of pinned host memory in snapshots."""

_HOW = "record_pinned_host_memory=True of _record_memory_history() records it from torch 2.14 on"


def load_host(path: str | os.PathLike[str]) -> Trace:
    """Return the pinned host memory in a snapshot, as the trace of device -1.

    Raises RecordingError for any other file, and for a snapshot without pinned host memory.
    """
    name = os.fspath(path)
    value, size = read_object(name)
    if not isinstance(value, dict) or "host_traces" not in value:
        raise RecordingError(name, f"has no pinned host memory; {_HOW}")
    segments = value.get("host_segments")
    if isinstance(segments, list):
        segments = [s | {"device": 0} if isinstance(s, dict) else s for s in segments]
    plain = {"segments": segments, "device_traces": [value["host_traces"]]}
    devices = read_snapshot(name, plain, size).devices
    if not devices:
        raise RecordingError(name, f"has an empty history of pinned host memory; {_HOW}")
    return dataclasses.replace(devices[0], device=HOST)
