"""How kernels take a sum apart that is too long for one pass, or for one block.

Rule: as few parts as fill the card, each of so many numbers a thread at least, and never of more
than a thread may take; the bounds are those between which the kernel was seen to change its way.

Sources: PyTorch's reductions as they ran; each threshold was found by halving, between the two
sizes named beside it.
"""

from __future__ import annotations

from typing import Final

from allocsim.laws.card import Card

__all__ = [
    "AT_ONCE",
    "INDEXED",
    "IN_TWO_PASSES_ABOVE",
    "columns_of_a_block",
    "filling",
    "partial_sums",
    "parts_of",
]

IN_TWO_PASSES_ABOVE: Final = 1020
"""Rows (1,020 | 1,021) from which on columns are summed in two passes."""

AT_ONCE: Final = 130_560
"""Numbers (130,560 | 130,561) up to which one block takes them all: 255 for each of its threads."""

INDEXED: Final = (1 << 31) - 1
"""Bytes of a tensor up to which one kernel sums it; a larger one is taken in parts."""


def columns_of_a_block(rows: int) -> int:
    """Columns that a block sums which has so many rows of threads."""
    return 512 // rows


def partial_sums(summed: int, columns: int, card: Card, rows: int) -> int:
    """Into how many sums one of each column over `summed` rows is taken apart first.

    16 for each of a block's `rows` of threads, or more where fewer sums fill the card with blocks;
    256 for each at most.
    """
    return max(
        min(-(-summed // (16 * rows)), filling(columns, card, rows)), -(-summed // (256 * rows))
    )


def filling(columns: int, card: Card, rows: int) -> int:
    """How many times the blocks that columns take fill the card, rounded up."""
    return -(-card.blocks(32 * rows) // max(-(-columns // columns_of_a_block(rows)), 1))


def parts_of(numbers: int, blocks: int) -> int:
    """Blocks of 512 threads that take so many numbers: `blocks`, or fewer where a thread would have
    less than 16, more where it would have over 256."""
    values = -(-numbers // 512)
    return max(min(blocks, -(-values // 16)), -(-values // 256))
