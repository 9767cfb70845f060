"""All blocks of a device as columns: lifetime, size and stack.

The size of a block is that of the baseline replay, so that the sizes of the blocks allocated after
an entry add up to the allocated bytes.  A block is allocated after entry e if `born <= e < freed`.
It is freed and waits for other streams if `freed <= e < completed`.  Blocks from before the first
entry have `born` -1.  `freed` and `completed` are `n_entries` if they are not in the recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of, stable_order
from allocsim.export import columns_of
from allocsim.recording import BLOCK_ACTIONS, Action, Trace, pools_of
from allocsim.simulation import Timeline
from allocsim.state import ALLOCATED, DEFAULT_POOL, INACTIVE, PoolId, SegmentState

_Column = NDArray[np.int64]
_FREES = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks in order of allocation.

    size: bytes of the block; 0 if the replay refused the request.
    requested: bytes of the request before rounding.
    stream: raw stream handle.
    pool: index into `pools`; -1 for the default pool.
    stack: stack number in the recording's frame table; -1 without a stack.
    born, freed, completed: entries of the allocation, of the free, and of the completion of the
        free.
    n_entries: number of entries of the recording.
    pools: ids of the private pools.
    """

    address: NDArray[np.uint64]
    size: _Column
    requested: _Column
    stream: NDArray[np.uint64]
    pool: NDArray[np.int32]
    stack: NDArray[np.int32]
    born: _Column
    freed: _Column
    completed: _Column
    n_entries: int
    pools: tuple[PoolId, ...]

    def __len__(self) -> int:
        return len(self.born)

    def take(self, rows: NDArray[np.intp]) -> Blocks:
        return replace(
            self, **{each.name: getattr(self, each.name)[rows] for each in fields(self)[:9]}
        )

    def in_use(self, entry: int) -> NDArray[np.intp]:
        """Return the indices of the blocks that are allocated after `entry`."""
        # A request that the replay refused has no memory.
        return np.flatnonzero((self.born <= entry) & (entry < self.freed) & (self.size > 0))

    def pending(self, entry: int) -> NDArray[np.intp]:
        """Return the indices of the freed blocks that wait for other streams after `entry`."""
        return np.flatnonzero((self.freed <= entry) & (entry < self.completed))


def blocks_of(trace: Trace, start: tuple[SegmentState, ...], timeline: Timeline) -> Blocks:
    """Return the blocks of a recording with the sizes of its baseline replay."""
    pools = pools_of(trace)
    rows = np.flatnonzero(any_of(trace.action, BLOCK_ACTIONS))
    held = sum(segment.allocated_size for segment in start)
    then = (trace.action, trace.addr, _moved(trace, timeline, held), trace.size, trace.stream)
    recorded = [column[rows] for column in (*then, pools.number, trace.frames)]
    columns = zip(rows_of(start, pools.ids), [*recorded, rows], strict=True)
    return paired([*map(np.concatenate, columns)], len(trace), pools.ids)


def paired(columns: Sequence[NDArray[Any]], n_entries: int, pools: tuple[PoolId, ...]) -> Blocks:
    """Return the blocks that rows of allocations and frees describe.

    columns: action, address, size, requested size, stream, pool, stack and entry of each row.
    n_entries: number of entries of the recording.
    pools: ids of the private pools.
    """
    action, address, size, requested, stream, pool, stack, entry = columns
    order = stable_order(address)
    made = np.flatnonzero(action[order] == Action.ALLOC)
    first, second = _frees_of(action, address, order, made)
    never = np.append(entry, n_entries)
    place = order[made]
    by_birth = np.argsort(place)
    place, first, second = place[by_birth], first[by_birth], second[by_birth]
    return Blocks(
        address=address[place],
        size=size[place],
        requested=requested[place],
        stream=stream[place],
        pool=pool[place],
        stack=stack[place],
        born=entry[place],
        freed=never[first],
        completed=never[
            np.where(second >= 0, second, np.where(_are_completions(action, first), first, -1))
        ],
        n_entries=n_entries,
        pools=pools,
    )


def blocks_of_state(trace: Trace) -> Blocks:
    """Return the blocks of a recording that has no entries; all have `born` -1."""
    ids = tuple(dict.fromkeys(segment.pool_id for segment in trace.segments))
    action, *columns = rows_of(trace.segments, ids)
    made = np.flatnonzero(action == Action.ALLOC)
    address, size, requested, stream, pool, stack, born = (column[made] for column in columns)
    is_pending = np.isin(address, columns[0][action != Action.ALLOC])
    return Blocks(
        address=address,
        size=size,
        requested=requested,
        stream=stream,
        pool=pool,
        stack=stack,
        born=born,
        freed=np.where(is_pending, -1, len(trace)).astype(np.int64),
        completed=np.full(len(made), len(trace), dtype=np.int64),
        n_entries=len(trace),
        pools=ids,
    )


def _moved(trace: Trace, timeline: Timeline, held: int) -> _Column:
    moved = np.zeros(len(trace), dtype=np.int64)
    np.add.at(moved, timeline.entry, np.diff(timeline.allocated, prepend=held))
    return moved


def _frees_of(
    action: NDArray[np.uint8],
    address: NDArray[np.uint64],
    order: NDArray[np.intp],
    made: NDArray[np.intp],
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    # The results are the rows of free_requested and free_completed of each block; -1 for a missing
    # row.  A free_completed without a free_requested is in the first.
    padded = np.append(order, [-1, -1])
    first, second = padded[made + 1], padded[made + 2]
    here = address[order[made]]
    is_first = (first >= 0) & (address[first] == here) & any_of(action[first], _FREES)
    first = np.where(is_first, first, -1)
    completes = (second >= 0) & (address[second] == here)
    completes &= action[second] == Action.FREE_COMPLETED
    return first, np.where(is_first & completes & ~_are_completions(action, first), second, -1)


def _are_completions(action: NDArray[np.uint8], row: NDArray[np.intp]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (row >= 0) & (np.append(action, 255)[row] == Action.FREE_COMPLETED)
    return found


def rows_of(segments: tuple[SegmentState, ...], pools: tuple[PoolId, ...]) -> list[NDArray[Any]]:
    """Return the blocks of `segments` as columns for `paired`, with entry number -1.

    Each block that is allocated or waits for its free has a row for its allocation.  Each block
    that waits for its free has also a row for the requested free.
    pools: private pools; the pool of a block is its index in `pools`, or -1 for the default pool.
    """
    rows = []
    number = {pool: index for index, pool in enumerate(pools) if pool != DEFAULT_POOL}
    for segment in segments:
        pool = number.get(segment.pool_id, -1)
        for block in segment.blocks:
            if block.state == INACTIVE:
                continue
            sizes = (block.size, block.requested_size)
            row = (block.address, *sizes, segment.stream, pool, block.frames, -1)
            rows.append((Action.ALLOC, *row))
            if block.state != ALLOCATED:
                rows.append((Action.FREE_REQUESTED, *row))
    dtypes = (np.uint8, np.uint64, np.int64, np.int64, np.uint64, np.int32, np.int32, np.int64)
    return columns_of(zip(*rows, strict=True), dtypes)
