"""The state before the first entry, told by undoing the entries from the state after the last."""

from allocsim.trace.rewind.start_state import start_state, trimmed

__all__ = ["start_state", "trimmed"]
