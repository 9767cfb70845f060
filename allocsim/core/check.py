"""Invariants of the allocator that hold between two calls.

1. The blocks of a segment tile it: `block.ptr + block.size == block.next.ptr`.
2. `block.next.prev is block`.  All blocks of a segment have the same pool, stream and `rank`.  Only
   in PyTorch 2.12 does `rank` differ: it is the creation number of the block.
3. No two free blocks and no two unmapped blocks are adjacent: they would have merged.
4. A pool lists exactly its free mapped blocks, each with its own sort key, in ascending order.
5. A block in `live` or `named` is allocated; a block in `pending` is active but not allocated.
6. Segments do not overlap.
7. The current `allocated`, `active`, `requested` and `inactive_split` are sums over the blocks.
8. `reserved` is the sum of mapped bytes, and at most the memory obtained from the driver.
9. No peak is below its current value, and a statistic of all pools is the sum of that of the small
   pool and that of the large pool.
10. An allocated block is at least as large as its request.

`live`, `named` and `pending` are fields of `Heap`.

The following is no error, because it happens in PyTorch too.  A size that
roundup_power2_divisions:1 leaves unrounded is not a multiple of 512.  After a reset of the totals,
`allocated - freed` of a statistic differs from `current`.  A request that failed has released or
mapped memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from allocsim.core.block import Block
from allocsim.core.constants import MIN_BLOCK_SIZE
from allocsim.core.find_split_merge import Heap
from allocsim.core.pool import BlockPool
from allocsim.core.private_pools import PrivatePools
from allocsim.core.releases import FreeBlockOrder
from allocsim.core.stats import StatGroup
from allocsim.errors import InvariantError


def check(heap: Heap, private: PrivatePools) -> None:
    """Raise InvariantError, with its number in the module's list, if an invariant is broken."""
    halves = [half for owner in private.pools.values() for half in (owner.small, owner.large)]
    _require(4, heap.pools == [heap.small, heap.large, *halves], "a pool is not among the pools")
    blocks = list(heap.active)
    for pool in heap.pools:
        _check_pool(pool)
        blocks += [*pool, *pool.unmapped]
    _check_states(heap)
    _check_chains(heap, blocks)
    heap.stats.fold()
    _check_sums(heap, blocks)
    _check_stats(heap)


def _require(number: int, holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(f"invariant {number} is broken: {what}; please report this")


def _check_pool(pool: BlockPool) -> None:
    for free in pool.free.values():
        _require(4, free.keys == sorted(set(free.keys)), "the keys of a pool are not ascending")
        _require(
            4, len(free.keys) == len(free.blocks), "the keys of a pool do not match its blocks"
        )
        for at, (block, key) in enumerate(zip(free.blocks, free.keys, strict=True)):
            is_its_own = key == pool.layout.key_of(block) and pool.of(block.stream) is free
            is_its_own &= pool.index_of(free, block) == at
            _require(4, is_its_own and block.mapped, f"{block} is listed under a wrong key")
            _require(4, not block.is_active, f"{block} is listed as free")
            _require(4, block.pool is pool, f"{block} is listed in another pool")
    for block in pool.unmapped:
        _require(4, not block.mapped, f"{block} is listed as unmapped")


def _check_states(heap: Heap) -> None:
    for ptr, block in heap.live.items():
        _require(5, block.ptr == ptr, f"{block} is listed under {ptr:#x}")
    for block in (*heap.live.values(), *heap.named.values()):
        _require(5, block.allocated, f"{block} is listed as allocated")
        _require(10, block.size >= block.requested_size, f"{block} is below its request")
    for ptr, block in heap.pending.items():
        _require(
            5,
            not block.allocated and block.is_active and block.ptr == ptr,
            f"{block} is listed as pending",
        )


def _check_chains(heap: Heap, blocks: list[Block]) -> None:
    known = {id(block) for block in blocks}
    ranks_are_shared = heap.release.free_block_order is not FreeBlockOrder.CREATION
    n_seen = 0
    ranges = []
    for head in (block for block in blocks if block.prev is None):
        last = head
        for block in _chain(head):
            n_seen += 1
            _require(2, id(block) in known, f"{block} is in a chain but in no list")
            _require(2, block.pool is head.pool and block.stream == head.stream, f"{block} strays")
            _require(2, not ranks_are_shared or block.rank == head.rank, f"{block} has a rank")
            last = block
        if head.ptr % MIN_BLOCK_SIZE == 0:  # else its address is not known yet
            ranges.append((head.ptr, last.ptr + last.size))
    _require(2, n_seen == len(blocks), "a block is in no chain or in two")
    ranges.sort()
    for (_, end), (start, _) in pairwise(ranges):
        _require(6, end <= start, f"a segment ends at {end:#x}, past the next one at {start:#x}")


def _chain(head: Block) -> Iterator[Block]:
    block = head
    while True:
        yield block
        following = block.next
        if following is None:
            return
        _require(1, block.ptr + block.size == following.ptr, f"a gap after {block}")
        _require(2, following.prev is block, f"{following} does not know {block}")
        alike = not block.is_active and not following.is_active
        _require(3, not (alike and block.mapped == following.mapped), f"{block} should have merged")
        block = following


def _check_sums(heap: Heap, blocks: list[Block]) -> None:
    for is_small, group in heap.stats.pools.items():
        # Unmapped blocks are addresses only and count in no statistic.
        mine = [block for block in blocks if block.pool.is_small is is_small and block.mapped]
        active = [block for block in mine if block.is_active]
        live = [block for block in active if block.allocated]
        idle = [b for b in mine if not b.is_active and b.is_split and b.expandable is None]
        sums = {
            "allocation": len(live),
            "allocated_bytes": sum(block.size for block in live),
            "active": len(active),
            "active_bytes": sum(block.size for block in active),
            "requested_bytes": sum(block.requested_size for block in active),
            "inactive_split": len(idle),
            "inactive_split_bytes": sum(block.size for block in idle),
            "reserved_bytes": sum(block.size for block in mine),
        }
        for name, stat in group.stats():
            if name in sums:
                _require(
                    8 if name == "reserved_bytes" else 7,
                    stat.current == sums[name],
                    f"{name} is {stat.current}, the blocks sum to {sums[name]}",
                )
    mapped = sum(block.size for block in blocks if block.mapped)
    _require(8, heap.reserved == mapped, f"reserved is {heap.reserved}, mapped are {mapped}")
    # The driver provides whole pages, so more may be used than is mapped.
    _require(8, mapped <= heap.device.used, f"{mapped} bytes mapped of {heap.device.used} used")


def _check_stats(heap: Heap) -> None:
    groups: list[StatGroup] = [heap.stats.all, *heap.stats.pools.values()]
    for every, small, large in zip(*(group.stats() for group in groups), strict=True):
        name = every[0]
        _require(
            9,
            every[1].current == small[1].current + large[1].current,
            f"{name}.all is not the sum of its pools",
        )
        for _, stat in (every, small, large):
            _require(9, stat.peak >= stat.current, f"the peak of {name} is below its current value")
