"""Private pool of each entry of a trace.

Entries store the pool id since 2.12.  In older recordings an address belongs to the pool of the
final segment that contains it, else to the default pool (semantics 6.6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.state import DEFAULT_POOL, PoolId
from allocsim.trace.trace import Trace

__all__ = ["PoolColumn", "pools_of"]


@dataclass(frozen=True, slots=True)
class PoolColumn:
    """Index of each entry's pool in `ids`, -1 for the default pool."""

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
    for segment in private:
        inside = (trace.addr >= segment.address) & (trace.addr < segment.end)
        number[inside] = ids.index(segment.pool_id)
    return PoolColumn(number, ids)
