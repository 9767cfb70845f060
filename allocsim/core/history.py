"""Entries of the memory history, as in `device_traces` of a PyTorch snapshot.

Every action of the allocator records an entry, in upstream's order.  `CachingAllocator.witness`
also gives the work that the allocator was doing at each entry.  It distinguishes a
`segment_free` by garbage collection from a `segment_free` before a retry.

Source: semantics 6.1, 6.2.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from allocsim.state import DEFAULT_POOL, PoolId


class TraceEntry(NamedTuple):
    """One action of the allocator.

    action: "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
        "segment_map", "segment_unmap", "oom" or "snapshot".
    address: address of the block or segment; free bytes of the device if the action is "oom".
    size: bytes; the requested size if the action concerns a block.
    stream: raw stream handle.
    """

    action: str
    address: int
    size: int
    stream: int
    pool_id: PoolId = DEFAULT_POOL


class Work(Enum):
    """Work of the allocator while it records an entry."""

    REQUEST = "request"  # serving a call of the program
    POLL = "poll"  # completing frees whose events have passed
    WAIT = "wait"  # waiting for all events
    GARBAGE_COLLECTION = "garbage collection"
    RELEASE_OVERSIZE = "release oversize"
    RELEASE_CACHED = "release cached"  # empty_cache, or the same before a retry
    DRIVER = "driver"  # obtaining memory from the driver


class Witnessed(NamedTuple):
    """History entry with the state of the allocator when it was recorded.

    reserved: bytes obtained from the driver.
    device_free: free bytes of the device.
    """

    entry: TraceEntry
    work: Work
    reserved: int
    device_free: int
