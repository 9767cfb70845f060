"""What an entry says happened, by the codes that columns hold.

The codes are stored in files, so they are never renumbered, only added to (semantics 6.1).
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ACTION_CODES", "BLOCK_ACTIONS", "INPUT_ACTIONS", "Action"]


class Action(IntEnum):
    """What an entry says happened; `text` is PyTorch's own string."""

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
        """The action as snapshots spell it: "alloc", "segment_alloc", "oom", …"""
        return self.name.lower()


ACTION_CODES = {action.text: int(action) for action in Action}
"""The code of an action by PyTorch's own string."""

INPUT_ACTIONS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.OOM)
"""The actions that drive a replay; every other one is an observation of what PyTorch did."""

BLOCK_ACTIONS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
"""The actions in a block's life; at one address they take turns."""
