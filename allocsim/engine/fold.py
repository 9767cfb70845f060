"""Statistics counted by NumPy, thousands of records at a time.

Rule: it gives what `allocsim.core.stats.fold_records` gives, number for number; the core has no
NumPy, so the engine hands it in (benchmarks/results/speed.md has what it saves).
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from allocsim.core.stats import GroupMoves, Moves, Record

__all__ = ["fold_columns"]

_Column = NDArray[np.int64]


def fold_columns(records: list[Record]) -> tuple[GroupMoves, GroupMoves, GroupMoves]:
    """The moves of all, small_pool and large_pool."""
    flat = np.fromiter(chain.from_iterable(records), np.int64, 3 * len(records))
    sizes, requested, inactive = flat.reshape(-1, 3).T
    is_small = (sizes & 1).astype(bool)
    splits = ((inactive + 4) & 7) - 4
    split_bytes = (inactive - splits) >> 3
    columns = (np.where(sizes > 0, 1, -1), sizes >> 1, requested, splits, split_bytes)
    small = tuple(column[is_small] for column in columns)
    large = tuple(column[~is_small] for column in columns)
    return _group(columns), _group(small), _group(large)


def _group(columns: tuple[_Column, ...]) -> GroupMoves:
    blocks, sizes, requested, splits, split_bytes = map(_moves, columns)
    return blocks, sizes, requested, splits, split_bytes


def _moves(column: _Column) -> Moves:
    if not len(column):
        return Moves()
    sums = np.cumsum(column)
    change = int(sums[-1])
    # Increases minus decreases is the change, increases plus decreases the sum of amounts.
    grown = (int(np.abs(column).sum()) + change) // 2
    return Moves(change, max(0, int(sums.max())), grown)
