"""Recordings of PyTorch's memory history, with one column per field of the entries.

`load` reads a recording from any supported file, `find_defects` lists its defects, and
`start_state` reconstructs the segments that existed before the first entry.  This package does not
import allocsim.core, the model of PyTorch's allocator.  Its modules for files and for logs are
imported on first use.
"""

from typing import TYPE_CHECKING

from allocsim._lazy import lazily
from allocsim.recording.frames import Frame, FrameInterner, FrameTable
from allocsim.recording.provenance import (
    Annotation,
    CardMemory,
    Mark,
    MarkKind,
    Provenance,
    card_memory,
)
from allocsim.recording.recording import RELEASES, ROWS, Recording, layout_releases, options_read
from allocsim.recording.segments import PoolColumn, RecordedSettings, pools_of
from allocsim.recording.snapshot import read_snapshot
from allocsim.recording.soundness import (
    Defect,
    find_defects,
    refuse_contradictions,
    refuse_overlaps,
    refuse_unsound,
)
from allocsim.recording.start_state import Rewound, start_state, trimmed
from allocsim.recording.trace import (
    ACTION_CODES,
    BLOCK_ACTIONS,
    Action,
    BlockLives,
    Entry,
    Trace,
    Turn,
    completes_at_once,
)

if TYPE_CHECKING:
    from allocsim.recording.export import dump_snapshot, packed_file, write_snapshot
    from allocsim.recording.files import HOST, load, load_host
    from allocsim.recording.log_figures import LogFigure, LogFigures, figures_in
    from allocsim.recording.refusals import Refusal
    from allocsim.recording.source import (
        ENDINGS,
        LONGEST_LOG,
        TEXTS,
        FileForm,
        decoded,
        form_of,
        read_log,
        recordings_in,
    )
    from allocsim.recording.store import dump_npz, write_npz

__all__ = [
    "ACTION_CODES", "Action", "Annotation", "BLOCK_ACTIONS", "BlockLives", "ENDINGS", "CardMemory",
    "Entry", "FileForm", "Defect", "Frame", "FrameInterner", "FrameTable", "HOST", "LONGEST_LOG",
    "LogFigure", "LogFigures", "Mark", "MarkKind", "PoolColumn", "Provenance", "RELEASES",
    "Refusal", "ROWS", "TEXTS", "RecordedSettings", "Recording", "Rewound", "Trace", "Turn",
    "card_memory", "completes_at_once", "decoded", "dump_npz", "dump_snapshot", "figures_in",
    "form_of", "find_defects", "load", "load_host", "options_read", "packed_file", "pools_of",
    "read_log", "read_snapshot", "recordings_in", "refuse_contradictions", "refuse_overlaps",
    "refuse_unsound", "layout_releases", "start_state", "trimmed", "write_npz", "write_snapshot",
]  # fmt: skip

_HOMES = {
    "export": "dump_snapshot packed_file write_snapshot",
    "files": "HOST load load_host",
    "log_figures": "LogFigure LogFigures figures_in",
    "refusals": "Refusal",
    "source": "ENDINGS LONGEST_LOG TEXTS FileForm decoded form_of read_log recordings_in",
    "store": "dump_npz write_npz",
}

__getattr__ = lazily(globals(), _HOMES)
