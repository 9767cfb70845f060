"""Statistics counted by NumPy, thousands of records at a time.

Rule: it gives what `allocsim.core.stats.fold_records` gives, number for number; the core has no
NumPy, so the engine hands it in (`python -m benchmarks.speed --tricks` has what it saves).
"""

from __future__ import annotations

from struct import pack

import numpy as np
from numpy.typing import NDArray

from allocsim.core.stats import SHORT, GroupMoves, Journal, Moves, Waits, fold_records

__all__ = ["fold_columns", "int_column"]

_Ints = NDArray[np.int64]

FEW = 64
"""Records that plain Python has counted before NumPy has begun."""


def fold_columns(journal: Journal) -> tuple[GroupMoves, GroupMoves, GroupMoves]:
    """The moves of all, small_pool and large_pool."""
    if len(journal[0]) < FEW:
        return fold_records(journal)
    *columns, waits = journal
    sizes, requested, inactive = map(int_column, columns)
    is_small = sizes & 1
    held = sizes >> 1
    is_short = np.abs(inactive) < SHORT
    splits = np.where(is_short, inactive >> 1, ((inactive + 4) & 7) - 4)
    split_bytes = np.where(is_short, held * -(inactive & 1), (inactive - splits) >> 3)
    # One row a statistic, in the order of GroupMoves.  Memory is used again as soon as it can
    # be: arrays above 128 KiB go back to the system each time, which doubles the time.
    rows = np.stack((np.sign(sizes), held, requested, splits, split_bytes))
    room = np.maximum(rows, 0)
    grown = room.sum(axis=1)
    room *= is_small
    grown_small = room.sum(axis=1)
    sums = np.cumsum(rows, axis=1, out=room)
    every = _moves(sums, grown, waits)
    rows *= is_small
    sums_small = np.cumsum(rows, axis=1)
    sums -= sums_small
    small, large = ([wait for wait in waits if wait[1] & 1 == group] for group in (1, 0))
    return (
        every,
        _moves(sums_small, grown_small, small),
        _moves(sums, grown - grown_small, large),
    )


def int_column(values: list[int]) -> _Ints:
    """`values` as an array; `struct` takes a third of the time of NumPy's own ways."""
    return np.frombuffer(pack(f"{len(values)}q", *values), np.int64)


def _moves(sums: _Ints, grown: _Ints, waits: Waits) -> GroupMoves:
    """Of each row of running sums, given the sums of their increases."""
    change, peak = sums[:, -1].tolist(), np.maximum(sums.max(axis=1), 0).tolist()
    active = tuple(map(Moves, change, peak, grown.tolist()))
    blocks, sizes, requested, splits, split_bytes = active
    allocated = _allocated(sums[:2], grown, waits) if waits else (blocks, sizes)
    return *allocated, blocks, sizes, requested, splits, split_bytes


def _allocated(sums: _Ints, grown: _Ints, waits: Waits) -> tuple[Moves, Moves]:
    """Blocks and bytes that were active and did not wait."""
    at, twice = np.array(waits, dtype=np.int64).T
    waiting = np.zeros((2, sums.shape[1] + 1), dtype=np.int64)
    np.add.at(waiting[0], at, np.sign(twice))
    np.add.at(waiting[1], at, twice >> 1)
    np.cumsum(waiting, axis=1, out=waiting)
    peak = np.maximum((sums - waiting[:, :-1]).max(axis=1), 0).tolist()
    change = (sums[:, -1] - waiting[:, -1]).tolist()
    blocks, sizes = map(Moves, change, peak, grown[:2].tolist())
    return blocks, sizes
