"""Blocks of a device as columns: size, stack, and the entries of the allocation and the free.

A block is in use after entry e if `born <= e < freed`.  It waits for other streams if `freed <= e <
completed`.  Blocks from before the first entry have `born` -1.  Sizes of blocks are taken from the
replay under the recorded settings, so that they add up to the allocated bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of, stable_order
from allocsim.export import columns_of
from allocsim.recording import BLOCK_ACTIONS, Action, BlockLives, Trace, pools_of
from allocsim.simulation import Timeline
from allocsim.state import ALLOCATED, DEFAULT_POOL, INACTIVE, PoolId, SegmentState

_Column = NDArray[np.int64]
_FREES = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks in order of allocation; each column has one item per block.

    size: bytes of the block; 0 if the replay refused the request.
    requested: bytes of the request before rounding.
    pool: index into `pools`; -1 for the default pool.
    stack: stack index in the recording's frame table; -1 without a stack.
    born: entry of the allocation; -1 for a block from before the first entry.
    freed, completed: entries of free_requested and free_completed; `n_entries` if there is none.
    n_entries: number of entries of the recording.
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
        # A request that the replay refused has no memory.
        return np.flatnonzero((self.born <= entry) & (entry < self.freed) & (self.size > 0))

    def pending(self, entry: int) -> NDArray[np.intp]:
        """Return the indices of freed blocks whose other streams have not finished at `entry`."""
        return np.flatnonzero((self.freed <= entry) & (entry < self.completed))


def blocks_of(
    trace: Trace,
    start: tuple[SegmentState, ...],
    timeline: Timeline,
    lives: BlockLives | None = None,
) -> Blocks:
    """Return the blocks of a recording.

    start: segments before the first entry.
    timeline: memory during the replay under the recorded settings, which gives sizes of blocks.
    lives: lifetimes of the blocks if known (then `start` must be empty); None to compute them.
    """
    pools = pools_of(trace)
    before, old = rows_of(start, pools.ids), np.zeros(0, dtype=np.intp)
    if lives is None:
        rows = np.flatnonzero(any_of(trace.action, BLOCK_ACTIONS))
        action = np.concatenate((before[0], trace.action[rows]))
        address = np.concatenate((before[1], trace.addr[rows]))
        made, lives = _lives_of(action, address, np.concatenate((before[-1], rows)), len(trace))
        old = made[: np.searchsorted(lives.born, 0)]
    held = sum(segment.allocated_size for segment in start)
    moved = np.zeros(len(trace), dtype=np.int64)
    np.add.at(moved, timeline.entry, np.diff(timeline.allocated, prepend=held))
    then: tuple[NDArray[Any], ...] = (
        *(trace.addr, moved, trace.size, trace.stream),
        *(pools.number, trace.frames),
    )
    columns = [
        np.concatenate((first[old], column[lives.born[len(old) :]]))
        for first, column in zip(before[1:-1], then, strict=True)
    ]
    return _with_lives(columns, lives, len(trace), pools.ids)


def paired(columns: Sequence[NDArray[Any]], n_entries: int, pools: tuple[PoolId, ...]) -> Blocks:
    """Match each free with the latest allocation at its address, and return the blocks.

    columns: action, address, size, requested size, stream, pool, stack and entry, each with one
        item per allocation or free, in order.
    """
    action, *others, entry = columns
    made, lives = _lives_of(action, others[0], entry, n_entries)
    return _with_lives([column[made] for column in others], lives, n_entries, pools)


def _with_lives(
    columns: Sequence[NDArray[Any]], lives: BlockLives, n_entries: int, pools: tuple[PoolId, ...]
) -> Blocks:
    address, size, requested, stream, pool, stack = columns
    return Blocks(
        address=address,
        size=size,
        requested=requested,
        stream=stream,
        pool=pool,
        stack=stack,
        born=lives.born,
        freed=lives.freed,
        completed=lives.completed,
        n_entries=n_entries,
        pools=pools,
    )


def _lives_of(
    action: NDArray[np.uint8], address: NDArray[np.uint64], entry: _Column, n_entries: int
) -> tuple[NDArray[np.intp], BlockLives]:
    # Also returns the index of each allocation in the arguments.
    order = stable_order(address)
    at = np.flatnonzero(action[order] == Action.ALLOC)
    padded = np.append(order, [-1, -1])
    made, first, second = order[at], padded[at + 1], padded[at + 2]
    here = address[made]
    is_freed = (first >= 0) & (address[first] == here) & any_of(action[first], _FREES)
    # A free_completed without a free_requested counts as both.
    is_both = is_freed & (action[first] == Action.FREE_COMPLETED)
    completes = is_freed & (second >= 0) & (address[second] == here)
    completes &= action[second] == Action.FREE_COMPLETED
    freed = np.where(is_freed, first, -1)
    completed = np.where(is_both, first, np.where(completes, second, -1))
    by_birth = stable_order(made)
    made, freed, completed = made[by_birth], freed[by_birth], completed[by_birth]
    never = np.append(entry, n_entries)
    return made, BlockLives(entry[made], never[freed], never[completed])


def blocks_of_state(trace: Trace) -> Blocks:
    ids = tuple(dict.fromkeys(segment.pool_id for segment in trace.segments))
    action, *columns = rows_of(trace.segments, ids)
    made = np.flatnonzero(action == Action.ALLOC)
    address, size, requested, stream, pool, stack, born = (column[made] for column in columns)
    is_pending = np.isin(address, columns[0][action != Action.ALLOC])
    freed = np.where(is_pending, -1, len(trace)).astype(np.int64)
    completed = np.full(len(made), len(trace), dtype=np.int64)
    return Blocks(
        address, size, requested, stream, pool, stack, born, freed, completed, len(trace), ids
    )


def rows_of(segments: tuple[SegmentState, ...], pools: tuple[PoolId, ...]) -> list[NDArray[Any]]:
    """Return the blocks that are in use before the first entry, as columns for `paired`.

    Each block becomes an allocation at entry -1.  If it is freed, but another stream still uses it,
    a free follows.

    pools: pool ids; column `pool` has indices into them.
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
