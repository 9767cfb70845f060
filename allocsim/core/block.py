"""A block: a contiguous range of a segment, allocated or free.

Invariant: `prev` and `next` are the neighbours in the same segment, so that `block.ptr + block.size
== block.next.ptr`.  A block without neighbours is a whole segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allocsim.core.expandable import ExpandableSegment
    from allocsim.core.hash_order import HashOrder
    from allocsim.core.pool import BlockPool


class Block:
    """Contiguous range of a segment.

    requested_size: bytes of the last request that this object served.  As in PyTorch, it keeps
        this value while the block is free.
    mapped: False for address space of an expandable segment without memory.
    stream_uses: streams given to record_stream; None if there are none.  The free of the block
        records an event of each stream and sets this to None.
    capture_uses: streams in `stream_uses` that were given during a graph capture; None if there are
        none.
    event_count: number of events that must pass before the free is complete.
    gc_base: value of `BlockPool.search_calls` when the block became free; the age of a free block
        is the number of searches since then.
    expandable: the expandable segment of the block; None for a segment from cudaMalloc.
    rank: number that decides, with the address, the order of free blocks of equal size (pool.py).
    free: list of the free blocks of the block's pool and stream; it contains the block itself only
        while the block is free.
    key: sort key in `free`; 0 if the block is not free.
    is_reusable: True if fast_path.py may reuse the object once the block is merged into another.
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
        """True if the block shares its segment with other blocks."""
        return self.prev is not None or self.next is not None

    @property
    def is_active(self) -> bool:
        # A free that a graph capture deferred has no events yet, but still its streams.
        return self.allocated or self.event_count > 0 or self.stream_uses is not None

    def insert_before(self, front: Block) -> None:
        front.prev = self.prev
        front.next = self
        if self.prev is not None:
            self.prev.next = front
        self.prev = front

    def insert_after(self, tail: Block) -> None:
        tail.next = self.next
        tail.prev = self
        if self.next is not None:
            self.next.prev = tail
        self.next = tail

    def absorb_prev(self, prev: Block) -> None:
        self.ptr = prev.ptr
        self.size += prev.size
        self.prev = prev.prev
        if prev.prev is not None:
            prev.prev.next = self

    def absorb_next(self, following: Block) -> None:
        self.size += following.size
        self.next = following.next
        if following.next is not None:
            following.next.prev = self

    def __repr__(self) -> str:
        state = "allocated" if self.allocated else "active" if self.is_active else "free"
        if not self.mapped:
            state = "unmapped"
        return f"<{state} block at {self.ptr:#x}, {self.size} bytes, stream {self.stream:#x}>"
