"""Which private pool each entry of a trace belongs to.

Rule: entries have it from 2.12 on; before, an address belongs to the pool of the segment that holds
it at the end, else to the default pool (semantics 6.6).
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
    """The number of each entry's pool in `ids`, -1 for the default pool."""

    number: NDArray[np.int32]
    ids: tuple[PoolId, ...]


def pools_of(trace: Trace) -> PoolColumn:
    """The pools of a trace's entries."""
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
