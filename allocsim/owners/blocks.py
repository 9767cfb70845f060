"""Every block of a device, as columns: from which entry to which, how large, made by which stack.

Rule: a block's size is what a replay as recorded counted for it, so that the blocks in use after
an entry add up to allocated bytes there.  A block is in use after entry e if `born <= e < freed`,
and waits for other streams, no longer counted as allocated, if `freed <= e < completed`.
Blocks from before the first entry are born at -1; what outlives the last entry ends at `n_entries`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import any_of, stable_order
from allocsim.engine import Timeline
from allocsim.state import ALLOCATED, DEFAULT_POOL, INACTIVE, PoolId, SegmentState
from allocsim.trace import BLOCK_ACTIONS, Action, Trace, pools_of

__all__ = ["Blocks", "blocks_of", "blocks_of_state"]

_Column = NDArray[np.int64]
_FREES = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks in the order of their births.

    size, requested: bytes in the segment, and asked for.  stack: number in the recording's frame
    table, -1 where none is recorded.  pool: index into `pools`, -1 for the default pool.
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

    def in_use(self, entry: int) -> NDArray[np.intp]:
        """Numbers of the blocks that are allocated after `entry`."""
        return np.flatnonzero((self.born <= entry) & (entry < self.freed))

    def pending(self, entry: int) -> NDArray[np.intp]:
        """Numbers of the blocks that are freed and wait for other streams after `entry`."""
        return np.flatnonzero((self.freed <= entry) & (entry < self.completed))


def blocks_of(trace: Trace, start: tuple[SegmentState, ...], timeline: Timeline) -> Blocks:
    """The blocks of a replay as recorded.

    start: the segments before the first entry.  timeline: of the whole recording.
    """
    pools = pools_of(trace)
    before = _Rows.of_state(start, pools.ids)
    rows = np.flatnonzero(any_of(trace.action, BLOCK_ACTIONS))
    action = np.concatenate((before.action, trace.action[rows]))
    address = np.concatenate((before.address, trace.addr[rows]))
    entry = np.concatenate((before.entry, rows))
    order = stable_order(address)
    made = np.flatnonzero(action[order] == Action.ALLOC)
    # In the order of (address, time) a block's ends stand right behind its beginning.
    first, second = _next_free(action, address, order, made)
    never = np.append(entry, len(trace))
    place = order[made]
    by_birth = np.argsort(place)
    place, first, second = place[by_birth], first[by_birth], second[by_birth]
    alloc = entry[place]
    held = sum(segment.allocated_size for segment in start)
    size = np.concatenate((before.size, _moved(trace, timeline, held)[rows]))[place]
    return Blocks(
        address=address[place],
        size=size,
        requested=np.concatenate((before.requested, trace.size[rows]))[place],
        stream=np.concatenate((before.stream, trace.stream[rows]))[place],
        pool=np.concatenate((before.pool, pools.number[rows]))[place],
        stack=np.concatenate((before.stack, trace.frames[rows]))[place],
        born=alloc,
        freed=never[first],
        completed=never[np.where(second >= 0, second, np.where(_ends(action, first), first, -1))],
        n_entries=len(trace),
        pools=pools.ids,
    )


def blocks_of_state(trace: Trace) -> Blocks:
    """The blocks of a recording that holds a state only; all of them from before."""
    ids = tuple(dict.fromkeys(segment.pool_id for segment in trace.segments))
    rows = _Rows.of_state(trace.segments, ids)
    made = np.flatnonzero(rows.action == Action.ALLOC)
    is_pending = np.isin(rows.address[made], rows.address[rows.action != Action.ALLOC])
    return Blocks(
        address=rows.address[made],
        size=rows.size[made],
        requested=rows.requested[made],
        stream=rows.stream[made],
        pool=rows.pool[made],
        stack=rows.stack[made],
        born=rows.entry[made],
        freed=np.where(is_pending, -1, len(trace)).astype(np.int64),
        completed=np.full(len(made), len(trace), dtype=np.int64),
        n_entries=len(trace),
        pools=ids,
    )


def _moved(trace: Trace, timeline: Timeline, held: int) -> _Column:
    """By entry, how many bytes became allocated there."""
    moved = np.zeros(len(trace), dtype=np.int64)
    np.add.at(moved, timeline.entry, np.diff(timeline.allocated, prepend=held))
    return moved


def _next_free(
    action: NDArray[np.uint8],
    address: NDArray[np.uint64],
    order: NDArray[np.intp],
    made: NDArray[np.intp],
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of the blocks at places `made` of `order`, the rows of the two ends; -1 where none is.

    A free that was never requested has one end only, which is its first.
    """
    padded = np.append(order, [-1, -1])
    first, second = padded[made + 1], padded[made + 2]
    here = address[order[made]]
    is_first = (first >= 0) & (address[first] == here) & any_of(action[first], _FREES)
    first = np.where(is_first, first, -1)
    completes = (second >= 0) & (address[second] == here)
    completes &= action[second] == Action.FREE_COMPLETED
    return first, np.where(is_first & completes & ~_ends(action, first), second, -1)


def _ends(action: NDArray[np.uint8], row: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether the row is there and completes a free."""
    found: NDArray[np.bool_] = (row >= 0) & (np.append(action, 255)[row] == Action.FREE_COMPLETED)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows that would have made the blocks of a state, and freed those that wait."""

    action: NDArray[np.uint8]
    address: NDArray[np.uint64]
    size: _Column
    requested: _Column
    stream: NDArray[np.uint64]
    pool: NDArray[np.int32]
    stack: NDArray[np.int32]
    entry: _Column

    @classmethod
    def of_state(cls, segments: tuple[SegmentState, ...], pools: tuple[PoolId, ...]) -> _Rows:
        rows = []
        number = {pool: index for index, pool in enumerate(pools) if pool != DEFAULT_POOL}
        for segment in segments:
            pool = number.get(segment.pool_id, -1)
            for block in segment.blocks:
                if block.state == INACTIVE:
                    continue
                sizes = (block.size, block.requested_size)
                row = (block.address, *sizes, segment.stream, pool, block.frames)
                rows.append((Action.ALLOC, *row))
                if block.state != ALLOCATED:
                    rows.append((Action.FREE_REQUESTED, *row))
        columns = zip(*rows, strict=True) if rows else [()] * 7
        action, address, size, requested, stream, pool_number, stack = columns
        return cls(
            np.array(action, dtype=np.uint8),
            np.array(address, dtype=np.uint64),
            np.array(size, dtype=np.int64),
            np.array(requested, dtype=np.int64),
            np.array(stream, dtype=np.uint64),
            np.array(pool_number, dtype=np.int32),
            np.array(stack, dtype=np.int32),
            np.full(len(rows), -1, dtype=np.int64),
        )
