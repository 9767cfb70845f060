"""Release of cached memory to the driver, for a request that found no memory and for empty_cache.

- `garbage_collect_cached_blocks` releases old, completely free segments of the default large pool.
- `release_available_cached_blocks` releases oversize blocks of the request's stream.  They stay
  released even if they are not enough.
- `release_cached_blocks` releases all cached memory, one pool after another.  In each pool, it
  first releases the segments from cudaMalloc and then the expandable ones, both in order of size.

Source: semantics 1.9, 1.10, 2.5.
"""

from __future__ import annotations

from collections.abc import Iterator

from allocsim.core.block import Block
from allocsim.core.constants import UNLIMITED
from allocsim.core.expandable import unmap_block
from allocsim.core.find_split_merge import Heap
from allocsim.core.pending import PendingFrees
from allocsim.core.pool import BlockPool, PrivatePool
from allocsim.core.private_pools import PrivatePools
from allocsim.core.snapshot import Work
from allocsim.errors import UpstreamAssertionError
from allocsim.state import PoolId


def garbage_collect_cached_blocks(heap: Heap) -> None:
    """Release old blocks until reserved memory is at most garbage_collection_threshold * limit.

    Do nothing unless both the threshold and the memory limit are set.  Blocks are released in
    passes (`garbage_passes`); the last pass is completed even if some of its blocks would suffice.
    """
    if not heap.collects_garbage or heap.limit is None:
        return
    allowed = int(heap.config.garbage_collection_threshold * heap.limit)
    target = heap.reserved - allowed
    if target <= 0:
        return
    reclaimed = 0
    for blocks in garbage_passes(heap.large):
        for block in blocks:
            heap.release_block(block)
        reclaimed += sum(block.size for block in blocks)
        if reclaimed >= target:
            break


def garbage_passes(pool: BlockPool) -> Iterator[list[Block]]:
    """Yield, for each pass of a garbage collection, the list of blocks that the pass releases.

    Each pass releases the remaining blocks whose age is at least the average age.
    """
    left = [block for block in pool if not block.is_split]
    # As in PyTorch, expandable blocks count in the average age but are never released.
    count, total_age = len(left), sum(_age(pool, block) for block in left)
    left = [block for block in left if block.expandable is None]
    while left:
        threshold = total_age / count
        taken = [block for block in left if _age(pool, block) >= threshold]
        # All remaining blocks are younger than the average, which includes expandable blocks.
        if not taken:
            return
        count -= len(taken)
        total_age -= sum(_age(pool, block) for block in taken)
        left = [block for block in left if _age(pool, block) < threshold]
        yield taken


def _age(pool: BlockPool, block: Block) -> int:
    return pool.search_calls - block.gc_base


def release_available_cached_blocks(heap: Heap, pool: BlockPool, stream: int, size: int) -> bool:
    """Release cached oversize blocks of `stream`; return True if they suffice for `size` bytes.

    They suffice if they have max(size, max_split_size) bytes in total.  If one block alone is large
    enough, only this block is released.
    """
    # Oversize blocks are never split, so they are kept only for requests of about their size.
    oversize = heap.config.max_split_size
    if oversize == UNLIMITED:
        return False
    wanted = max(size, oversize)
    # One block that is large enough is preferred to several smaller ones.
    candidate = pool.smallest_at_least(stream, wanted)
    if candidate is not None and _may_release(heap, candidate):
        heap.release_block(candidate)
        return True
    released = 0
    # No single block suffices: release from the largest down, but only oversize blocks.
    for block in pool.smaller(stream, wanted):
        if released >= wanted or block.size < oversize:
            break
        if _may_release(heap, block):
            released += block.size
            heap.release_block(block)
    return released >= wanted


def _may_release(heap: Heap, block: Block) -> bool:
    if block.expandable is None:
        return True
    # Up to PyTorch 2.4, releasing an expandable block here asserts.
    if not heap.release.release_skips_expandable:
        raise UpstreamAssertionError(
            f"releasing an oversize expandable block of {block.size} bytes asserts in release "
            f"{heap.release.version}"
        )
    return False


def release_cached_blocks(heap: Heap, private: PrivatePools, pending: PendingFrees) -> None:
    """Wait for all events, complete their frees and release every free segment.

    Source: semantics 2.5.
    """
    pending.synchronize_and_free_events()
    heap.work = Work.RELEASE_CACHED
    # Large before small; in private pools small before large.  The order shows in the history.
    _release_blocks(heap, heap.large)
    _release_blocks(heap, heap.small)
    release_freeable_pools(heap, private)


def holds_releasable(heap: Heap, private: PrivatePools) -> bool:
    """Return True if `release_cached_blocks` could release memory without waiting for events."""
    freeable = (private.freeable[pool_id] for pool_id in private.freeable)
    pools = [heap.large, heap.small, *(half for pool in freeable for half in pool.halves)]
    for pool in pools:
        for free in pool.free.values():
            # From the largest block on, because those are most often whole segments.
            for block in reversed(free.blocks):
                if block.size < heap.least_segment:
                    break
                if _is_releasable(block):
                    return True
    return False


def _is_releasable(block: Block) -> bool:
    if block.expandable is None:
        return not block.is_split
    return block.expandable.whole_handles(block.ptr, block.size)[1] > 0


def release_freeable_pools(heap: Heap, private: PrivatePools) -> None:
    """Release the free segments of private pools whose use count is 0.

    Source: semantics 2.5.
    """
    for pool_id in private.freeable:
        _release_halves(heap, private, private.freeable[pool_id])


def release_cached_blocks_of_pool(
    heap: Heap, private: PrivatePools, pending: PendingFrees, pool_id: PoolId
) -> None:
    """Release the free segments of one private pool, if its use count is 0.

    Source: semantics 2.5.

    Mirrors: release_cached_blocks
    """
    pool = private.freeable.get(pool_id)
    if pool is None:
        return
    if private.in_capture:
        # Upstream counts the wait before it asserts.
        heap.stats.num_sync_all_streams += 1
        raise UpstreamAssertionError(f"the events of pool {pool_id} are waited for inside a scope")
    pending.synchronize_and_free_events(pool)
    _release_halves(heap, private, pool)


def _release_halves(heap: Heap, private: PrivatePools, pool: PrivatePool) -> None:
    heap.work = Work.RELEASE_CACHED
    _release_blocks(heap, pool.small)
    _release_blocks(heap, pool.large)
    private.forget_if_empty(pool)


def _release_blocks(heap: Heap, pool: BlockPool) -> None:
    # Smaller blocks are parts of segments, and contain no whole handle.
    blocks = pool.at_least(heap.least_segment)
    for block in blocks:
        if block.expandable is None and not block.is_split:
            heap.release_block(block)
    for block in blocks:
        if block.expandable is not None:
            unmap_block(heap, block)
