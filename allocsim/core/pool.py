"""The free blocks of one pool, ordered as the release orders them.

Invariant: `keys[stream]` is sorted and holds `block.key` of exactly the blocks of that stream
in `blocks`; every one of them is free and mapped, and the key of every other block is 0.  A key
is one integer, size before rank before address, so that one comparison decides.  Plain lists,
because they beat a `SortedList` up to some 3,000 free blocks of one stream
(benchmarks/free_list.py).  Source: semantics 1.5.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from sortedcontainers import SortedKeyList

from allocsim.core.block import Block
from allocsim.core.constants import MIN_BLOCK_SIZE, SMALL_SIZE

__all__ = ["BlockPool", "PrivatePool", "PoolId", "DEFAULT_POOL"]

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)

ADDRESS_BITS: Final = 64
RANK_BITS: Final = 40
"""Counters of segments and blocks stay below 2**40: at a million a second, for twelve days."""

SIZE_SHIFT: Final = ADDRESS_BITS + RANK_BITS
"""A key is size, rank, address, from the highest bit to the lowest."""


class BlockPool:
    """Free blocks of one size class (small or large).  Mirrors `BlockPool`.

    owner: the private pool this is half of, or None for the default pools.
    unmapped: address space of expandable segments without memory, by (stream, address).
    search_calls: searches counted for garbage collection.  least_rest: the least that a block
    without expandable neighbours leaves behind when it is split (1.7).
    """

    __slots__ = (
        "is_small",
        "owner",
        "search_calls",
        "unmapped",
        "keys",
        "blocks",
        "least_rest",
    )

    def __init__(self, is_small: bool, owner: PrivatePool | None = None) -> None:
        self.is_small = is_small
        self.least_rest = MIN_BLOCK_SIZE if is_small else SMALL_SIZE + 1
        self.owner = owner
        self.search_calls = 0
        self.unmapped: SortedKeyList[Block, tuple[int, int]] = SortedKeyList(key=_place)
        self.keys: dict[int, list[int]] = {}
        self.blocks: dict[int, Block] = {}

    def __len__(self) -> int:
        return len(self.blocks)

    def __contains__(self, block: Block) -> bool:
        return self.blocks.get(block.key) is block

    def __iter__(self) -> Iterator[Block]:
        """Every free block in key order: streams ascending, then size, rank, address."""
        for stream in sorted(self.keys):
            for key in self.keys[stream]:
                yield self.blocks[key]

    def insert(self, block: Block) -> None:
        """Add a free mapped block; O(log n) comparisons and a move of pointers."""
        key = block.key = (block.size << SIZE_SHIFT) + block.rank + block.ptr
        keys = self.keys.get(block.stream)
        if keys is None:
            keys = self.keys[block.stream] = []
        keys.insert(bisect_left(keys, key), key)
        self.blocks[key] = block
        block.gc_base = self.search_calls

    def remove(self, block: Block) -> None:
        """Take out a block that is known to be in."""
        key = block.key
        keys = self.keys[block.stream]
        del keys[bisect_left(keys, key)]
        del self.blocks[key]
        block.key = 0

    def take(self, stream: int, size: int) -> Block | None:
        """The best fit, taken out in the same search; None: no block is large enough."""
        keys = self.keys.get(stream)
        if not keys:
            return None
        i = bisect_left(keys, size << SIZE_SHIFT)
        if i == len(keys):
            return None
        block = self.blocks.pop(keys.pop(i))
        block.key = 0
        return block

    def best_fit(self, stream: int, size: int) -> Block | None:
        """The smallest block of `stream` that holds `size`; ties by the release's order."""
        keys = self.keys.get(stream)
        if not keys:
            return None
        i = bisect_left(keys, size << SIZE_SHIFT)
        return self.blocks[keys[i]] if i < len(keys) else None

    def following(self, block: Block) -> Iterator[Block]:
        """The free blocks of the same stream after `block`, in key order."""
        keys = self.keys[block.stream]
        for i in range(bisect_left(keys, block.key) + 1, len(keys)):
            yield self.blocks[keys[i]]

    def unmapped_of(self, stream: int) -> Iterator[Block]:
        """The unmapped blocks of `stream` in address order."""
        found: Iterator[Block] = self.unmapped.irange_key(
            (stream, 0), (stream + 1, 0), inclusive=(True, False)
        )
        return found

    def smaller(self, stream: int, size: int) -> list[Block]:
        """The free blocks of `stream` below `size` bytes, largest first."""
        keys = self.keys.get(stream, [])
        end = bisect_left(keys, size << SIZE_SHIFT)
        return [self.blocks[key] for key in reversed(keys[:end])]


def _place(block: Block) -> tuple[int, int]:
    return block.stream, block.ptr


class PrivatePool:
    """The pools of a CUDA graph or a MemPool.  Mirrors `PrivatePool`.

    use_count: scopes and handles that hold it; segment_count: driver reservations, counted as
    upstream counts them (5.1), which for expandable segments need not balance.
    """

    __slots__ = ("id", "use_count", "segment_count", "small", "large")

    def __init__(self, pool_id: PoolId) -> None:
        self.id = pool_id
        self.use_count = 1
        self.segment_count = 0
        self.small = BlockPool(True, self)
        self.large = BlockPool(False, self)
