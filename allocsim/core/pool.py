"""The free blocks of one pool, ordered as the release orders them.

Invariant: of each stream, `keys` is sorted and holds `block.key` of the block beside it in
`blocks`; every one of them is free and mapped, and the key of every other block is 0.  A key is
one integer, size before place, so that one comparison decides.  Plain lists, because they beat a
`SortedList` up to some 1,500 free blocks of one stream (benchmarks/free_list.py).
Source: semantics 1.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedKeyList

from allocsim.core.block import Block
from allocsim.core.constants import IS_COMPILED, MIN_BLOCK_SIZE, SMALL_SIZE
from allocsim.state import DEFAULT_POOL, PoolId

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["find", "BlockPool", "FreeBlocks", "KeyLayout", "PrivatePool"]


def find(keys: list[int], key: int, low: i64 = 0, high: i64 = -1) -> int:
    """The first index in [low, high) whose key is not below `key`; high: -1 for the end."""
    middle: i64
    if high < 0:
        high = len(keys)
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


if not IS_COMPILED:
    from bisect import bisect_left as find  # type: ignore[assignment]


NARROW_PLACES: Final = 1 << 47
"""Places below this one fit a narrow key: 128 TiB, the addresses of a process."""


class KeyLayout:
    """How the free blocks of a heap become keys.

    A key is the size, shifted left by `size_shift`, and below it the place, shifted right by
    `place_shift`.  While sizes are multiples of 512 and places below `NARROW_PLACES`, nothing is
    lost by leaving out the bits that are always 0, and keys of blocks below 8 GiB fit a machine
    word, which the compiled form compares in one step.  Wide keys hold any size and any place.

    Mirrors: BlockComparatorSize
    """

    __slots__ = ("size_shift", "place_shift")

    def __init__(self) -> None:
        self.place_shift = MIN_BLOCK_SIZE.bit_length() - 1
        # Twice: a size ends in as many zeros as a place does.
        self.size_shift = NARROW_PLACES.bit_length() - 1 - 2 * self.place_shift

    def key(self, size: int, place: int = 0) -> int:
        """Of a free block of `size` bytes; without a place not above any block of that size."""
        return (size << self.size_shift) + (place >> self.place_shift)

    @property
    def is_wide(self) -> bool:
        return not self.place_shift

    def widen(self) -> None:
        """Leave nothing out; the keys that there are have to be made again."""
        self.place_shift = 0
        self.size_shift = 104  # addresses of 64 bits, and 40 for the numbers of blocks


class FreeBlocks:
    """The free blocks of one stream in key order, and their keys beside them."""

    __slots__ = ("keys", "blocks")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.blocks: list[Block] = []

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

    Mirrors: BlockPool
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
        self.unmapped: SortedKeyList[Block, tuple[int, int]] = SortedKeyList(key=_place)
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
            free = self.free[stream] = FreeBlocks()
        return free

    def key_again(self) -> None:
        """Make every key anew, for a layout that has changed; the order stays what it was."""
        for free in self.free.values():
            for block in free.blocks:
                block.key = self.layout.key(block.size, block.rank + block.ptr)
            free.keys[:] = [block.key for block in free.blocks]

    def insert(self, block: Block) -> None:
        """Add a free mapped block; O(log n) comparisons and a move of pointers.

        Mirrors: BlockPool::insert_into_blocks
        """
        key = block.key = self.layout.key(block.size, block.rank + block.ptr)
        free = self.of(block.stream)
        at = find(free.keys, key)
        free.keys.insert(at, key)
        free.blocks.insert(at, block)
        block.gc_base = self.search_calls

    def remove(self, block: Block) -> None:
        """Take out a block that is known to be in."""
        free = self.free[block.stream]
        at = find(free.keys, block.key)
        del free.keys[at]
        del free.blocks[at]
        block.key = 0

    def best_fit(self, stream: int, size: int) -> Block | None:
        """The smallest block of `stream` that holds `size`; ties by the release's order."""
        free = self.of(stream)
        at = find(free.keys, self.layout.key(size))
        return free.blocks[at] if at < len(free.keys) else None

    def following(self, block: Block) -> Iterator[Block]:
        """The free blocks of the same stream after `block`, in key order."""
        free = self.free[block.stream]
        for at in range(find(free.keys, block.key) + 1, len(free.keys)):
            yield free.blocks[at]

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


def _place(block: Block) -> tuple[int, int]:
    """Mirrors: BlockComparatorAddress"""
    return block.stream, block.ptr


class PrivatePool:
    """The pools of a CUDA graph or a MemPool.

    use_count: scopes and handles that hold it; segment_count: driver reservations, counted as
    upstream counts them (5.1), which for expandable segments need not balance.

    Mirrors: PrivatePool
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
