"""The entries that an allocator records, and what it was doing when it recorded each.

Rule: every action leaves its entry, in upstream's order (6.2).  What the allocator was doing is
noted by the model itself while somebody asks, so that a release by garbage collection and one by a
retry are told apart for certain.  Source: semantics 6.1, 6.2.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from allocsim.state import DEFAULT_POOL, PoolId

__all__ = ["TraceEntry", "Witnessed", "Work"]


class TraceEntry(NamedTuple):
    """One row of the recorded history.  `address` is the device's free bytes for `oom`."""

    action: str
    address: int
    size: int
    stream: int
    pool_id: PoolId = DEFAULT_POOL


class Work(Enum):
    """What an allocator is doing."""

    REQUEST = "request"
    POLL = "poll"
    WAIT = "wait"
    GARBAGE_COLLECTION = "garbage collection"
    RELEASE_OVERSIZE = "release oversize"
    RELEASE_CACHED = "release cached"
    DRIVER = "driver"


class Witnessed(NamedTuple):
    """An entry, and the circumstances in which it was recorded; bytes."""

    entry: TraceEntry
    work: Work
    reserved: int
    device_free: int
