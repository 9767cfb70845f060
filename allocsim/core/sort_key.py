"""Keys that sort the free blocks of one stream by size and then by the release's tie-break.

Source: semantics 1.5.
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
