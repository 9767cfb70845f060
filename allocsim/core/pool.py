"""The free blocks of one pool, ordered as the release orders them.

Invariant: of each stream, `keys` is sorted and holds `block.key` of the block beside it in
`blocks`; every one of them is free and mapped, and the key of every other block is 0.  A key is
one integer, size before place, so that one comparison decides.  Plain lists, because they beat a
`SortedList` up to some 1,500 free blocks of one stream (benchmarks/free_list.py).
Source: semantics 1.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sortedcontainers import SortedKeyList

from allocsim.core.block import Block
from allocsim.core.columns import Blocks, find
from allocsim.core.constants import IS_COMPILED, MIN_BLOCK_SIZE, SMALL_SIZE
from allocsim.core.sort_key import KeyLayout
from allocsim.state import DEFAULT_POOL, PoolId

__all__ = [
    "BlockPool",
    "FreeBlocks",
    "PrivatePool",
    "least_expandable_size",
    "next_not_expandable",
]

_KEY_IN_LAYOUT: Final = 1
"""A block's key where a machine word cannot hold the true one."""


class FreeBlocks:
    """The free blocks of one stream in key order, and their keys beside them."""

    __slots__ = ("keys", "blocks")

    def __init__(self, layout: KeyLayout) -> None:
        self.keys = layout.new_keys()
        self.blocks = Blocks()

    def take(self, at: int) -> Block:
        """The block at an index, taken out."""
        del self.keys[at]
        block = self.blocks.pop(at)
        block.key = 0
        return block


class BlockPool:
    """Free blocks of one size class (small or large).

    layout: of the keys, one for all pools of a heap.
    owner: the private pool this is half of, or None for the default pools; id: its id.
    free: by stream.
    unmapped: address space of expandable segments without memory, by (stream, address).
    search_calls: searches counted for garbage collection.  least_rest: the least that a block
    without expandable neighbours leaves behind when it is split (1.7).
    """

    __slots__ = (
        "is_small",
        "owner",
        "id",
        "search_calls",
        "unmapped",
        "layout",
        "free",
        "least_rest",
    )

    def __init__(self, is_small: bool, layout: KeyLayout, owner: PrivatePool | None = None) -> None:
        self.is_small = is_small
        self.least_rest = MIN_BLOCK_SIZE if is_small else SMALL_SIZE + 1
        self.owner = owner
        self.id = DEFAULT_POOL if owner is None else owner.id
        self.search_calls = 0
        self.unmapped: SortedKeyList[Block, tuple[int, int]] = SortedKeyList(key=_by_address)
        self.layout = layout
        self.free: dict[int, FreeBlocks] = {}

    def __len__(self) -> int:
        return sum(len(free.keys) for free in self.free.values())

    def __iter__(self) -> Iterator[Block]:
        """Every free block in key order: streams ascending, then size, rank, address."""
        for stream in sorted(self.free):
            yield from self.free[stream].blocks

    def of(self, stream: int) -> FreeBlocks:
        """The free blocks of `stream`; they stay the same object."""
        free = self.free.get(stream)
        if free is None:
            free = self.free[stream] = FreeBlocks(self.layout)
        return free

    def rebuild_keys(self) -> None:
        """Make every key anew, for a layout that has changed; the order stays what it was."""
        for free in self.free.values():
            free.keys = self.layout.new_keys()
            for block in free.blocks:
                free.keys.append(self._key(block))

    def insert(self, block: Block) -> None:
        """Add a free mapped block; O(log n) comparisons and a move of pointers.

        Mirrors: BlockPool::insert_into_blocks
        """
        key = self._key(block)
        free = block.free
        at = find(free.keys, key)
        free.keys.insert(at, key)
        free.blocks.insert(at, block)
        block.gc_base = self.search_calls

    def _key(self, block: Block) -> int:
        """Of a block that is to be among the free ones, which is told of it."""
        key = self.layout.key_of(block)
        block.key = _KEY_IN_LAYOUT if IS_COMPILED and self.layout.is_wide else key
        return key

    def index_of(self, free: FreeBlocks, block: Block) -> int:
        """The index of a block that is known to be among `free`."""
        key = block.key
        return find(free.keys, self.layout.key_of(block) if key == _KEY_IN_LAYOUT else key)

    def remove(self, block: Block) -> None:
        """Take out a block that is known to be in."""
        free = block.free
        at = self.index_of(free, block)
        del free.keys[at]
        del free.blocks[at]
        block.key = 0

    def best_fit(self, stream: int, size: int) -> Block | None:
        """The smallest block of `stream` that holds `size`; ties by the release's order."""
        free = self.of(stream)
        at = find(free.keys, self.layout.key(size))
        return free.blocks[at] if at < len(free.keys) else None

    def unmapped_of(self, stream: int) -> Iterator[Block]:
        """The unmapped blocks of `stream` in address order."""
        found: Iterator[Block] = self.unmapped.irange_key(
            (stream, 0), (stream + 1, 0), inclusive=(True, False)
        )
        return found

    def smaller(self, stream: int, size: int) -> list[Block]:
        """The free blocks of `stream` below `size` bytes, largest first."""
        free = self.of(stream)
        end = find(free.keys, self.layout.key(size))
        return free.blocks[:end][::-1]


def _by_address(block: Block) -> tuple[int, int]:
    """Mirrors: BlockComparatorAddress"""
    return block.stream, block.ptr


class PrivatePool:
    """The pools of a CUDA graph or a MemPool.

    use_count: scopes and handles that hold it; segment_count: driver reservations, counted as
    upstream counts them (5.1), which for expandable segments need not balance.
    """

    __slots__ = ("id", "use_count", "segment_count", "small", "large")

    def __init__(self, pool_id: PoolId, layout: KeyLayout) -> None:
        self.id = pool_id
        self.use_count = 1
        self.segment_count = 0
        self.small = BlockPool(True, layout, self)
        self.large = BlockPool(False, layout, self)

    @property
    def halves(self) -> tuple[BlockPool, BlockPool]:
        """The small and the large one."""
        return self.small, self.large


def next_not_expandable(blocks: Sequence[Block], at: int) -> int:
    """Where the next candidate stands that was there without expandable segments, now switched
    off (4.4); -1: nowhere."""
    places = range(at + 1, len(blocks))
    return next((place for place in places if blocks[place].expandable is None), -1)


def least_expandable_size(blocks: Sequence[Block], at: int) -> int:
    """From the expandable candidate at `at` on, where the hole with the least room to grow stands
    (4.4)."""
    room = _expandable_size(blocks[at])
    for place in range(at + 1, len(blocks)):
        following = blocks[place]
        its_room = _expandable_size(following)
        if its_room >= room:
            break
        at, room = place, its_room
        if following.expandable is None:
            break
    return at


def _expandable_size(block: Block) -> int:
    """The size of a block with the unmapped space behind it (4.4)."""
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)
