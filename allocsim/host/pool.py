"""Blocks of pinned memory, with the free lists and waiting events of one pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from allocsim.core import HashOrder
from allocsim.host.stats import ActiveStats
from allocsim.state import ALLOCATED, DEFAULT_POOL, INACTIVE, PENDING, PoolId

Event = tuple[int, int]
"""(stream, number of the event on it)."""


@dataclass(slots=True, eq=False)
class HostBlock:
    """Block of pinned memory, used by the program or free.

    size: bytes, rounded.
    streams: streams that use the block, in the order of upstream's hash table; None if there are
        none.
    event_count: number of events that must pass before the freed block can be reused.
    in_capture: True if the block's last request came from a graph capture.

    Mirrors: HostBlock
    """

    address: int
    size: int
    pool_id: PoolId
    allocated: bool = True
    streams: HashOrder[int, None] | None = None
    event_count: int = 0
    in_capture: bool = False

    @property
    def active(self) -> bool:
        """True if the program uses the block, or a stream may still use it."""
        return self.allocated or self.event_count > 0


@dataclass(slots=True, eq=False)
class HostBlockPool:
    """Default pool, or private pool of a graph capture.

    blocks: all blocks by address.
    events: events that frees wait for, with their blocks, oldest first.
    use_count: number of captures and graphs that use a private pool.

    Mirrors: HostBlockPool, HostPrivatePool
    """

    stats: ActiveStats
    pool_id: PoolId = DEFAULT_POOL
    blocks: dict[int, HostBlock] = field(default_factory=dict)
    events: deque[tuple[Event, HostBlock]] = field(default_factory=deque)
    use_count: int = 1
    _free: dict[int, list[HostBlock]] = field(default_factory=dict)

    def get_free_block(self, size: int, *, takes_newest: bool) -> HostBlock | None:
        """Remove and return the newest free block of a bucket that serves `size` bytes.

        A bucket has the blocks of one power of two.  Returns None if it has no such block.
        takes_newest: True to return the newest block even if it is too small.
        Source: semantics 13.2.
        """
        free = self._free.get(bucket_of(size), [])
        for at in range(len(free) - 1, -1, -1):
            if takes_newest or free[at].size >= size:
                return free.pop(at)
        return None

    def add_free_block(self, block: HostBlock) -> None:
        self._free.setdefault(bucket_of(block.size), []).append(block)

    def take_free_blocks(self) -> Iterator[HostBlock]:
        """Remove and yield all free blocks, bucket by bucket, the oldest of each first."""
        for bucket in sorted(self._free):
            yield from self._free.pop(bucket)


def bucket_of(size: int) -> int:
    """Return the exponent of the smallest power of two that is at least `size`.

    Mirrors: size_index
    """
    return (size - 1).bit_length()


def segment_of(block: HostBlock) -> dict[str, Any]:
    """Return a block as a segment of a snapshot (semantics 13.7)."""
    state = ALLOCATED if block.allocated else PENDING if block.event_count else INACTIVE
    return {
        "device": -1,
        "address": block.address,
        "total_size": block.size,
        "allocated_size": block.size if block.allocated else 0,
        "active_size": block.size if block.active else 0,
        "requested_size": block.size,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": block.pool_id,
        "is_expandable": False,
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.size,
                "state": state,
            }
        ],
    }
