"""Fast comparison of the final segments of a replay with the recorded ones, all blocks at once.

A positive result is certain.  After a negative one, `compare.py` compares block by block.  Stale
requested sizes of inactive blocks are not compared.
"""

from __future__ import annotations

from operator import attrgetter

import numpy as np

from allocsim._fast_numpy import address_column, int_column
from allocsim.core import Block, ReplayAllocator
from allocsim.recording import Trace

__all__ = ["ends_alike"]


def ends_alike(trace: Trace, allocator: ReplayAllocator) -> bool:
    """Return True if `allocator` has exactly the final segments of `trace`.

    It compares all blocks at once, as columns.  If it returns False, segments or requested sizes of
    inactive blocks may differ, and a comparison block by block must decide.
    """
    tiles, (columns, n_active) = trace.tiles, allocator.block_columns()
    *numbers, heads = columns
    if tiles is None or not tiles.are_sound or len(numbers[0]) != len(tiles.blocks):
        return False
    if sorted(map(_of_head, heads)) != list(map(_of_segment, trace.segments)):
        return False
    # Active blocks come first in the columns, so a position below `n_active` is an active block.
    address = address_column(numbers[0])
    order = np.argsort(address)
    size, requested, is_allocated = (int_column(column) for column in numbers[1:])
    is_active = order < n_active
    number = order[is_active]
    return (
        np.array_equal(address[order], tiles.address)
        and np.array_equal(size[order], tiles.size)
        and np.array_equal(is_active, tiles.is_active)
        and np.array_equal(is_allocated[number] == 0, tiles.is_pending[is_active])
        and np.array_equal(requested[number], tiles.requested_size[is_active])
    )


_of_segment = attrgetter("address", "stream", "is_small", "pool_id", "is_expandable")


def _of_head(head: Block) -> tuple[int, int, bool, tuple[int, int], bool]:
    pool = head.pool
    return head.ptr, head.stream, pool.is_small, pool.id, head.expandable is not None
