"""Container types of the core: Python lists and dicts, or C arrays in the compiled form.

Both forms have the same interface and the same results.  The C arrays are in _columns.pyx; setup.py
selects the modules that are compiled.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from allocsim.core.constants import IS_COMPILED

if TYPE_CHECKING:
    from allocsim.core.block import Block

__all__ = [
    "BlockColumns",
    "Blocks",
    "Column",
    "Keys",
    "Names",
    "block_columns",
    "column_of",
    "find",
    "step_rows",
]


class Buffer(Protocol):
    """Column of numbers that the core receives from callers, such as a NumPy array."""

    def tolist(self) -> list[int]: ...


BlockColumns = tuple["Column", "Column", "Column", "Column", "list[Block]"]
"""Four columns with a row for each block, and a list of blocks that are heads.

The columns are the address, the size, the requested bytes, and 1 if the block is allocated, else 0.

A head is the first block of a segment, or of a mapped range in an expandable segment.  In the
compiled form, addresses are signed 64-bit numbers.
"""

if TYPE_CHECKING or not IS_COMPILED:
    Column = list[int]
    Keys = list[int]
    Blocks = list["Block"]
    Names = dict[int, "Block"]
    find = bisect_left

    def column_of(values: Column) -> Column:
        """Return `values`, which is already a column in this form of the core."""
        return values

    def block_columns(blocks: list[Block]) -> BlockColumns:
        """Return the columns of `blocks`, for a comparison with a recorded state by NumPy."""
        return (
            [block.ptr for block in blocks],
            [block.size for block in blocks],
            [block.requested_size for block in blocks],
            [block.allocated for block in blocks],
            [block for block in blocks if block.prev is None or not block.prev.mapped],
        )

    def step_rows(columns: Sequence[Buffer]) -> Iterator[tuple[int, int, int, int]]:
        """Return an iterator over the rows (kind, block name, size, stream) of four columns."""
        return zip(*(column.tolist() for column in columns), strict=True)

else:
    from allocsim.core._columns import (
        Blocks,
        Column,
        Keys,
        Names,
        StepRows,
        block_columns,
        column_of,
        find,
    )

    def step_rows(columns: Sequence[Buffer]) -> StepRows:
        """Return an iterator over the rows (kind, block name, size, stream) of four columns."""
        return StepRows(None, *columns)
