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
from allocsim.core.columns import Blocks, Keys, find
from allocsim.core.constants import IS_COMPILED, MIN_BLOCK_SIZE, PAGE, SMALL_SIZE
from allocsim.core.releases import FreeBlockOrder
from allocsim.state import DEFAULT_POOL, PoolId
from allocsim.units import GIB, TIB

__all__ = [
    "BlockPool",
    "FreeBlocks",
    "KeyLayout",
    "PrivatePool",
    "RANK_MASK",
    "least_expandable_size",
    "next_not_expandable",
]

SIZE_ZERO_BITS: Final = MIN_BLOCK_SIZE.bit_length() - 1
"""Of the bits that a size ends in, and a place, while sizes are multiples of 512."""

NARROW_PLACES: Final = 8 * TIB if IS_COMPILED else 256 * GIB
"""Places below this one fit a narrow key, counted from the first segment's neighbourhood.

Compiled, 8 TiB: with what `NARROW_SIZES` leaves, a key is a machine word.  Plain, 256 GiB: a byte
of size is worth less than 2**30, a digit of Python's numbers, in a key, so that the loop of
fast_path.py takes keys from keys in less than half the time that it makes them anew in: 29 ns and
71, and 41 where it is worth more."""

NARROW_SIZES: Final = 1 << 39
"""Blocks below this size fit a narrow key, and what a card's expandable segment can come to."""

RANK_MASK: Final = (1 << 64) - 1 if IS_COMPILED else -1
"""The bits of a rank that are kept: compiled, a word's, so that one below 0 is 2**64 more."""

_KEY_IN_LAYOUT: Final = 1
"""A block's key where a machine word cannot hold the true one."""


class KeyLayout:
    """How the free blocks of a heap become keys.

    A key is the size, shifted left by `size_shift`, and below it the place, shifted right by
    `place_shift`.  While sizes are multiples of 512 below `NARROW_SIZES` and places below
    `NARROW_PLACES`, nothing is lost where the highest bits of the place stand in those of the size
    that are always 0, and, in the compiled form, nothing by leaving out those of both.  Wide keys
    hold any size and place.  Where objects are numbered the place is that number, which is never as
    large.

    Mirrors: BlockComparatorSize
    """

    __slots__ = ("size_shift", "place_shift", "is_wide", "_origin", "_order")

    def __init__(self, order: FreeBlockOrder = FreeBlockOrder.ADDRESS) -> None:
        self._order = order
        self._origin = -1
        self.is_wide = False
        left_out = SIZE_ZERO_BITS if IS_COMPILED else 0
        self.place_shift = 0 if order is FreeBlockOrder.CREATION else left_out
        self.size_shift = NARROW_PLACES.bit_length() - 1 - left_out - SIZE_ZERO_BITS

    def key(self, size: int, place: int = 0) -> int:
        """Of a free block of `size` bytes; without a place not above any block of that size."""
        return (size << self.size_shift) + (place >> self.place_shift)

    def key_of(self, block: Block) -> int:
        """Of a free block."""
        return self.key(block.size, self.place(block.rank, block.ptr))

    def place(self, rank: int, ptr: int) -> int:
        """Of a block at `ptr`, among others of its size."""
        return rank if self._order is FreeBlockOrder.CREATION else (rank + ptr) & RANK_MASK

    def origin(self, base: int) -> int:
        """The address that is place 0 where places are addresses.

        base: of a segment.  A quarter of the narrow places lie before the first: drivers give
        addresses upwards, and the reserve of an expandable segment is longer than the card.
        """
        if self._origin < 0:
            self._origin = max(base - NARROW_PLACES // 4, 0) // PAGE * PAGE
        return self._origin

    def takes(self, place: int, size: int, largest: int) -> bool:
        """Whether keys hold every block of a segment; largest: what one block can come to."""
        fits = 0 <= place <= NARROW_PLACES - size or self._order is FreeBlockOrder.CREATION
        return self.is_wide or (fits and largest < NARROW_SIZES)

    def new_keys(self) -> list[int]:
        """Where the keys of free blocks may stand."""
        return [] if self.is_wide else Keys()

    def widen(self) -> None:
        """Leave nothing out; the keys that there are have to be made again, and the ranks of blocks
        whose places are addresses."""
        self.is_wide = True
        self.place_shift = 0
        self.size_shift = 72
        self._origin = 0


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
