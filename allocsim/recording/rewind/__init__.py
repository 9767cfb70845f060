"""Reconstruct the state before an entry by undoing the entries after it."""

from allocsim.recording.rewind.disjoint import never_overlap
from allocsim.recording.rewind.start_state import Rewound, start_state, trimmed

__all__ = ["Rewound", "never_overlap", "start_state", "trimmed"]
