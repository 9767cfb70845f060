"""Read-only queries: the state of an allocator, and the answer that a request would get.

Code outside the core uses these functions to explain, measure or draw an allocator, and does not
access its fields.
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
from allocsim.core.expandable import first_of_sequence
from allocsim.core.pending import RequestedFree
from allocsim.core.pool import BlockPool, PrivatePool, least_expandable, next_not_expandable
from allocsim.core.reclaim import garbage_passes
from allocsim.core.releases import Overflow
from allocsim.state import DEFAULT_POOL, PoolId
from allocsim.units import round_up


def allocated_block(allocator: CachingAllocator, address: int) -> Block | None:
    return allocator.heap.allocated_at(address)


def garbage(allocator: CachingAllocator) -> Iterator[list[Block]]:
    """Yield the blocks that each pass of a garbage collection would release now.

    Source: semantics 1.9.
    """
    return garbage_passes(allocator.heap.large)


def free_blocks(allocator: CachingAllocator) -> Iterator[Block]:
    for pool in allocator.heap.pools:
        yield from pool


def handle_sizes(allocator: CachingAllocator) -> dict[int, int]:
    """Return a dictionary from the address of each mapped range to its handle size in bytes."""
    sizes = {}
    for block in (*allocator.heap.active, *free_blocks(allocator)):
        is_head = block.prev is None or not block.prev.mapped
        if block.expandable is not None and is_head:
            sizes[block.ptr] = block.expandable.handle_size
    return sizes


def returnable_pools(allocator: CachingAllocator) -> frozenset[PoolId]:
    """Return the pools whose cached memory is released when a request fails.

    Source: semantics 2.5.
    """
    return frozenset((DEFAULT_POOL, *allocator.private_pools.freeable))


def returnable_bytes(allocator: CachingAllocator, block: Block) -> int:
    owner = block.pool.owner
    if owner is not None and owner.id not in allocator.private_pools.freeable:
        return 0
    if block.expandable is not None:
        return block.expandable.whole_handles(block.ptr, block.size)[1]
    # cudaFree releases whole segments only.
    return 0 if block.is_split else block.size


def pool_of_requests(allocator: CachingAllocator, stream: int) -> PoolId:
    owner = allocator.private_pools.get_pool(stream)
    return DEFAULT_POOL if owner is None else owner.id


def helping_pools(allocator: CachingAllocator, stream: int) -> tuple[PoolId, ...]:
    """Return the pools marked use_on_oom that serve `stream` on a full device.

    Source: semantics 5.6.
    """
    is_default = pool_of_requests(allocator, stream) == DEFAULT_POOL
    helps = is_default and allocator.release.overflow is not Overflow.NEVER
    return tuple(allocator.private_pools.use_on_oom) if helps else ()


# -- the largest request ----------------------------------------------------------------


def finds_free_block(allocator: CachingAllocator, size: int, stream: int) -> bool:
    """Return True if a free block would serve a request of `size` bytes.

    Unlike a malloc, this does not complete pending frees.  Source: semantics 1.5, 1.6.
    """
    # The block is taken and put back, which leaves the allocator as it was.
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
    """Return the bytes that a request of `size` bytes would map if no free block serves it.

    The result is 0 if expandable segments do not serve the request.  Source: semantics 4.2.
    """
    config, rounded = allocator.config, allocator.config.round_size(size)
    pool = _pool_for(allocator, rounded, stream)
    if not _uses_expandable(allocator, pool):
        return 0
    block = first_of_sequence(pool, stream, rounded)
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


def _uses_expandable(allocator: CachingAllocator, pool: BlockPool) -> bool:
    is_allowed = pool.owner is None or allocator.release.expandable_private_pools
    return allocator.config.expandable_segments and is_allowed


def would_serve(allocator: CachingAllocator, block: Block, size: int, stream: int) -> bool:
    """Return True if the allocated `block`, once freed, would serve a request of `size` bytes.

    Merged with its free neighbours, the freed block must be the block that the search finds, and it
    must not be too large for the request.  Source: semantics 1.5, 1.6, 2.2, 4.4.
    """
    rounded = allocator.config.round_size(size)
    whole = _merged_copy(block)
    is_own = _searches_pool_of(allocator, block, rounded, stream)
    return is_own and _best_fit_if_free(allocator, block, whole, rounded) is whole


def served_once_free(allocator: CachingAllocator, block: Block, size: int, stream: int) -> bool:
    """Return True if any free block would serve a request once the allocated `block` is freed.

    The free can also make the request fail: the search ends at the merged block if it finds it
    first and the block is too large (semantics.md, section 1.6).
    """
    rounded = allocator.config.round_size(size)
    if not _searches_pool_of(allocator, block, rounded, stream):
        return finds_free_block(allocator, size, stream)
    return _best_fit_if_free(allocator, block, _merged_copy(block), rounded) is not None


def _searches_pool_of(allocator: CachingAllocator, block: Block, rounded: int, stream: int) -> bool:
    is_of_stream = block.stream == stream and block.pool is _pool_for(allocator, rounded, stream)
    return is_of_stream and (block.expandable is None or allocator.config.expandable_segments)


def _best_fit_if_free(
    allocator: CachingAllocator, block: Block, whole: Block, rounded: int
) -> Block | None:
    # `whole` replaces the free neighbours of `block`.
    # The search of `Heap.get_free_block`, without a change of the pool.
    config, merged = allocator.config, (block.prev, block.next)
    others = (each for each in block.pool.of(block.stream).blocks if each not in merged)
    fitting = (each for each in (whole, *others) if each.size >= rounded)
    found = sorted(fitting, key=block.pool.layout.key_of)
    at = 0 if found else -1
    if found and found[0].expandable is not None:
        at = (
            least_expandable(found, 0)
            if config.expandable_segments
            else next_not_expandable(found, 0)
        )
    return found[at] if at >= 0 and config.accepts(rounded, found[at].size) else None


def _merged_copy(block: Block) -> Block:
    # The segment itself is unchanged (2.2).
    # Only free mapped blocks have a key; active and unmapped neighbours do not merge.
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
    """Return the largest request of `stream`, in bytes, that would succeed now; 0 if none would.

    This assumes that no cached segment can be released, as after an out-of-memory error.
    """
    owner = allocator.private_pools.get_pool(stream)
    pools = allocator.heap if owner is None else owner
    config = allocator.config
    large = max(
        _largest_free_block(pools.large, stream, config.expandable_segments),
        _largest_from_driver(allocator, pools.large, stream),
        *(
            _largest_free_block(pool.large, stream, expands)
            for pool, expands in _helping_private_pools(allocator, owner)
        ),
    )
    if large > SMALL_SIZE:
        return config.largest_raw(large)
    # No memory for a large request: the largest request is one of the small pool.
    small = max(
        _largest_free_block(pools.small, stream, config.expandable_segments),
        _largest_from_driver(allocator, pools.small, stream),
        *(
            _largest_free_block(pool.small, stream, expands)
            for pool, expands in _helping_private_pools(allocator, owner)
        ),
    )
    return config.largest_raw(min(small, SMALL_SIZE))


def _helping_private_pools(
    allocator: CachingAllocator, owner: PrivatePool | None
) -> list[tuple[PrivatePool, bool]]:
    # The flag is True if expandable blocks of the pool count (5.6).
    release, private = allocator.release, allocator.private_pools
    if owner is not None or release.overflow is Overflow.NEVER:
        return []
    expands = allocator.config.expandable_segments and release.overflow_may_be_expandable
    return [(private.pools[i], expands) for i in private.use_on_oom if i in private.pools]


def _largest_free_block(pool: BlockPool, stream: int, expands: bool) -> int:
    sizes = (
        block.size for block in pool if block.stream == stream and (expands or not block.expandable)
    )
    return max(sizes, default=0)


def _largest_from_driver(allocator: CachingAllocator, pool: BlockPool, stream: int) -> int:
    if _uses_expandable(allocator, pool):
        return _largest_by_mapping(allocator, pool, stream)
    allowed = allocator.device.available
    if allocator.memory_limit is not None:
        allowed = min(allowed, allocator.memory_limit - allocator.reserved_bytes)
    return _largest_by_cuda_malloc(pool.is_small, allowed, allocator.config.large_segment_size)


def _largest_by_cuda_malloc(is_small: bool, room: int, large_segment: int) -> int:
    if is_small:
        return SMALL_SIZE if room >= SMALL_BUFFER else 0
    # From 10 MiB on, a segment is as large as the request, rounded up to 2 MiB.
    if room >= MIN_LARGE_ALLOC:
        return room // ROUND_LARGE * ROUND_LARGE
    return MIN_LARGE_ALLOC - MIN_BLOCK_SIZE if room >= large_segment else 0


def _largest_by_mapping(allocator: CachingAllocator, pool: BlockPool, stream: int) -> int:
    # The allocator takes the first sequence of free and unmapped blocks that is large enough, even
    # if a later sequence needs less new memory.
    config, device = allocator.config, allocator.device
    within = _largest_within_limit(allocator, pool.is_small)
    # `run`: bytes of a sequence; `reach`: its bytes from the start that can be mapped.
    best = longest = 0
    # A sequence serves only requests for which all lower sequences, up to `longest`, are too small.
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
    return 0 if handle % PAGE else device.available // handle * handle


def _largest_within_limit(allocator: CachingAllocator, is_small: bool) -> int:
    limit = allocator.memory_limit
    room = allocator.device.total * 2 if limit is None else limit - allocator.reserved_bytes
    return _largest_by_cuda_malloc(is_small, room, allocator.config.large_segment_size)


# -- comparing states --------------------------------------------------------------------


def fingerprint(
    allocator: CachingAllocator,
    waiting: Mapping[int, RequestedFree],
    allocated_at: Mapping[int, int],
    step: int,
) -> Hashable:
    """Return a value that identifies the state of a replay.

    In states with equal values, the same steps have the same effects.

    waiting: dictionary from the name (recorded address) of a block to its incomplete free.
    allocated_at: dictionary from the name of a block to the index of the plan step that requested
        it, for the blocks requested in the part of the plan that repeats.
    step: index of the next plan step.  The result contains the age of each such block in steps,
        `step - allocated_at[name]`, in place of its name.
    """
    # Blocks from before the repeating part are only counted: none are added, and a block that was
    # freed changes the free blocks or the blocks of the repeating part.
    heap = allocator.heap
    named = heap.named
    mine = sorted(
        (step - allocated_at[name], named[name].ptr, named[name].size)
        for name in allocated_at.keys() & named.keys()
    )
    freed = sorted(
        (step - allocated_at[name], -1 if (block := waiting[name].block) is None else block.ptr)
        for name in allocated_at.keys() & waiting.keys()
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
    """Return a value that identifies the addresses of free and unmapped blocks of the small pool.

    Allocators with equal values give equal small requests equal addresses.
    """
    pool = allocator.heap.small
    return _free_keys(pool), tuple((b.stream, b.ptr, b.size) for b in pool.unmapped)


def _free_keys(pool: BlockPool) -> tuple[tuple[int, ...], ...]:
    of_streams = sorted(pool.free.items())
    return tuple((stream, *free.keys) for stream, free in of_streams if free.keys)
