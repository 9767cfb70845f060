"""Free blocks of one pool, sorted by size; the PyTorch release decides the order of equal sizes.

For each stream, `keys` is sorted, and `keys[i]` is the sort key of `blocks[i]`.  Every listed block
is free and mapped; all other blocks have the key 0.  Two plain lists are faster than a `SortedList`
up to about 1,500 free blocks of one stream (benchmarks/free_list.py).

A key is one integer: the size in the high bits, the block's place in the low bits.  The place
orders blocks of equal size.  In releases that use the oldest `Block` object first, the place is the
number of the object in order of creation.  In other releases it is the block's address plus its
rank, a constant of the segment: ranks of 0 give the order of addresses, and other ranks put blocks
of older segments first (`FreeBlockOrder`).
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

SIZE_ZERO_BITS: Final = MIN_BLOCK_SIZE.bit_length() - 1
"""Number of low bits that are 0 in every size and place that is a multiple of 512."""

NARROW_PLACES: Final = 8 * TIB if IS_COMPILED else 256 * GIB
"""Upper limit of places in narrow sort keys; a place orders blocks of equal size (`KeyLayout`).

In the compiled form it is 8 TiB: with `NARROW_SIZES`, a key then fits a machine word.  In plain
Python it is 256 GiB: the factor of the size in a key is then below 2**30, a single digit of a
Python integer, which makes the arithmetic of fast_path.py twice as fast (29 ns instead of 71).
"""

NARROW_SIZES: Final = 1 << 39
"""Upper limit of block sizes in narrow keys; an expandable segment of any card is smaller."""

RANK_MASK: Final = (1 << 64) - 1 if IS_COMPILED else -1
"""Mask for a rank, the number that is added to an address in sort keys.  In the compiled form, a
rank is an unsigned 64-bit word."""


class KeyLayout:
    """Bit layout of the sort keys by which all pools of a heap order their free blocks.

    key = (size << size_shift) + (place >> place_shift)

    The place is a number that orders blocks of equal size.

    Narrow keys: the 9 low bits of every size are 0, because sizes are multiples of 512, so the 9
    high bits of the place are put there.  If the place is an address, its own 9 low bits are 0 as
    well, and the compiled core omits these 9 low bits of the address from the key.
    Wide keys: all bits of the place are below those of the size, so any size and place fits.

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
        """Return the sort key of a free block; with place 0, the lowest sort key of its size."""
        return (size << self.size_shift) + (place >> self.place_shift)

    def key_of(self, block: Block) -> int:
        return self.key(block.size, self.place(block.rank, block.ptr))

    def place(self, rank: int, ptr: int) -> int:
        """Return the number that orders a block among free blocks of equal size, lowest first.

        With `FreeBlockOrder.CREATION`, the oldest block is first, and the result is `rank`.  With
        another order, the result is the block's address plus `rank`.

        rank: with `CREATION`, number of the block in order of creation; else a number that is equal
            for all blocks of a segment, and lower for older segments if these are first.
        ptr: address of the block.
        """
        return rank if self._order is FreeBlockOrder.CREATION else (rank + ptr) & RANK_MASK

    def origin(self, base: int) -> int:
        """Return the address that counts as 0 in sort keys, for releases that order by address.

        base: address of the first segment; only the first call uses it.
        """
        if self._origin < 0:
            # A quarter of the narrow places is below the first segment: drivers mostly choose
            # ascending addresses, and an expandable segment reserves more than the card has.
            self._origin = max(base - NARROW_PLACES // 4, 0) // PAGE * PAGE
        return self._origin

    def has_room_for(self, place: int, size: int, largest: int) -> bool:
        """Return True if the sort keys of all free blocks of a segment fit in their bits.

        place: result of the method `place` for the segment's first byte.
        size: bytes of the segment, including unmapped ones.
        largest: bytes of the largest block that the segment can have.
        """
        # Object numbers stay far below the limit of places.
        fits = 0 <= place <= NARROW_PLACES - size or self._order is FreeBlockOrder.CREATION
        return self.is_wide or (fits and largest < NARROW_SIZES)

    def new_keys(self) -> list[int]:
        # Wide keys do not fit the machine words of a compiled list.
        return [] if self.is_wide else Keys()

    def widen(self) -> None:
        """Switch to wide sort keys, which have room for any size and place.

        The caller must rebuild all keys.  If places are addresses, it must also set all ranks, the
        numbers that are added to addresses, to 0.
        """
        self.is_wide = True
        self.place_shift = 0
        self.size_shift = 72  # above any place
        self._origin = 0


_KEY_IN_LAYOUT: Final = 1
"""Placeholder in `Block.key` for a key that does not fit a machine word (`KeyLayout.key_of`)."""


class FreeBlocks:
    """Free blocks of one stream; the sort key of `blocks[i]` is `keys[i]`, in ascending order."""

    __slots__ = ("keys", "blocks")

    def __init__(self, layout: KeyLayout) -> None:
        self.keys = layout.new_keys()
        self.blocks = Blocks()

    def take(self, at: int) -> Block:
        del self.keys[at]
        block = self.blocks.pop(at)
        block.key = 0
        return block


class BlockPool:
    """Free blocks of one size class, small or large.

    owner: private pool that has this pool as small or large half; None for the default pools.
    unmapped: unmapped blocks of expandable segments, sorted by stream and address.
    search_calls: number of searches since the pool was created; garbage collection computes the
        ages of blocks from it.
    least_rest: smallest remainder for which a block is split while expandable segments are off
        (semantics.md, section 1.7).
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
        # By address, because expandable segments are filled from the lowest address.
        self.unmapped: SortedKeyList[Block, tuple[int, int]] = SortedKeyList(key=_by_address)
        self.layout = layout
        self.free: dict[int, FreeBlocks] = {}

    def __len__(self) -> int:
        return sum(len(free.keys) for free in self.free.values())

    def __iter__(self) -> Iterator[Block]:
        for stream in sorted(self.free):
            yield from self.free[stream].blocks

    def of(self, stream: int) -> FreeBlocks:
        free = self.free.get(stream)
        if free is None:
            free = self.free[stream] = FreeBlocks(self.layout)
        return free

    def rebuild_keys(self) -> None:
        """Compute every sort key again after a change of `layout` that keeps the blocks' order."""
        for free in self.free.values():
            free.keys = self.layout.new_keys()
            for block in free.blocks:
                free.keys.append(self._set_key(block))

    def insert(self, block: Block) -> None:
        """Add a free mapped block.

        Mirrors: BlockPool::insert_into_blocks
        """
        key = self._set_key(block)
        free = block.free
        at = find(free.keys, key)
        free.keys.insert(at, key)
        free.blocks.insert(at, block)
        # The age of a free block is the number of searches since this one (reclaim.py).
        block.gc_base = self.search_calls

    def _set_key(self, block: Block) -> int:
        key = self.layout.key_of(block)
        block.key = _KEY_IN_LAYOUT if IS_COMPILED and self.layout.is_wide else key
        return key

    def index_of(self, free: FreeBlocks, block: Block) -> int:
        key = block.key
        return find(free.keys, self.layout.key_of(block) if key == _KEY_IN_LAYOUT else key)

    def remove(self, block: Block) -> None:
        free = block.free
        at = self.index_of(free, block)
        del free.keys[at]
        del free.blocks[at]
        block.key = 0

    def smallest_at_least(self, stream: int, size: int) -> Block | None:
        """Return the smallest free block of `stream` with at least `size` bytes, or None."""
        free = self.of(stream)
        # The lowest key of this size; all keys from there on are of larger or equal blocks.
        at = find(free.keys, self.layout.key(size))
        return free.blocks[at] if at < len(free.keys) else None

    def at_least(self, size: int) -> list[Block]:
        key = self.layout.key(size)
        return [
            block
            for stream in sorted(self.free)
            for block in self.free[stream].blocks[find(self.free[stream].keys, key) :]
        ]

    def unmapped_of(self, stream: int) -> Iterator[Block]:
        found: Iterator[Block] = self.unmapped.irange_key(
            (stream, 0), (stream + 1, 0), inclusive=(True, False)
        )
        return found

    def smaller(self, stream: int, size: int) -> list[Block]:
        free = self.of(stream)
        end = find(free.keys, self.layout.key(size))
        return free.blocks[:end][::-1]


def _by_address(block: Block) -> tuple[int, int]:
    """Return the sort key of an unmapped block: stream and address.

    Mirrors: BlockComparatorAddress
    """
    return block.stream, block.ptr


class PrivatePool:
    """Small and large pool of a CUDA graph or a MemPool.

    use_count: number of captures and MemPools that use the private pool.
    segment_count: number of segments as PyTorch counts it.  For expandable segments, increments and
        decrements need not balance (semantics.md, section 5.1).
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
        return self.small, self.large


def next_not_expandable(blocks: Sequence[Block], at: int) -> int:
    """Return the index of the next block after index `at` that is not expandable; -1 if none.

    PyTorch skips expandable blocks if the program turned expandable segments off after creating
    some (semantics.md, section 4.4).

    blocks: free blocks in ascending order of their sort keys.
    """
    places = range(at + 1, len(blocks))
    return next((place for place in places if blocks[place].expandable is None), -1)


def least_expandable(blocks: Sequence[Block], at: int) -> int:
    """Return the index of the free block that PyTorch uses if the best fit is expandable.

    PyTorch adds to each block's size the unmapped space behind the block.  It starts at the best
    fit, and moves to the next block in the list as long as this sum decreases (semantics.md,
    section 4.4).

    blocks: free blocks in ascending order of their sort keys.
    at: index of the best fit.
    """
    least = _expandable_size(blocks[at])
    for place in range(at + 1, len(blocks)):
        following = blocks[place]
        size = _expandable_size(following)
        # Upstream stops at the first block that is not better, although a later block may be.
        if size >= least:
            break
        at, least = place, size
        if following.expandable is None:
            break
    return at


def _expandable_size(block: Block) -> int:
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)
