"""Number of parts into which a reduction kernel splits a sum that is too long for one pass.

Rule: a sum is split into as few parts as fill the GPU. Each thread takes at least a minimum and at
    most a maximum number of elements. The thresholds are those at which the kernel was seen to
    change.

Sources: PyTorch's reductions as they ran; each threshold was found by bisection between the two
    sizes given with it.
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
"""Rows above which columns are summed in two passes; 1,020 were seen to take one, 1,021 two."""

AT_ONCE: Final = 130_560
"""Elements up to which one block suffices, 255 per thread; 130,561 were seen to take more."""

INDEXED: Final = (1 << 31) - 1
"""Bytes of a tensor up to which one kernel sums it; a larger tensor is summed in parts."""


def columns_of_a_block(rows: int) -> int:
    """Return the number of columns that a block with `rows` rows of threads sums."""
    return 512 // rows


def partial_sums(summed: int, columns: int, card: Card, rows: int) -> int:
    """Return the number of partial sums for each column of a matrix.

    summed: rows of the matrix.
    columns: columns of the matrix.
    rows: rows of threads in a block.

    A partial sum covers 16 elements for each row of threads. It covers more, at most 256, if fewer
    partial sums already fill the GPU with blocks.
    """
    return max(
        min(-(-summed // (16 * rows)), filling(columns, card, rows)), -(-summed // (256 * rows))
    )


def filling(columns: int, card: Card, rows: int) -> int:
    """Return the number of parts per column at which blocks of threads fill the GPU, rounded up.

    columns: columns of the matrix.
    rows: rows of threads in a block.
    """
    return -(-card.blocks(32 * rows) // max(-(-columns // columns_of_a_block(rows)), 1))


def parts_of(numbers: int, blocks: int) -> int:
    """Return the number of blocks of 512 threads that sum `numbers` elements.

    blocks: number of blocks that fill the GPU. Fewer run if a thread would have less than 16
        elements, and more if it would have over 256.
    """
    values = -(-numbers // 512)
    return max(min(blocks, -(-values // 16)), -(-values // 256))
