"""Reconstruct the segments and blocks before an entry by undoing it and all later entries."""

from allocsim.recording.rewind.disjoint import never_overlap
from allocsim.recording.rewind.start_state import Rewound, start_state, trimmed

__all__ = ["Rewound", "never_overlap", "start_state", "trimmed"]
