"""Recordings of PyTorch's memory history, as columns.

`load` reads any file that holds one; `lint` says what is wrong with it; `start_state` tells
what the device held before the first entry.  Nothing here knows what an allocator would do.
"""

from allocsim.trace.annotation import Annotation
from allocsim.trace.entry import INPUT_ACTIONS, Action, PoolId, TraceEntry
from allocsim.trace.export import snapshot_of, write_snapshot
from allocsim.trace.frames import Frame, FrameInterner, FrameTable
from allocsim.trace.lint import Finding, lint, refuse_unsound
from allocsim.trace.provenance import Provenance
from allocsim.trace.recording import Recording
from allocsim.trace.releases import RELEASES, releases_of
from allocsim.trace.settings import RecordedSettings
from allocsim.trace.snapshot import load
from allocsim.trace.start import start_state, trimmed
from allocsim.trace.state import ALLOCATED, INACTIVE, PENDING, BlockState, SegmentState
from allocsim.trace.store import read_npz, write_npz
from allocsim.trace.trace import Trace

__all__ = [
    "load",
    "lint",
    "refuse_unsound",
    "start_state",
    "trimmed",
    "read_npz",
    "write_npz",
    "write_snapshot",
    "snapshot_of",
    "releases_of",
    "Recording",
    "Provenance",
    "RecordedSettings",
    "Trace",
    "TraceEntry",
    "Action",
    "INPUT_ACTIONS",
    "PoolId",
    "SegmentState",
    "BlockState",
    "ALLOCATED",
    "PENDING",
    "INACTIVE",
    "Frame",
    "FrameTable",
    "FrameInterner",
    "Annotation",
    "Finding",
    "RELEASES",
]
