"""Private pools that a program deleted before the end, inferred from segments.

Before release 2.12, an entry has no pool id, and only the final segments name their pool.  If a
request obtains a segment although a free block fits, it is of a pool that no final segment names,
such as the pool of a CUDA graph that was captured on trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.recording import Action, PoolColumn, Trace


@dataclass(frozen=True, slots=True, eq=False)
class DeletedPool:
    """Private pool that the program deleted before the end, such as that of a CUDA graph.

    first: entry of its first segment.
    last: last entry of the release of its segments.
    rows: numbers of its entries.
    """

    first: int
    last: int
    rows: NDArray[np.intp]


def deleted_pool(trace: Trace, entry: int | None) -> DeletedPool | None:
    """Return the pool whose first segment is obtained at `entry`; None if there is none.

    The segments that the same call of empty_cache released are its segments if they are not older.
    """
    action, addr = trace.action, trace.addr
    if entry is None or trace.pool_ids or action[entry] != Action.SEGMENT_ALLOC:
        return None
    is_release = any_of(action, (Action.SEGMENT_FREE,))
    released = np.flatnonzero(is_release & (addr == addr[entry]))
    released = released[released > entry]
    if not len(released):
        return None
    others = np.flatnonzero(~is_release)
    at = int(np.searchsorted(others, released[0]))
    stop = int(others[at]) if at < len(others) else len(trace)
    is_of_pool = np.zeros(len(trace), dtype=bool)
    for release in range(int(others[at - 1]) + 1, stop):
        base = addr[release]
        same = slice(entry, release + 1)
        obtained = np.flatnonzero((action[same] == Action.SEGMENT_ALLOC) & (addr[same] == base))
        if len(obtained):
            same = slice(entry + int(obtained[-1]), release + 1)
            offset = addr[same] - base  # unsigned: lower addresses wrap to large numbers
            is_of_pool[same] |= offset < np.uint64(trace.size[release])
    is_of_pool &= action != Action.OOM  # its address is a number of bytes
    return DeletedPool(entry, stop - 1, np.flatnonzero(is_of_pool))


def with_pools(pools: PoolColumn, deleted: Sequence[DeletedPool]) -> PoolColumn:
    """Return `pools` with the entries of the deleted pools in a new pool for each."""
    number, ids = pools.number.copy() if deleted else pools.number, pools.ids
    for pool in deleted:
        number[pool.rows] = len(ids)
        ids = (*ids, (0, 1 + max((second for _, second in ids), default=0)))
    return PoolColumn(number, ids)
