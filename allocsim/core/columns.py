"""What the core keeps numbers and named blocks in: lists and a dictionary, C arrays where compiled.

Rule: the same calls do the same with either; only how long they take differs.  The C arrays are in
_columns.pyx; setup.py selects the modules that are compiled.
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
    """A column of numbers that is not the core's own, an array of NumPy."""

    def tolist(self) -> list[int]:
        """The numbers as Python's own."""


BlockColumns = tuple["Column", "Column", "Column", "Column", "list[Block]"]
"""Of blocks their addresses, sizes, requested bytes and whether they are allocated, 1 or 0; and
those of them before which no other is mapped in the same segment.  A compiled column has addresses
as numbers with a sign."""

if TYPE_CHECKING or not IS_COMPILED:
    Column = list[int]
    Keys = list[int]
    Blocks = list["Block"]
    Names = dict[int, "Block"]
    find = bisect_left

    def column_of(values: Column) -> Column:
        """`values` as a column."""
        return values

    def block_columns(blocks: list[Block]) -> BlockColumns:
        """Some blocks as columns, for who compares all of a device."""
        return (
            [block.ptr for block in blocks],
            [block.size for block in blocks],
            [block.requested_size for block in blocks],
            [block.allocated for block in blocks],
            [block for block in blocks if block.prev is None or not block.prev.mapped],
        )

    def step_rows(columns: Sequence[Buffer]) -> Iterator[tuple[int, int, int, int]]:
        """Rows of the columns kind, name, size and stream, for `CachingAllocator.play`."""
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
        """Rows of the columns kind, name, size and stream, for `CachingAllocator.play`."""
        return StepRows(None, *columns)
