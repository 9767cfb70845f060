"""Addresses and lifetimes of all blocks and segments of a replay, as columns.

A row of the columns is one block or segment, which is live after entry e if `born <= e < end`.  If
it is older than the recording, `born` is -1; if it outlives the recording, it ends at `n_entries`.
The live blocks after an entry are disjoint and inside the live segments, and the space between them
is free.  If the replay serves a request that failed in the recording, its block has no row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.export import History, columns_of
from allocsim.ownership import Blocks, paired, rows_of
from allocsim.recording import BLOCK_ACTIONS, Action, Trace
from allocsim.state import PoolId

_Column = NDArray[np.int64]
_Addresses = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentLives:
    """Segments, and mapped ranges of expandable segments.

    born, died: entries at which the memory was reserved and returned to the driver.
    pool: index into `Lives.pools`; -1 for the default pool.
    """

    address: _Addresses
    size: _Column
    stream: NDArray[np.uint64]
    born: _Column
    died: _Column
    pool: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, eq=False)
class Lives:
    """Blocks and segments of one device.

    n_entries: number of replayed entries.
    """

    blocks: Blocks
    segments: SegmentLives
    n_entries: int
    pools: tuple[PoolId, ...] = ()


def lives_of(history: History, trace: Trace, stopped_at: int | None = None) -> Lives:
    """Return the lifetimes of blocks and segments in a replay of `trace`.

    stopped_at: entry at which the replay ended with an error; None if it reached the end.
    """
    n_entries = len(trace) if stopped_at is None else stopped_at + 1
    blocks, segments = _blocks(history, trace, n_entries), _segments(history, n_entries)
    return Lives(blocks, segments, n_entries, history.pools)


def _blocks(history: History, trace: Trace, n_entries: int) -> Blocks:
    rows = np.flatnonzero(any_of(history.action, BLOCK_ACTIONS))
    entry = history.entry[rows]
    then = (history.action, history.address, history.block_size, history.size, history.stream)
    recorded = [column[rows] for column in (*then, history.pool)]
    older = rows_of(history.start, history.pools)
    older[6][:] = -1  # the stacks of older blocks are not shown
    columns = zip(older, [*recorded, trace.frames[entry], entry], strict=True)
    found = paired([*map(np.concatenate, columns)], n_entries, history.pools)
    return found.take(np.flatnonzero(found.size > 0))


_TAKES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GIVES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


def _segments(history: History, n_entries: int) -> SegmentLives:
    number = {pool: i for i, pool in enumerate(history.pools)}
    held = {
        s.address: (s.total_size, s.stream, -1, number.get(s.pool_id, -1)) for s in history.start
    }
    ended: list[tuple[int, int, int, int, int, int]] = []
    rows = np.flatnonzero(any_of(history.action, (*_TAKES, *_GIVES)))
    columns = (history.action, history.address, history.size, history.stream, history.entry,
               history.pool)  # fmt: skip
    for row in zip(*(column[rows].tolist() for column in columns), strict=True):
        action, address, size, stream, entry, pool = row
        if action in _TAKES:
            held[address] = (size, stream, entry, pool)
            continue
        end, touched = address + size, [address]
        if held.get(address, (-1,))[0] != size:
            touched = [at for at, (n, _, _, _) in held.items() if at < end and at + n > address]
        for at in touched:
            length, stream, born, pool = held.pop(at)
            first, last = max(at, address), min(at + length, end)
            ended.append((first, last - first, stream, born, entry, pool))
            if at < first:
                held[at] = (first - at, stream, born, pool)
            if last < at + length:
                held[last] = (at + length - last, stream, born, pool)
    ended += [
        (at, size, stream, born, n_entries, pool) for at, (size, stream, born, pool) in held.items()
    ]
    ended.sort(key=lambda row: (row[3], row[0]))
    dtypes = (np.uint64, np.int64, np.uint64, np.int64, np.int64, np.int32)
    return SegmentLives(*columns_of(zip(*ended, strict=True), dtypes))
