"""Recordings of PyTorch's memory history, as columns.

`load` reads a recording from any supported file, `lint` reports problems in it, and `start_state`
reconstructs the segments that existed before the first entry.  This package does not depend on the
allocator model.
"""

from allocsim.trace.action import ACTION_CODES, BLOCK_ACTIONS, Action
from allocsim.trace.annotation import Annotation
from allocsim.trace.backend import options_read
from allocsim.trace.by_address import Turn, completes_at_once
from allocsim.trace.card_memory import CardMemory, card_memory
from allocsim.trace.export import dump_snapshot, write_snapshot
from allocsim.trace.folder import ENDINGS, recordings_in
from allocsim.trace.form import FileForm, form_of
from allocsim.trace.frames import Frame, FrameInterner, FrameTable
from allocsim.trace.lint import Finding, lint, refuse_contradictions, refuse_unsound
from allocsim.trace.load import load, read_snapshot
from allocsim.trace.log_file import LONGEST_LOG, decoded, read_log
from allocsim.trace.marks import Mark, MarkKind
from allocsim.trace.named_text import TEXTS
from allocsim.trace.pools import PoolColumn, pools_of
from allocsim.trace.provenance import Provenance
from allocsim.trace.recording import ROWS, Recording
from allocsim.trace.releases import RELEASES, releases_of
from allocsim.trace.rewind import Rewound, start_state, trimmed
from allocsim.trace.segments import WrongSum
from allocsim.trace.settings import RecordedSettings
from allocsim.trace.store import dump_npz, write_npz
from allocsim.trace.trace import Entry, Trace
from allocsim.trace.whole_file import packed_file

__all__ = [
    "ACTION_CODES",
    "Action",
    "Annotation",
    "BLOCK_ACTIONS",
    "ENDINGS",
    "CardMemory",
    "Entry",
    "FileForm",
    "Finding",
    "Frame",
    "FrameInterner",
    "FrameTable",
    "LONGEST_LOG",
    "Mark",
    "MarkKind",
    "PoolColumn",
    "Provenance",
    "RELEASES",
    "ROWS",
    "TEXTS",
    "RecordedSettings",
    "Recording",
    "Rewound",
    "Trace",
    "Turn",
    "WrongSum",
    "card_memory",
    "completes_at_once",
    "decoded",
    "dump_npz",
    "dump_snapshot",
    "form_of",
    "lint",
    "load",
    "options_read",
    "packed_file",
    "pools_of",
    "read_log",
    "read_snapshot",
    "recordings_in",
    "refuse_contradictions",
    "refuse_unsound",
    "releases_of",
    "start_state",
    "trimmed",
    "write_npz",
    "write_snapshot",
]
