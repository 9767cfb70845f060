"""Whether a replay ends with the segments of the recording, all blocks looked at at once.

Rule: yes only where every segment and block compares equal one by one; no is no verdict, but leave
to look (`fidelity.py`).  Stale sizes of inactive blocks are compared nowhere.
"""

from __future__ import annotations

from operator import attrgetter

import numpy as np

from allocsim.core import Block, CachingAllocator
from allocsim.trace import Trace

__all__ = ["ends_alike"]


def ends_alike(trace: Trace, allocator: CachingAllocator) -> bool:
    """Whether it is certain that `allocator` holds the final segments of `trace`, and no other."""
    tiles, blocks = trace.tiles, allocator.blocks()
    if tiles is None or not tiles.are_sound or len(blocks) != len(tiles.blocks):
        return False
    heads = [block for block in blocks if block.prev is None or not block.prev.mapped]
    if sorted(map(_of_head, heads)) != list(map(_of_segment, trace.segments)):
        return False
    address = np.array([block.ptr for block in blocks], dtype=np.uint64)
    order = np.argsort(address)
    size = np.array([block.size for block in blocks], dtype=np.int64)[order]
    asked = np.array([block.requested_size for block in blocks], dtype=np.int64)[order]
    is_active = np.array([block.is_active for block in blocks], dtype=bool)[order]
    is_allocated = np.array([block.allocated for block in blocks], dtype=bool)[order]
    return (
        np.array_equal(address[order], tiles.address)
        and np.array_equal(size, tiles.size)
        and np.array_equal(is_active, tiles.is_active)
        and np.array_equal(is_active & ~is_allocated, tiles.is_pending)
        and bool(((asked == tiles.requested_size) | ~is_active).all())
    )


_of_segment = attrgetter("address", "stream", "is_small", "pool_id", "is_expandable")


def _of_head(head: Block) -> tuple[int, int, bool, tuple[int, int], bool]:
    pool = head.pool
    return head.ptr, head.stream, pool.is_small, pool.id, head.expandable is not None
