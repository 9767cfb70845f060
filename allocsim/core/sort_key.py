"""Keys that sort the free blocks of one stream by size, then by the tie-break of the release.

A key is one integer: the size in the high bits, the block's place in the low bits.  The place
breaks
ties: it is an address, an age of the segment or an age of the block object (`FreeBlockOrder`).
Except for object ages, it is computed as the block's address plus its rank, a constant of the
segment.  Source: semantics 1.5.
"""

from __future__ import annotations

from typing import Final

from allocsim.core.block import Block
from allocsim.core.columns import Keys
from allocsim.core.constants import IS_COMPILED, MIN_BLOCK_SIZE, PAGE
from allocsim.core.releases import FreeBlockOrder
from allocsim.units import GIB, TIB

SIZE_ZERO_BITS: Final = MIN_BLOCK_SIZE.bit_length() - 1
"""Number of low bits that are 0 in sizes and places, while both are multiples of 512."""

NARROW_PLACES: Final = 8 * TIB if IS_COMPILED else 256 * GIB
"""Limit of places in narrow keys, counted from near the first segment.

8 TiB in the compiled form: with `NARROW_SIZES`, a key fits a machine word.  256 GiB in plain
Python: one byte of size adds less than 2**30 to a key, which is one digit of Python's integers.
This makes the arithmetic of fast_path.py twice as fast (29 ns instead of 71).
"""

NARROW_SIZES: Final = 1 << 39
"""Limit of block sizes in narrow keys; an expandable segment of any card is smaller."""

RANK_MASK: Final = (1 << 64) - 1 if IS_COMPILED else -1
"""Bits of a rank that are kept: in the compiled form, ranks are unsigned 64-bit words."""


class KeyLayout:
    """Bit layout of the sort keys of all pools of a heap.

    A key is the size, shifted left by `size_shift`, plus the place, shifted right by `place_shift`.

    Narrow keys save bits because sizes are multiples of 512: the highest 9 bits of the place
    overlap the lowest 9 bits of the size, which are 0.  The compiled form also drops the 9 low bits
    of size and place.  Wide keys have room for any size and place.

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
        """Return the key of a free block; with place 0, the lowest key of its size."""
        return (size << self.size_shift) + (place >> self.place_shift)

    def key_of(self, block: Block) -> int:
        """Return the key of a free block."""
        return self.key(block.size, self.place(block.rank, block.ptr))

    def place(self, rank: int, ptr: int) -> int:
        """Return the position of a block among free blocks of equal size."""
        return rank if self._order is FreeBlockOrder.CREATION else (rank + ptr) & RANK_MASK

    def origin(self, base: int) -> int:
        """Return the address whose place is 0, for releases that order by address.

        base: address of a segment.  The first call decides; later calls return the same address.
        """
        if self._origin < 0:
            # A quarter of the narrow places is below the first segment: drivers mostly choose
            # ascending addresses, and an expandable segment reserves more than the card has.
            self._origin = max(base - NARROW_PLACES // 4, 0) // PAGE * PAGE
        return self._origin

    def takes(self, place: int, size: int, largest: int) -> bool:
        """Return True if the keys have room for every block of a segment.

        place: place of the segment's first byte.
        size: bytes of the segment, including unmapped ones.
        largest: bytes of the largest block that the segment can have.
        """
        # Object numbers stay far below the limit of places.
        fits = 0 <= place <= NARROW_PLACES - size or self._order is FreeBlockOrder.CREATION
        return self.is_wide or (fits and largest < NARROW_SIZES)

    def new_keys(self) -> list[int]:
        """Return an empty list for keys."""
        # Wide keys do not fit the machine words of a compiled list.
        return [] if self.is_wide else Keys()

    def widen(self) -> None:
        """Switch to wide keys.

        The caller must rebuild all keys.  If places are addresses, it must set all ranks to 0.
        """
        self.is_wide = True
        self.place_shift = 0
        self.size_shift = 72  # above any place
        self._origin = 0
