"""Allocated and reserved memory after each step of a replay, and sums of changes in statistics.

`fold` and `fold_columns` return the same sums as `fold_records` of the core, but use NumPy, which
the core does not import.  A replay (`Drive`) sets the function that its allocator calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import int_column
from allocsim.core import (
    IS_COMPILED,
    SHORT,
    Column,
    GroupMoves,
    Journal,
    Moves,
    decode_long,
    decode_short,
    decode_wait,
    fold_records,
)


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """Memory after one step (allocator call) of a replay.

    entry: number of the recorded entry that the step comes from.
    """

    entry: int
    allocated: int
    reserved: int

    @property
    def idle(self) -> int:
        """Reserved bytes that are not allocated, including blocks that wait for other streams."""
        return self.reserved - self.allocated


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Memory after each step (allocator call) of a replay, as columns.

    entry: number of the recorded entry that each step comes from.
    """

    entry: NDArray[np.int64]
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]

    def at(self, is_kept: NDArray[np.bool_]) -> Timeline:
        """Return the timeline of the steps where the mask `is_kept` is True."""
        columns = (self.entry, self.allocated, self.reserved)
        return Timeline(*(column[is_kept] for column in columns))

    @property
    def busiest(self) -> TimelinePoint | None:
        return None if not len(self.entry) else self._point(int(np.argmax(self.allocated)))

    @property
    def idlest(self) -> TimelinePoint | None:
        if not len(self.entry):
            return None
        return self._point(int(np.argmax(self.reserved - self.allocated)))

    def _point(self, row: int) -> TimelinePoint:
        return TimelinePoint(
            int(self.entry[row]), int(self.allocated[row]), int(self.reserved[row])
        )


class TimelineBuilder:
    """Builder of the timeline of a replay.

    moved: change of allocated bytes at each step since the last call of `keep`.
    """

    def __init__(self, allocated: int, reserved: int) -> None:
        self.moved: list[int] = Column()
        self._kept: list[NDArray[np.int64]] = []
        self._n_kept = 0
        self._allocated = allocated
        self._reserved = [(0, reserved)]

    def __len__(self) -> int:
        return self._n_kept + len(self.moved)

    def keep(self) -> None:
        self._kept.append(int_column(self.moved))
        self._n_kept += len(self.moved)
        self.moved.clear()

    def reserve(self, reserved: int) -> None:
        if reserved != self._reserved[-1][1]:
            self._reserved.append((len(self) - 1, reserved))

    def build(self, entry: NDArray[np.int64]) -> Timeline:
        self.keep()
        moved = np.concatenate(self._kept)
        steps, values = zip(*self._reserved, strict=True)
        lengths = np.diff([*steps, len(moved)])
        return Timeline(
            entry=entry[: len(moved)],
            allocated=self._allocated + np.cumsum(moved),
            reserved=np.repeat(np.array(values, dtype=np.int64), lengths),
        )


_Ints = NDArray[np.int64]

FEW = 64
"""Number of changes in a journal below which plain Python is faster than NumPy."""


def fold(journal: Journal) -> tuple[GroupMoves, GroupMoves, GroupMoves]:
    """Add up the changes of statistics in a journal (core/journal.py), with NumPy if faster.

    Returns the change, peak and increase of each statistic: for all pools together, for the small
    pools, and for the large pools.
    """
    is_quicker = IS_COMPILED or len(journal[0]) < FEW
    return fold_records(journal) if is_quicker else fold_columns(journal)


def fold_columns(journal: Journal) -> tuple[GroupMoves, GroupMoves, GroupMoves]:
    """Return the same sums as `fold`, computed with NumPy; the journal must not be empty."""
    sizes, requested, inactive, at, waits = map(int_column, journal)
    sign = np.sign(sizes)
    is_small = inactive & 1
    is_short = np.abs(inactive) < SHORT
    short, long = decode_short(inactive, sizes), decode_long(inactive)
    splits = np.where(is_short, short[0], long[0])
    split_bytes = np.where(is_short, short[1], long[1])
    # One row for each statistic, in the order of GroupMoves.  Arrays are reused, because glibc
    # returns arrays above 128 KiB to the system, and new ones would double the time.
    rows = np.stack((sign, sizes, sign * requested, splits, split_bytes))
    room = np.maximum(rows, 0)
    grown = room.sum(axis=1)
    room *= is_small
    grown_small = room.sum(axis=1)
    sums = np.cumsum(rows, axis=1, out=room)
    waiting = waiting_small = None
    if len(waits):
        waiting = _waiting(at, waits, len(sizes))
        waiting_small = _waiting(at, waits * (waits & 1), len(sizes))
    every = _moves(sums, grown, waiting)
    rows *= is_small
    sums_small = np.cumsum(rows, axis=1)
    sums -= sums_small
    small = _moves(sums_small, grown_small, waiting_small)
    if waiting is not None and waiting_small is not None:
        waiting -= waiting_small
    return every, small, _moves(sums, grown - grown_small, waiting)


def fold_allocated(journal: Journal) -> tuple[GroupMoves, GroupMoves, GroupMoves]:
    """Add up the changes of allocated bytes over all pools; return 0 for all other statistics.

    The result has the same form as that of `fold`.  It is enough to compare settings.
    """
    sizes, _, _, at, waits = journal
    held = int_column(sizes)
    grown = np.maximum(held, 0).sum(keepdims=True)
    sums = np.cumsum(held)[np.newaxis]
    change = sums[:, -1] if len(sizes) else np.zeros(1, dtype=np.int64)
    if waits:
        waiting = _waiting(int_column(at), int_column(waits), len(sizes))[1:]
        sums, change = sums - waiting[:, :-1], change - waiting[:, -1]
    none = Moves()
    (moves,) = _summed(sums, change, grown) if len(sizes) else (Moves(int(change[0])),)
    nothing = (none,) * 7
    return (none, moves, none, none, none, none, none), nothing, nothing


def _waiting(at: _Ints, waits: _Ints, n_records: int) -> _Ints:
    # Rows: number and bytes of blocks with a pending free.  Columns: each record, and the end.
    waiting = np.zeros((2, n_records + 1), dtype=np.int64)
    np.add.at(waiting[0], at, np.sign(waits))
    np.add.at(waiting[1], at, decode_wait(waits))
    return np.cumsum(waiting, axis=1, out=waiting)


def _moves(sums: _Ints, grown: _Ints, waiting: _Ints | None) -> GroupMoves:
    # sums: running sums, one row for each statistic.  grown: sum of the increases of each row.
    blocks, sizes, requested, splits, split_bytes = _summed(sums, sums[:, -1], grown)
    if waiting is None:
        return blocks, sizes, blocks, sizes, requested, splits, split_bytes
    allocated = sums[:2] - waiting[:, :-1]
    allocated_blocks, held = _summed(allocated, sums[:2, -1] - waiting[:, -1], grown[:2])
    return allocated_blocks, held, blocks, sizes, requested, splits, split_bytes


def _summed(sums: _Ints, change: _Ints, grown: _Ints) -> Iterator[Moves]:
    peak = np.maximum(sums.max(axis=1), 0)
    return map(Moves, change.tolist(), peak.tolist(), grown.tolist())
