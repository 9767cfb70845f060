"""Actions of entries, and the code of each action in columns and in column files (.npz).

Existing files contain the codes, so an existing code must never change (semantics 6.1).
"""

from __future__ import annotations

from enum import IntEnum


class Action(IntEnum):
    """Action of an entry; `text` is PyTorch's name for it."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    ANNOTATE = 9

    @property
    def text(self) -> str:
        """Return the name in snapshots, e.g. "alloc", "segment_alloc" or "oom"."""
        return self.name.lower()


ACTION_CODES = {action.text: int(action) for action in Action}
"""Code of each action, by PyTorch's name."""

INPUT_ACTIONS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.OOM)
"""Actions that a replay takes as input; all others are outputs of PyTorch, only compared."""

BLOCK_ACTIONS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
"""Actions on blocks.  Among the entries of one address, allocations and frees alternate."""
