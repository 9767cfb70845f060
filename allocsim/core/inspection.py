"""What an allocator holds and what a request would find, read off its blocks; nothing is changed.

Rule: whoever explains, measures or draws an allocator looks through these functions and reaches no
deeper; they tell what is true now and decide nothing.
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
    """The allocated block that begins at `address`, whatever the caller calls it."""
    return allocator.heap.allocated_at(address)


def garbage(allocator: CachingAllocator) -> Iterator[list[Block]]:
    """The blocks that each pass of a garbage collection would release now, in order (1.9)."""
    return garbage_passes(allocator.heap.large)


def free_blocks(allocator: CachingAllocator) -> Iterator[Block]:
    """Every free mapped block, pool by pool in key order."""
    for pool in allocator.heap.pools:
        yield from pool


def handle_sizes(allocator: CachingAllocator) -> dict[int, int]:
    """By the address of a mapped range of an expandable segment, the size of its handles."""
    sizes = {}
    for block in (*allocator.heap.active, *free_blocks(allocator)):
        is_head = block.prev is None or not block.prev.mapped
        if block.expandable is not None and is_head:
            sizes[block.ptr] = block.expandable.handle_size
    return sizes


def returnable_pools(allocator: CachingAllocator) -> frozenset[PoolId]:
    """The pools whose wholly free memory goes back to the driver when a request fails (2.5)."""
    return frozenset((DEFAULT_POOL, *allocator.private_pools.freeable))


def returnable_bytes(allocator: CachingAllocator, block: Block) -> int:
    """Bytes of a free block that the driver could have back without any block in use moving."""
    owner = block.pool.owner
    if owner is not None and owner.id not in allocator.private_pools.freeable:
        return 0
    if block.expandable is not None:
        return block.expandable.whole_handles(block.ptr, block.size)[1]
    return 0 if block.is_split else block.size


def pool_of_requests(allocator: CachingAllocator, stream: int) -> PoolId:
    """The pool that requests of `stream` go to now (5.2)."""
    owner = allocator.private_pools.get_pool(stream)
    return DEFAULT_POOL if owner is None else owner.id


def helping_pools(allocator: CachingAllocator, stream: int) -> tuple[PoolId, ...]:
    """The pools marked use_on_oom that serve requests of `stream` on a full device (5.6)."""
    is_default = pool_of_requests(allocator, stream) == DEFAULT_POOL
    helps = is_default and allocator.release.overflow is not Overflow.NEVER
    return tuple(allocator.private_pools.use_on_oom) if helps else ()


# -- the largest request ----------------------------------------------------------------


def finds_free_block(allocator: CachingAllocator, size: int, stream: int) -> bool:
    """Whether a request of `size` bytes would be served without the driver (1.5, 1.6).

    Frees that are under way stay so.  The block is taken and put back, which leaves no trace.
    """
    heap = allocator.heap
    rounded = heap.config.round_size(size)
    pool = _pool_for(allocator, rounded, stream)
    searches = pool.search_calls
    block = heap.get_free_block(pool, stream, rounded, heap.config.expandable_segments)
    pool.search_calls = searches
    if block is None:
        return False
    base = block.gc_base
    pool.insert(block)
    block.gc_base = base
    return True


def mapped_for(allocator: CachingAllocator, size: int, stream: int) -> int:
    """Bytes that an expandable segment would map for a request that no free block serves (4.2).

    0 where no expandable segment would be asked.
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
            handle = block.expandable.handle_size  # of the settings that it was made under
            piece = min(piece, round_up(min(piece, rounded - held), handle))
            mapped += piece
        held += piece
        block = block.next
    return mapped


def _pool_for(allocator: CachingAllocator, rounded: int, stream: int) -> BlockPool:
    """The pool that serves a request of this rounded size (1.4, 5.2)."""
    owner = allocator.private_pools.get_pool(stream)
    pools = allocator.heap if owner is None else owner
    return pools.small if rounded <= SMALL_SIZE else pools.large


def _maps(allocator: CachingAllocator, pool: BlockPool) -> bool:
    """Whether what a pool lacks comes from expandable segments (4.2)."""
    is_allowed = pool.owner is None or allocator.release.expandable_private_pools
    return allocator.config.expandable_segments and is_allowed


def would_serve(allocator: CachingAllocator, block: Block, size: int, stream: int) -> bool:
    """Whether a request of `size` bytes would be served by an allocated block, were it free.

    Merged with its neighbours (2.2), it would have to be what is found among the others (1.5, 4.4)
    and not be too good or too long for the request (1.6).
    """
    rounded = allocator.config.round_size(size)
    whole = _were_it_free(block)
    is_own = _is_searched(allocator, block, rounded, stream)
    return is_own and _found_beside(allocator, block, whole, rounded) is whole


def served_once_free(allocator: CachingAllocator, block: Block, size: int, stream: int) -> bool:
    """`finds_free_block`, were an allocated block free: what it merges with may then be too good
    for the request (1.6)."""
    rounded = allocator.config.round_size(size)
    if not _is_searched(allocator, block, rounded, stream):
        return finds_free_block(allocator, size, stream)
    return _found_beside(allocator, block, _were_it_free(block), rounded) is not None


def _is_searched(allocator: CachingAllocator, block: Block, rounded: int, stream: int) -> bool:
    """Whether a request would look for a block where this one would be, were it free."""
    is_of_stream = block.stream == stream and block.pool is _pool_for(allocator, rounded, stream)
    return is_of_stream and (block.expandable is None or allocator.config.expandable_segments)


def _found_beside(
    allocator: CachingAllocator, block: Block, whole: Block, rounded: int
) -> Block | None:
    """What serves a request among the free blocks of `block`'s pool and stream and `whole`, which
    it would be, were it free; None: nothing does."""
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
    """What an allocated block would be once it is free (2.2); in no list and no segment."""
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
    """Bytes of the largest request of `stream` that would succeed now; 0 if none would.

    Meant for the state that an out-of-memory error leaves; before one, cached segments that the
    allocator would give back first are not counted.  No search: free blocks, driver and pools that
    help out say it (1.5, 1.8, 4.4, 5.6).
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
    """The pools marked use_on_oom, and whether their expandable blocks serve (5.6)."""
    release, private = allocator.release, allocator.private_pools
    if owner is not None or release.overflow is Overflow.NEVER:
        return []
    expands = allocator.config.expandable_segments and release.overflow_may_be_expandable
    return [(private.pools[i], expands) for i in private.use_on_oom if i in private.pools]


def _in_block(pool: BlockPool, stream: int, expands: bool) -> int:
    """The largest free block that serves a request of its own size."""
    sizes = (
        block.size for block in pool if block.stream == stream and (expands or not block.expandable)
    )
    return max(sizes, default=0)


def _from_driver(allocator: CachingAllocator, pool: BlockPool, stream: int) -> int:
    """The largest rounded size for which the driver and the limit have memory."""
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
    """As the allocator looks: the lowest run of free and unmapped blocks that holds a request."""
    config, device = allocator.config, allocator.device
    within = _within_limit(allocator, pool.is_small)
    best = longest = 0
    for unmapped in pool.unmapped_of(stream):
        assert unmapped.expandable is not None
        handle = unmapped.expandable.handle_size  # of the settings that it was made under
        left = _mappable(device, handle)
        prev = unmapped.prev
        block: Block | None = prev if prev is not None and not prev.is_active else unmapped
        run = reach = 0
        while block is not None and not block.is_active:
            run += block.size
            if reach == run - block.size:  # all before is there
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
    """Bytes that the device has left in handles of `handle` bytes; 0 if the driver refuses them."""
    return 0 if handle % PAGE else device.left // handle * handle


def _within_limit(allocator: CachingAllocator, is_small: bool) -> int:
    """The largest rounded size whose ordinary segment the limit would allow."""
    limit = allocator.memory_limit
    room = allocator.device.total * 2 if limit is None else limit - allocator.reserved_bytes
    return _by_segment(is_small, room, allocator.config.large_segment_size)


# -- where the allocator is --------------------------------------------------------------


def fingerprint(
    allocator: CachingAllocator,
    waiting: Mapping[int, RequestedFree],
    asked: Mapping[int, int],
    step: int,
) -> Hashable:
    """Where the allocator is before `step`, so that equal values go on alike.

    waiting: frees by name.  asked: for the names of a stretch of steps, the step that asked.
    Blocks from before the stretch are told by their number alone: no block comes to them, and
    where one went, what is free or what the stretch holds is no longer the same.
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
    """What is free of the small pool, so that equal values answer the same requests alike.

    What is not free lies where the rest leaves room; whose it is decides nothing.
    """
    pool = allocator.heap.small
    return _free_keys(pool), tuple((b.stream, b.ptr, b.size) for b in pool.unmapped)


def _free_keys(pool: BlockPool) -> tuple[tuple[int, ...], ...]:
    """The streams that have free blocks, each with the keys of its blocks: size, rank, address."""
    of_streams = sorted(pool.free.items())
    return tuple((stream, *free.keys) for stream, free in of_streams if free.keys)
