"""Determine the pool of each entry of a trace.

Since PyTorch 2.12 entries store the pool id.  In an older recording an entry belongs to the pool of
the final segment that contains its address (semantics 6.6).  If that segment was obtained after the
entry, the entry belongs to the default pool, because the driver had reused the address.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.recording.action import Action
from allocsim.recording.reservations import reservations_of
from allocsim.recording.trace import Trace
from allocsim.state import DEFAULT_POOL, PoolId, SegmentState

__all__ = ["PoolColumn", "pools_of"]


@dataclass(frozen=True, slots=True)
class PoolColumn:
    """Pool of each entry.

    number: index of the entry's pool in `ids`; -1 for the default pool.
    """

    number: NDArray[np.int32]
    ids: tuple[PoolId, ...]


def pools_of(trace: Trace) -> PoolColumn:
    """Return the pools of the entries of `trace`."""
    if trace.pool_ids:
        default = [i for i, pool in enumerate(trace.pool_ids) if pool == DEFAULT_POOL]
        is_default = np.isin(trace.pool_id, default)
        return PoolColumn(np.where(is_default, np.int32(-1), trace.pool_id), trace.pool_ids)
    private = [segment for segment in trace.segments if segment.pool_id != DEFAULT_POOL]
    ids = tuple(dict.fromkeys(segment.pool_id for segment in private))
    number = np.full(len(trace), -1, dtype=np.int32)
    for first, base, end, pool_id in _held(trace, private):
        addr = trace.addr[first:]
        number[first:][(addr >= base) & (addr < end)] = ids.index(pool_id)
    number[any_of(trace.action, (Action.OOM,))] = -1  # its address is a number of bytes
    return PoolColumn(number, ids)


_Held = tuple[int, int, int, PoolId]
"""Addresses of a private pool: (entry from which it holds them, first address, end, pool)."""


def _held(trace: Trace, private: list[SegmentState]) -> Iterator[_Held]:
    """Yield the address ranges that private pools hold after the last entry.

    private: segments of private pools after the last entry.
    """
    obtained = np.flatnonzero(any_of(trace.action, (Action.SEGMENT_ALLOC,)))
    bases = trace.addr[obtained]
    for segment in private:
        if not segment.is_expandable:
            since = obtained[bases == segment.address]
            first = int(since[-1]) if len(since) else 0
            yield first, segment.address, segment.end, segment.pool_id
    mapped = [segment for segment in private if segment.is_expandable]
    for reservation in reservations_of(trace) if mapped else ():
        for segment in mapped:
            if segment.address < reservation.end and reservation.base < segment.end:
                yield reservation.first, reservation.base, reservation.end, segment.pool_id
                break
