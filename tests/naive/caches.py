"""Release of free memory to the driver, in key order and in whole segments.

Four callers: garbage collection (1.9), the release of oversize blocks (1.10), the release of all
cached blocks (2.5) and empty_cache.
"""

from __future__ import annotations

from math import floor

from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamAssertionError
from tests.naive import pools
from tests.naive.block import Block, Pool
from tests.naive.events import synchronize_events
from tests.naive.expandable import unmap
from tests.naive.state import State

__all__ = [
    "collect_garbage",
    "delete_mempool",
    "empty_cache",
    "empty_pool",
    "release_available",
    "release_cached",
]


def release_block(state: State, block: Block) -> None:
    """Release one segment of cudaMalloc (semantics 2.5)."""
    if block.is_split:
        raise UndefinedBehaviorError(
            f"semantics 1.10: the block of {block.size} bytes at {block.address} is released "
            "while other blocks share its segment"
        )
    owner = block.pool.owner
    state.stats.count("num_device_free")
    state.note("segment_free", block.address, block.size, block.stream, block.pool.number)
    if owner is not None:
        if owner.segment_count == 0:
            raise UpstreamAssertionError(
                f"semantics 5.1: pool (0, {owner.number}) releases more segments than it counted"
            )
        owner.segment_count -= 1
    state.driver.mfree(block.address, block.size)
    if state.is_oversize(block.size):
        state.stats.oversize["oversize_segments"].move(-1)
    state.segments.remove(block.segment)
    state.observe()


def release_pool_blocks(state: State, pool: Pool) -> None:
    """Release ordinary segments first, then unmap, both in key order."""
    blocks = state.in_state(pool, "free")
    for block in blocks:
        if not block.segment.expandable and not block.is_split:
            release_block(state, block)
    for block in blocks:
        if block.segment.expandable:
            unmap(state, block)


def collect_garbage(state: State) -> None:
    """Release the oldest unsplit blocks of the default large pool (semantics 1.9)."""
    assert state.limit is not None
    threshold = floor(state.options.gc_threshold * state.limit)
    target = state.total_allocated - threshold
    if target <= 0:
        return
    unsplit = [b for b in state.in_state(state.large, "free") if not b.is_split]
    ages = {id(b): state.large.searches - b.gc_base for b in unsplit}
    count, age = len(unsplit), sum(ages.values())
    reclaimed, freed_some = 0, True
    while reclaimed < target and freed_some and count > 0:
        freed_some = False
        mean = age / count
        for block in list(unsplit):
            if block.segment.expandable or ages[id(block)] < mean:
                continue
            release_block(state, block)
            unsplit.remove(block)
            reclaimed += block.size
            age -= ages[id(block)]
            count -= 1
            freed_some = True


def release_available(state: State, pool: Pool, stream: int, size: int) -> bool:
    """Release oversize blocks until `size` could fit (semantics 1.10)."""
    most = state.options.max_split_size
    if most is None:
        return False
    wanted = max(size, most)
    blocks = state.in_state(pool, "free")
    above = [b for b in blocks if (b.stream, b.size) >= (stream, wanted)]
    below = blocks[: len(blocks) - len(above)]
    if above and above[0].stream == stream and may_release(state, above[0]):
        release_block(state, above[0])
        return True
    released = 0
    while below and released < wanted:
        block = below.pop()
        if block.stream != stream or block.size < most:
            break
        if may_release(state, block):
            released += block.size
            release_block(state, block)
    return released >= wanted


def may_release(state: State, block: Block) -> bool:
    """Skip expandable blocks from 2.5 on; before, upstream asserted that there are none."""
    if block.segment.expandable and state.minor < 5:
        raise UpstreamAssertionError(
            f"semantics 1.10: an expandable block of {block.size} bytes is in the way of the "
            "release of oversize blocks"
        )
    return not block.segment.expandable


def release_cached(state: State) -> None:
    """Release everything that is wholly free, default pools first (semantics 2.5)."""
    if not state.in_capture:
        synchronize_events(state)
        release_pool_blocks(state, state.large)
        release_pool_blocks(state, state.small)
    passed: set[int] = set()
    while waiting := [number for number in state.freeable if number not in passed]:
        passed.add(waiting[0])
        release_freeable(state, waiting[0])


def release_freeable(state: State, number: int) -> None:
    """Release small blocks, then large ones; forget a pool without segments (5.1, 12.6)."""
    owner, small, large = state.private[number]
    release_pool_blocks(state, small)
    release_pool_blocks(state, large)
    if owner.segment_count > 0:
        return
    left = [s for s in state.segments if s.pool.owner is owner and s.mapped]
    if left:
        raise UndefinedBehaviorError(
            f"semantics 12.6: pool (0, {number}) is forgotten while it still holds memory"
        )
    del state.private[number]
    state.freeable.erase(number)


def empty_pool(state: State, number: int) -> None:
    """Release the memory of one freeable pool, once its own events have passed (2.5)."""
    if number not in state.freeable:
        return
    if state.in_capture:
        state.stats.count("num_sync_all_streams")
        raise UpstreamAssertionError(
            f"semantics 2.5: a scope is open while pool (0, {number}) is emptied"
        )
    synchronize_events(state, state.private[number][0])
    release_freeable(state, number)


def delete_mempool(state: State, number: int) -> None:
    """Delete the MemPool of a pool: one use ends, and the pool is emptied (5.7)."""
    if state.minor <= 5:
        raise ConfigError(f"in PyTorch 2.{state.minor} a MemPool holds no pool")
    known = state.private.get(number)
    if state.minor <= 9 and (known is None or known[0].use_count != 1):
        raise UpstreamAssertionError(f"semantics 5.7: pool (0, {number}) has not one user")
    if state.minor >= 11 and number in state.use_on_oom:
        state.use_on_oom.erase(number)
    pools.release(state, number)
    empty_pool(state, number)


def empty_cache(state: State) -> None:
    """Do what torch.cuda.empty_cache() does; inside a scope, releases differ (2.5)."""
    if state.in_capture and state.minor <= 7:
        state.stats.count("num_sync_all_streams")
        raise UpstreamAssertionError(
            f"semantics 2.5: empty_cache() inside a pool scope stops PyTorch 2.{state.minor}"
        )
    release_cached(state)
