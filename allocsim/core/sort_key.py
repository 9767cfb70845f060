"""Keys that sort the free blocks of one stream by size, then by the tie-break of the release.

A key is one integer with the size above the place, so that one comparison decides.  Source:
semantics 1.5.
"""

from __future__ import annotations

from typing import Final

from allocsim.core.block import Block
from allocsim.core.columns import Keys
from allocsim.core.constants import IS_COMPILED, MIN_BLOCK_SIZE, PAGE
from allocsim.core.releases import FreeBlockOrder
from allocsim.units import GIB, TIB

__all__ = ["NARROW_PLACES", "NARROW_SIZES", "RANK_MASK", "KeyLayout"]

SIZE_ZERO_BITS: Final = MIN_BLOCK_SIZE.bit_length() - 1
"""Number of low bits that are 0 in sizes and places, while both are multiples of 512."""

NARROW_PLACES: Final = 8 * TIB if IS_COMPILED else 256 * GIB
"""Limit of places in narrow keys, counted from near the first segment.

Compiled, 8 TiB: with `NARROW_SIZES` a key fits a machine word.  Plain, 256 GiB: one byte of size
adds less than 2**30 to a key, a digit of Python's integers, which makes the arithmetic of
fast_path.py twice as fast (29 ns instead of 71).
"""

NARROW_SIZES: Final = 1 << 39
"""Limit of block sizes in narrow keys; an expandable segment of a card stays below it."""

RANK_MASK: Final = (1 << 64) - 1 if IS_COMPILED else -1
"""Bits of a rank that are kept; compiled, ranks are unsigned 64-bit words."""


class KeyLayout:
    """Layout of the keys of a heap.

    A key is the size, shifted left by `size_shift`, plus the place, shifted right by `place_shift`.
    The place is rank plus address, or the object's number where the release orders by creation.

    Narrow keys save bits because sizes are multiples of 512: the highest 9 bits of the place
    overlap the lowest 9 bits of the size, which are 0.  The compiled form also drops the low bits
    of both.  Wide keys hold any size and place.

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
        """Return the address that is place 0 where places are addresses.

        base: address of a segment; the first one decides.  A quarter of the narrow places is below
        it, because drivers mostly choose ascending addresses and the reservation of an expandable
        segment is longer than the card.
        """
        if self._origin < 0:
            self._origin = max(base - NARROW_PLACES // 4, 0) // PAGE * PAGE
        return self._origin

    def takes(self, place: int, size: int, largest: int) -> bool:
        """Return True if keys can hold every block of a segment.

        largest: bytes of the largest block.
        """
        fits = 0 <= place <= NARROW_PLACES - size or self._order is FreeBlockOrder.CREATION
        return self.is_wide or (fits and largest < NARROW_SIZES)

    def new_keys(self) -> list[int]:
        """Return an empty list for keys."""
        return [] if self.is_wide else Keys()

    def widen(self) -> None:
        """Switch to wide keys; the caller must rebuild all keys, and reset ranks of addresses."""
        self.is_wide = True
        self.place_shift = 0
        self.size_shift = 72  # above any place
        self._origin = 0
