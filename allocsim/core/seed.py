"""Segments that existed before a simulation began, planted as a recording shows them.

Rule: a planted block has the size, state and stream that the recording gives; neighbouring free
blocks are one block, as the allocator would have merged them; what a recording does not tell,
the order of segments among equals, is taken to be their addresses.  Source: semantics 6.6.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from allocsim.core.block import Block
from allocsim.core.heap import Heap
from allocsim.core.pool import DEFAULT_POOL, BlockPool, PoolId
from allocsim.core.private_pools import PrivatePools
from allocsim.errors import UndefinedBehaviorError

__all__ = ["SeedBlock", "SeedSegment", "plant"]


@dataclass(frozen=True, slots=True)
class SeedBlock:
    """A block to plant.  state: as in a snapshot; size: its true size, slack included."""

    size: int
    requested_size: int
    state: str


@dataclass(frozen=True, slots=True)
class SeedSegment:
    """A segment to plant; its blocks tile it in address order."""

    address: int
    total_size: int
    stream: int
    is_small: bool
    blocks: tuple[SeedBlock, ...]
    pool_id: PoolId = DEFAULT_POOL
    is_expandable: bool = False


def plant(heap: Heap, private: PrivatePools, segments: Iterable[SeedSegment]) -> dict[int, Block]:
    """Put `segments` into an empty heap; returns the pending blocks by address.

    Their bytes count in every statistic as if they had been allocated just now.
    """
    pending: dict[int, Block] = {}
    for segment in sorted(segments, key=lambda segment: segment.address):
        if segment.is_expandable:
            raise UndefinedBehaviorError(
                f"the segment at {segment.address:#x} is expandable and existed before the "
                "recording; its reserved range is unknown"
            )
        pool = _pool_of(heap, private, segment)
        heap.device.adopt(segment.address, segment.total_size)
        heap.count_segment(pool, segment.total_size)
        rank = heap.new_segment_rank()
        previous: Block | None = None
        ptr = segment.address
        for seed in segment.blocks:
            block = heap.new_block(ptr, seed.size, pool, segment.stream, rank)
            if previous is not None:
                previous.insert_after(block)
            previous = block
            ptr += seed.size
        if previous is not None:
            _set_states(heap, segment, previous, pending)
    return pending


def _pool_of(heap: Heap, private: PrivatePools, segment: SeedSegment) -> BlockPool:
    if segment.pool_id == DEFAULT_POOL:
        return heap.small if segment.is_small else heap.large
    if segment.pool_id not in private.pools:
        private.pools[segment.pool_id] = heap.private_pool(segment.pool_id)
    owner = private.pools[segment.pool_id]
    return owner.small if segment.is_small else owner.large


def _set_states(heap: Heap, segment: SeedSegment, last: Block, pending: dict[int, Block]) -> None:
    """Hand out, suspend or pool each block, from the last to the first."""
    block: Block | None = last
    for seed in reversed(segment.blocks):
        assert block is not None
        before = block.prev
        block.requested_size = seed.requested_size
        if seed.state == "active_allocated":
            block.allocated = True
            heap.live[block.ptr] = block
        elif seed.state == "active_pending_free":
            block.event_count = 1
            heap.pending[block.ptr] = pending[block.ptr] = block
        else:
            block.pool.insert(block)
        heap.count_planted(block)
        block = before
