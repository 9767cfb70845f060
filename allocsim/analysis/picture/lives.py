"""Addresses and lifetimes of all blocks and segments of a replay, as columns.

A row of the columns is one block or segment, which is live after entry e if `born <= e < end`.  If
it is older than the recording, `born` is -1; if it outlives the recording, it ends at `n_entries`.
The live blocks after an entry are disjoint and inside the live segments, and the space between them
is free.  If the replay serves a request that failed in the recording, its block has no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of, stable_order
from allocsim.export import History, columns_of
from allocsim.ownership import frees_of, rows_of
from allocsim.recording import BLOCK_ACTIONS, Action, Trace
from allocsim.state import PoolId

_Column = NDArray[np.int64]
_Addresses = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class BlockLives:
    """Blocks in order of their requests.

    size, requested: bytes after and before rounding.
    born, freed: entries of the request and of the free.
    completed: entry at which the free completed; later than `freed` if it waited for a stream.
    stack: number of the stack in the recording's frame table; -1 if there is no stack.
    """

    address: _Addresses
    size: _Column
    requested: _Column
    stream: NDArray[np.uint64]
    born: _Column
    freed: _Column
    completed: _Column
    stack: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.address)


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

    blocks: BlockLives
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


def _blocks(history: History, trace: Trace, n_entries: int) -> BlockLives:
    rows = np.flatnonzero(any_of(history.action, BLOCK_ACTIONS))
    then: list[NDArray[Any]] = [history.action, history.address, history.block_size, history.size]
    then += [history.stream, history.entry]
    *before, _, _, before_entry = rows_of(history.start, ())
    action, address, size, raw, stream, entry = (
        np.concatenate((older, column[rows]))
        for older, column in zip([*before, before_entry], then, strict=True)
    )
    order = stable_order(address)
    made = np.flatnonzero(action[order] == Action.ALLOC)
    freed, completed = frees_of(action, address, order, made)
    back = np.argsort(order[made])
    place = order[made][back]
    never = np.append(entry, n_entries)
    born, freed, completed = entry[place], never[freed[back]], never[completed[back]]
    stack = np.where(born >= 0, trace.frames[np.maximum(born, 0)] if len(trace) else -1, -1)
    found: list[NDArray[Any]] = [address[place], size[place], raw[place], stream[place]]
    found += [born, freed, completed, stack.astype(np.int32)]
    return BlockLives(*(column[size[place] > 0] for column in found))


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
