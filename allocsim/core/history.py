"""Entries of the recorded history, and the allocator's work behind each.

Every action records an entry, in upstream's order.  The model notes its own work while a caller
wants it, so that a release by garbage collection and a release by a retry are distinguishable.
Source: semantics 6.1, 6.2.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from allocsim.state import DEFAULT_POOL, PoolId

__all__ = ["TraceEntry", "Witnessed", "Work"]


class TraceEntry(NamedTuple):
    """Row of the recorded history.

    address: free bytes of the device if the action is `oom`.
    """

    action: str
    address: int
    size: int
    stream: int
    pool_id: PoolId = DEFAULT_POOL


class Work(Enum):
    """Kind of work that an allocator is doing."""

    REQUEST = "request"
    POLL = "poll"
    WAIT = "wait"
    GARBAGE_COLLECTION = "garbage collection"
    RELEASE_OVERSIZE = "release oversize"
    RELEASE_CACHED = "release cached"
    DRIVER = "driver"


class Witnessed(NamedTuple):
    """History entry with the state of the allocator when it was recorded, in bytes."""

    entry: TraceEntry
    work: Work
    reserved: int
    device_free: int
