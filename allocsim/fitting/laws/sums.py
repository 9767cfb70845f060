"""Split of a sum that is too long for one pass or one block of a kernel.

Rule: a sum is split into as few parts as fill the card. Each thread takes at least a minimum and at
most a maximum number of elements. The thresholds are those at which the kernel was seen to change
its way.

Sources: PyTorch's reductions as they ran; each threshold was found by bisection between the two
sizes named beside it.
"""

from __future__ import annotations

from typing import Final

from allocsim.fitting.laws.card import Card

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
"""Rows (1,020 | 1,021) above which columns are summed in two passes."""

AT_ONCE: Final = 130_560
"""Elements (130,560 | 130,561) up to which one block suffices: 255 per thread."""

INDEXED: Final = (1 << 31) - 1
"""Bytes of a tensor up to which one kernel sums it; a larger tensor is summed in parts."""


def columns_of_a_block(rows: int) -> int:
    """Return the columns that a block with `rows` rows of threads sums."""
    return 512 // rows


def partial_sums(summed: int, columns: int, card: Card, rows: int) -> int:
    """Return the number of partial sums per column over `summed` rows.

    A partial sum takes 16 elements for each of a block's `rows` rows of threads, or more if fewer
    sums fill the card with blocks, but at most 256.
    """
    return max(
        min(-(-summed // (16 * rows)), filling(columns, card, rows)), -(-summed // (256 * rows))
    )


def filling(columns: int, card: Card, rows: int) -> int:
    """Return how many times the blocks of the columns fit into the card, rounded up."""
    return -(-card.blocks(32 * rows) // max(-(-columns // columns_of_a_block(rows)), 1))


def parts_of(numbers: int, blocks: int) -> int:
    """Return the number of blocks of 512 threads that sum `numbers` elements.

    It is `blocks`, or fewer if a thread would have less than 16 elements, or more if it would have
    over 256.
    """
    values = -(-numbers // 512)
    return max(min(blocks, -(-values // 16)), -(-values // 256))
