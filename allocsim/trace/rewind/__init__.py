"""The state before the first entry, told by undoing the entries from the state after the last."""

from allocsim.trace.rewind.disjoint import never_overlap
from allocsim.trace.rewind.start_state import Rewound, start_state, trimmed

__all__ = ["Rewound", "never_overlap", "start_state", "trimmed"]
