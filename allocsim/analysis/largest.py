"""The largest request that an allocator could answer, without asking it.

Rule: it is the largest of what a free block, the driver, and a pool that helps out when the
device is full would each allow; what a failed request leaves behind is taken as it stands, so
nothing cached is left that the driver could still have back.
Source: semantics 1.2 (rounding), 1.4 (segments), 1.5 (search), 1.8 (limit), 4.3 (mapping).
"""

from __future__ import annotations

from collections.abc import Callable

from allocsim.core import Block, CachingAllocator
from allocsim.core.constants import (
    MIN_BLOCK_SIZE,
    MIN_LARGE_ALLOC,
    PAGE,
    ROUND_LARGE,
    SMALL_BUFFER,
    SMALL_SIZE,
)
from allocsim.core.pool import BlockPool, PrivatePool
from allocsim.core.releases import Overflow

__all__ = ["largest_request"]


def largest_request(allocator: CachingAllocator, stream: int) -> int:
    """Bytes of the largest request of `stream` that would succeed now; 0 if none would.

    Meant for the state that an out-of-memory error leaves; before one, cached segments that the
    allocator would give back first are not counted.
    """
    owner = allocator.private_pools.target(stream)
    halves = allocator.heap if owner is None else owner
    large = max(
        _in_block(halves.large, stream, allocator.config.expandable_segments),
        _from_driver(allocator, halves.large, stream),
        *(_in_block(pool.large, stream, fine) for pool, fine in _helping(allocator, owner)),
    )
    if large > SMALL_SIZE:
        return _raw(allocator.config.round_size, large)
    small = max(
        _in_block(halves.small, stream, allocator.config.expandable_segments),
        _from_driver(allocator, halves.small, stream),
        *(_in_block(pool.small, stream, fine) for pool, fine in _helping(allocator, owner)),
    )
    return _raw(allocator.config.round_size, min(small, SMALL_SIZE))


def _helping(
    allocator: CachingAllocator, owner: PrivatePool | None
) -> list[tuple[PrivatePool, bool]]:
    """The pools marked use_on_oom, and whether their expandable blocks serve (5.6)."""
    release, private = allocator.release, allocator.private_pools
    if owner is not None or release.overflow is Overflow.NEVER:
        return []
    fine = allocator.config.expandable_segments and release.overflow_may_be_expandable
    return [(private.pools[i], fine) for i in private.use_on_oom if i in private.pools]


def _in_block(pool: BlockPool, stream: int, fine: bool) -> int:
    """The largest free block that serves a request of its own size."""
    sizes = (
        block.size for block in pool if block.stream == stream and (fine or not block.expandable)
    )
    return max(sizes, default=0)


def _from_driver(allocator: CachingAllocator, pool: BlockPool, stream: int) -> int:
    """The largest rounded size for which the driver and the limit have memory."""
    heap, config = allocator.heap, allocator.config
    allowed = heap.device.free
    if allocator.memory_limit is not None:
        allowed = min(allowed, allocator.memory_limit - heap.reserved)
    maps = config.expandable_segments
    if pool.owner is not None and not allocator.release.expandable_private_pools:
        maps = False
    if maps:
        return _by_mapping(allocator, pool, stream)
    return _by_segment(pool.is_small, allowed, config.large_segment_size)


def _by_segment(is_small: bool, room: int, large_segment: int) -> int:
    if is_small:
        return SMALL_SIZE if room >= SMALL_BUFFER else 0
    if room >= MIN_LARGE_ALLOC:
        return room // ROUND_LARGE * ROUND_LARGE
    return MIN_LARGE_ALLOC - MIN_BLOCK_SIZE if room >= large_segment else 0


def _by_mapping(allocator: CachingAllocator, pool: BlockPool, stream: int) -> int:
    """As the allocator looks: the lowest run of free and unmapped blocks that holds a request."""
    heap, config = allocator.heap, allocator.config
    handle = PAGE if pool.is_small else config.large_segment_size
    room = heap.device.free // handle * handle
    within = _within_limit(allocator, pool.is_small)
    best = longest = 0
    for unmapped in pool.unmapped_of(stream):
        prev = unmapped.prev
        block: Block | None = prev if prev is not None and not prev.is_active else unmapped
        run = reach = 0
        left = room
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
    reserve = config.expandable_reserve(heap.device.total)
    fresh = heap.device.total * 9 // 8 if reserve is None else reserve
    fresh = -(-fresh // handle) * handle
    reach = min(room, within, fresh)
    return max(best, reach if reach > longest else 0)


def _within_limit(allocator: CachingAllocator, is_small: bool) -> int:
    """The largest rounded size whose ordinary segment the limit would allow."""
    limit = allocator.memory_limit
    room = allocator.device.total * 2 if limit is None else limit - allocator.reserved_bytes
    return _by_segment(is_small, room, allocator.config.large_segment_size)


def _raw(rounded: Callable[[int], int], size: int) -> int:
    """The largest request that is rounded to `size` bytes at most."""
    low, high = 0, size
    while low < high:
        middle = (low + high + 1) // 2
        if rounded(middle) <= size:
            low = middle
        else:
            high = middle - 1
    return low
