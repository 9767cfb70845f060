"""Read-only queries: the state of an allocator, and what a request would find there.

Code outside the core that explains, measures or draws an allocator uses these functions and does
not access its fields.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from allocsim.core.allocator import CachingAllocator
from allocsim.core.block import Block
from allocsim.core.constants import (
    MIN_BLOCK_SIZE,
    MIN_LARGE_ALLOC,
    PAGE,
    ROUND_LARGE,
    SMALL_BUFFER,
    SMALL_SIZE,
)
from allocsim.core.device import Device
from allocsim.core.mapping import find_run
from allocsim.core.pending import RequestedFree
from allocsim.core.pool import BlockPool, PrivatePool, least_expandable_size, next_not_expandable
from allocsim.core.reclaim import garbage_passes
from allocsim.core.releases import Overflow
from allocsim.state import DEFAULT_POOL, PoolId
from allocsim.units import round_up

__all__ = [
    "allocated_block",
    "fingerprint",
    "free_blocks",
    "garbage",
    "handle_sizes",
    "helping_pools",
    "finds_free_block",
    "largest_request",
    "mapped_for",
    "pool_of_requests",
    "returnable_bytes",
    "returnable_pools",
    "served_once_free",
    "would_serve",
]


def allocated_block(allocator: CachingAllocator, address: int) -> Block | None:
    """Return the allocated block that begins at `address`, named or not, or None."""
    return allocator.heap.allocated_at(address)


def garbage(allocator: CachingAllocator) -> Iterator[list[Block]]:
    """Yield the blocks that each pass of a garbage collection would release now (1.9)."""
    return garbage_passes(allocator.heap.large)


def free_blocks(allocator: CachingAllocator) -> Iterator[Block]:
    """Yield every free mapped block, pool by pool in key order."""
    for pool in allocator.heap.pools:
        yield from pool


def handle_sizes(allocator: CachingAllocator) -> dict[int, int]:
    """Return the handle size of each mapped range of an expandable segment, by address."""
    sizes = {}
    for block in (*allocator.heap.active, *free_blocks(allocator)):
        is_head = block.prev is None or not block.prev.mapped
        if block.expandable is not None and is_head:
            sizes[block.ptr] = block.expandable.handle_size
    return sizes


def returnable_pools(allocator: CachingAllocator) -> frozenset[PoolId]:
    """Return the pools whose cached memory is released when a request fails (2.5)."""
    return frozenset((DEFAULT_POOL, *allocator.private_pools.freeable))


def returnable_bytes(allocator: CachingAllocator, block: Block) -> int:
    """Return the bytes of a free block that the driver could get back as blocks are placed now."""
    owner = block.pool.owner
    if owner is not None and owner.id not in allocator.private_pools.freeable:
        return 0
    if block.expandable is not None:
        return block.expandable.whole_handles(block.ptr, block.size)[1]
    return 0 if block.is_split else block.size


def pool_of_requests(allocator: CachingAllocator, stream: int) -> PoolId:
    """Return the pool that serves requests of `stream` now (5.2)."""
    owner = allocator.private_pools.get_pool(stream)
    return DEFAULT_POOL if owner is None else owner.id


def helping_pools(allocator: CachingAllocator, stream: int) -> tuple[PoolId, ...]:
    """Return the pools marked use_on_oom that serve `stream` on a full device (5.6)."""
    is_default = pool_of_requests(allocator, stream) == DEFAULT_POOL
    helps = is_default and allocator.release.overflow is not Overflow.NEVER
    return tuple(allocator.private_pools.use_on_oom) if helps else ()


# -- the largest request ----------------------------------------------------------------


def finds_free_block(allocator: CachingAllocator, size: int, stream: int) -> bool:
    """Return True if a request of `size` bytes would be served by a free block (1.5, 1.6).

    Pending frees stay pending.  The block is taken and returned, which leaves no trace.
    """
    heap = allocator.heap
    rounded = heap.config.round_size(size)
    pool = _pool_for(allocator, rounded, stream)
    searches = pool.search_calls
    block = heap.get_free_block(pool, stream, rounded, heap.config.expandable_segments)
    pool.search_calls = searches
    if block is None:
        return False
    # Inserting the block would make it look newly freed.
    base = block.gc_base
    pool.insert(block)
    block.gc_base = base
    return True


def mapped_for(allocator: CachingAllocator, size: int, stream: int) -> int:
    """Return the bytes to map for a request that no free block serves (4.2).

    0 if no expandable segment would serve it.
    """
    config, rounded = allocator.config, allocator.config.round_size(size)
    pool = _pool_for(allocator, rounded, stream)
    if not _maps(allocator, pool):
        return 0
    block = find_run(pool, stream, rounded)
    if block is None:
        return round_up(rounded, PAGE if pool.is_small else config.large_segment_size)
    mapped = held = 0
    while block is not None and held < rounded:
        piece = block.size
        if block.expandable is not None and not block.mapped:
            handle = block.expandable.handle_size  # the settings may have changed since
            piece = min(piece, round_up(min(piece, rounded - held), handle))
            mapped += piece
        held += piece
        block = block.next
    return mapped


def _pool_for(allocator: CachingAllocator, rounded: int, stream: int) -> BlockPool:
    owner = allocator.private_pools.get_pool(stream)
    pools = allocator.heap if owner is None else owner
    return pools.small if rounded <= SMALL_SIZE else pools.large


def _maps(allocator: CachingAllocator, pool: BlockPool) -> bool:
    """Return True if expandable segments supply the memory of a pool (4.2)."""
    is_allowed = pool.owner is None or allocator.release.expandable_private_pools
    return allocator.config.expandable_segments and is_allowed


def would_serve(allocator: CachingAllocator, block: Block, size: int, stream: int) -> bool:
    """Return True if an allocated block would serve a request of `size` bytes, were it free.

    Merged with its free neighbours (2.2), it must be the block found among the others (1.5, 4.4),
    and neither oversize for the request nor too long (1.6).
    """
    rounded = allocator.config.round_size(size)
    whole = _were_it_free(block)
    is_own = _is_searched(allocator, block, rounded, stream)
    return is_own and _found_beside(allocator, block, whole, rounded) is whole


def served_once_free(allocator: CachingAllocator, block: Block, size: int, stream: int) -> bool:
    """Return True if a free block would serve a request, were `block` free.

    The answer may be False although another block fits: the merged block can come first and be
    refused as oversize (1.6).
    """
    rounded = allocator.config.round_size(size)
    if not _is_searched(allocator, block, rounded, stream):
        return finds_free_block(allocator, size, stream)
    return _found_beside(allocator, block, _were_it_free(block), rounded) is not None


def _is_searched(allocator: CachingAllocator, block: Block, rounded: int, stream: int) -> bool:
    """Return True if a request searches the free blocks of the pool and stream of `block`."""
    is_of_stream = block.stream == stream and block.pool is _pool_for(allocator, rounded, stream)
    return is_of_stream and (block.expandable is None or allocator.config.expandable_segments)


def _found_beside(
    allocator: CachingAllocator, block: Block, whole: Block, rounded: int
) -> Block | None:
    """Return the free block that serves a request, or None.

    whole: `block` merged with its free neighbours, searched in place of the neighbours.
    """
    config, merged = allocator.config, (block.prev, block.next)
    others = (each for each in block.pool.of(block.stream).blocks if each not in merged)
    fitting = (each for each in (whole, *others) if each.size >= rounded)
    found = sorted(fitting, key=block.pool.layout.key_of)
    at = 0 if found else -1
    if found and found[0].expandable is not None:
        at = (
            least_expandable_size(found, 0)
            if config.expandable_segments
            else next_not_expandable(found, 0)
        )
    return found[at] if at >= 0 and config.accepts(rounded, found[at].size) else None


def _were_it_free(block: Block) -> Block:
    """Return the block that an allocated block would become when freed (2.2), not linked."""
    first = last = block
    if block.prev is not None and block.prev.key:
        first = block.prev
    if block.next is not None and block.next.key:
        last = block.next
    size = last.ptr + last.size - first.ptr
    whole = Block(first.ptr, size, block.stream, block.pool, block.rank)
    whole.expandable, whole.prev, whole.next = block.expandable, first.prev, last.next
    return whole


def largest_request(allocator: CachingAllocator, stream: int) -> int:
    """Return the bytes of the largest request of `stream` that would succeed now, or 0.

    Meant for the state after an out-of-memory error: cached segments that the allocator would
    release first are not counted.  Computed from free blocks, driver and pools marked use_on_oom,
    without trying sizes (1.5, 1.8, 4.4, 5.6).
    """
    owner = allocator.private_pools.get_pool(stream)
    pools = allocator.heap if owner is None else owner
    config = allocator.config
    large = max(
        _in_block(pools.large, stream, config.expandable_segments),
        _from_driver(allocator, pools.large, stream),
        *(_in_block(pool.large, stream, expands) for pool, expands in _helping(allocator, owner)),
    )
    if large > SMALL_SIZE:
        return config.largest_raw(large)
    small = max(
        _in_block(pools.small, stream, config.expandable_segments),
        _from_driver(allocator, pools.small, stream),
        *(_in_block(pool.small, stream, expands) for pool, expands in _helping(allocator, owner)),
    )
    return config.largest_raw(min(small, SMALL_SIZE))


def _helping(
    allocator: CachingAllocator, owner: PrivatePool | None
) -> list[tuple[PrivatePool, bool]]:
    """Return the pools marked use_on_oom; True if their expandable blocks may serve (5.6)."""
    release, private = allocator.release, allocator.private_pools
    if owner is not None or release.overflow is Overflow.NEVER:
        return []
    expands = allocator.config.expandable_segments and release.overflow_may_be_expandable
    return [(private.pools[i], expands) for i in private.use_on_oom if i in private.pools]


def _in_block(pool: BlockPool, stream: int, expands: bool) -> int:
    """Return the size of the largest free block that may serve a request."""
    sizes = (
        block.size for block in pool if block.stream == stream and (expands or not block.expandable)
    )
    return max(sizes, default=0)


def _from_driver(allocator: CachingAllocator, pool: BlockPool, stream: int) -> int:
    """Return the largest rounded size for which driver and limit have memory."""
    if _maps(allocator, pool):
        return _by_mapping(allocator, pool, stream)
    allowed = allocator.device.left
    if allocator.memory_limit is not None:
        allowed = min(allowed, allocator.memory_limit - allocator.reserved_bytes)
    return _by_segment(pool.is_small, allowed, allocator.config.large_segment_size)


def _by_segment(is_small: bool, room: int, large_segment: int) -> int:
    if is_small:
        return SMALL_SIZE if room >= SMALL_BUFFER else 0
    if room >= MIN_LARGE_ALLOC:
        return room // ROUND_LARGE * ROUND_LARGE
    return MIN_LARGE_ALLOC - MIN_BLOCK_SIZE if room >= large_segment else 0


def _by_mapping(allocator: CachingAllocator, pool: BlockPool, stream: int) -> int:
    """Return the largest rounded size that mapping could serve.

    The allocator takes the lowest run of free and unmapped blocks that holds the request, even if a
    later run needs less new memory.
    """
    config, device = allocator.config, allocator.device
    within = _within_limit(allocator, pool.is_small)
    best = longest = 0
    # A run serves only requests that no lower run holds, so its reach counts above `longest`.
    for unmapped in pool.unmapped_of(stream):
        assert unmapped.expandable is not None
        handle = unmapped.expandable.handle_size  # the settings may have changed since
        left = _mappable(device, handle)
        prev = unmapped.prev
        block: Block | None = prev if prev is not None and not prev.is_active else unmapped
        run = reach = 0
        while block is not None and not block.is_active:
            run += block.size
            if reach == run - block.size:  # everything before it can be mapped
                taken = block.size if block.mapped else min(block.size, left)
                reach += taken
                left -= 0 if block.mapped else taken
            block = block.next
        reach = min(reach, within)
        if reach > longest:
            best = max(best, reach)
        longest = max(longest, run)
    handle = PAGE if pool.is_small else config.large_segment_size
    fresh = round_up(config.expandable_reserve(device.total), handle)
    reach = min(_mappable(device, handle), within, fresh)
    return max(best, reach if reach > longest else 0)


def _mappable(device: Device, handle: int) -> int:
    """Return the bytes that the device can still provide in handles of `handle` bytes."""
    return 0 if handle % PAGE else device.left // handle * handle


def _within_limit(allocator: CachingAllocator, is_small: bool) -> int:
    """Return the largest rounded size whose ordinary segment the limit would allow."""
    limit = allocator.memory_limit
    room = allocator.device.total * 2 if limit is None else limit - allocator.reserved_bytes
    return _by_segment(is_small, room, allocator.config.large_segment_size)


# -- comparing states --------------------------------------------------------------------


def fingerprint(
    allocator: CachingAllocator,
    waiting: Mapping[int, RequestedFree],
    asked: Mapping[int, int],
    step: int,
) -> Hashable:
    """Return a value that is equal for two states from which equal steps have equal effects.

    waiting: frees by name.
    asked: for the names of a range of steps, the number of the step that requested the block.
    step: number of the next step; ages are relative to it.

    Only the number of blocks from before the range counts: none are added, and a block that was
    freed changes the free blocks or those of the range.
    """
    heap = allocator.heap
    named = heap.named
    mine = sorted(
        (step - asked[name], named[name].ptr, named[name].size)
        for name in asked.keys() & named.keys()
    )
    freed = sorted(
        (step - asked[name], -1 if (block := waiting[name].block) is None else block.ptr)
        for name in asked.keys() & waiting.keys()
    )
    return (
        (len(named), len(waiting)),
        tuple(mine),
        tuple(freed),
        tuple(_free_keys(pool) for pool in heap.pools),
        tuple(tuple((b.stream, b.ptr, b.size) for b in pool.unmapped) for pool in heap.pools),
        tuple(sorted((block.ptr, block.size) for block in heap.pending.values())),
        heap.reserved,
        heap.stats.num_device_alloc,
        heap.stats.num_device_free,
        heap.stats.num_alloc_retries,
    )


def small_places(allocator: CachingAllocator) -> Hashable:
    """Return a value that is equal if the small pool answers the same requests alike.

    Only free and unmapped blocks decide; which blocks occupy the rest has no effect.
    """
    pool = allocator.heap.small
    return _free_keys(pool), tuple((b.stream, b.ptr, b.size) for b in pool.unmapped)


def _free_keys(pool: BlockPool) -> tuple[tuple[int, ...], ...]:
    """Return (stream, keys of its free blocks) of each stream that has free blocks."""
    of_streams = sorted(pool.free.items())
    return tuple((stream, *free.keys) for stream, free in of_streams if free.keys)
