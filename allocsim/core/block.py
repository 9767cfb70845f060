"""A block: a range of a segment, handed out or cached.

Invariant: `prev` and `next` are the neighbours in the same segment, so that
`block.ptr + block.size == block.next.ptr`; a block without neighbours is a whole segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allocsim.core.expandable import ExpandableSegment
    from allocsim.core.hash_order import HashOrder
    from allocsim.core.pool import BlockPool

__all__ = ["Block"]


class Block:
    """A range of a segment.

    ptr, size: where, in bytes.  requested_size: the raw request of the last tenant of this
    object, stale while free, as upstream leaves it.  rank: added to the address, its place among
    free blocks of its size (`Heap.new_segment_rank`).  free: the free blocks of its pool and
    stream, whether or not it is one.  key: where it is among them, 0 if it is not.
    gc_base: the pool's search counter when it became free.  is_reusable: nobody outside the heap
    holds this object once it is free, so that it may be used again.
    """

    __slots__ = (
        "stream",
        "size",
        "requested_size",
        "ptr",
        "pool",
        "free",
        "allocated",
        "mapped",
        "prev",
        "next",
        "stream_uses",
        "capture_uses",
        "event_count",
        "gc_base",
        "expandable",
        "rank",
        "key",
        "is_reusable",
    )

    def __init__(self, ptr: int, size: int, stream: int, pool: BlockPool, rank: int) -> None:
        self.ptr = ptr
        self.size = size
        self.requested_size = 0
        self.stream = stream
        self.pool = pool
        self.free = pool.of(stream)
        self.rank = rank
        self.key = 0
        self.allocated = False
        self.mapped = True
        self.prev: Block | None = None
        self.next: Block | None = None
        self.stream_uses: HashOrder[int, None] | None = None
        self.capture_uses: set[int] | None = None
        self.event_count = 0
        self.gc_base = 0
        self.expandable: ExpandableSegment | None = None
        self.is_reusable = True

    @property
    def is_split(self) -> bool:
        """Whether it shares its segment with others."""
        return self.prev is not None or self.next is not None

    @property
    def is_active(self) -> bool:
        """Allocated, or freed by its user and waiting for other streams."""
        return self.allocated or self.event_count > 0 or self.stream_uses is not None

    def insert_before(self, front: Block) -> None:
        """Put `front` between this block's predecessor and this block."""
        front.prev = self.prev
        front.next = self
        if self.prev is not None:
            self.prev.next = front
        self.prev = front

    def insert_after(self, tail: Block) -> None:
        """Put `tail` between this block and its successor."""
        tail.next = self.next
        tail.prev = self
        if self.next is not None:
            self.next.prev = tail
        self.next = tail

    def absorb_prev(self, prev: Block) -> None:
        """Grow over the predecessor, which disappears; this object survives."""
        self.ptr = prev.ptr
        self.size += prev.size
        self.prev = prev.prev
        if prev.prev is not None:
            prev.prev.next = self

    def absorb_next(self, following: Block) -> None:
        """Grow over the successor, which disappears; this object survives."""
        self.size += following.size
        self.next = following.next
        if following.next is not None:
            following.next.prev = self

    def __repr__(self) -> str:
        state = "allocated" if self.allocated else "active" if self.is_active else "free"
        if not self.mapped:
            state = "unmapped"
        return f"<{state} block at {self.ptr:#x}, {self.size} bytes, stream {self.stream:#x}>"
