"""One row of a recording as an object; columns hold them by the million, this is for the edge.

`Action` holds upstream's strings and the codes of the columns; codes are stored in files, so
they are never renumbered, only added to.  Meanings of addr and size: semantics 6.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from allocsim.state import PoolId
from allocsim.trace.frames import Frame

__all__ = ["Action", "Entry", "INPUT_ACTIONS"]


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


INPUT_ACTIONS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.OOM)
"""The actions that drive a replay; every other one is an observation of what PyTorch did."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a device's trace (semantics 6.1 and 6.3).

    addr: bytes from 0; for `oom` the device's free bytes.
    size: bytes, the raw request for alloc and both frees, rounded for `oom`, actual for segments.
    time_us, pool_id, compile_context, user_metadata: None where not recorded.
    """

    action: Action
    addr: int
    size: int
    stream: int
    time_us: int | None = None
    frames: tuple[Frame, ...] = ()
    pool_id: PoolId | None = None
    compile_context: str | None = None
    user_metadata: str | None = None
