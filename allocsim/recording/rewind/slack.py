"""Determine the size of a block when only its requested size is known.

The slack of a block is the memory after the requested bytes that the allocator did not split off,
up to 1 MiB in a large block (semantics 1.7).  For a block that existed before the recording, the
gap up to the next live block may be slack or free space.  If an allocation begins inside the gap
while the block is live, the first such allocation marks the end of the block: between two live
blocks of a segment there is at most one free block, and an allocation takes its front.  Otherwise
the gap is slack if it is small enough, else free space.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.recording.by_address import Turn
from allocsim.recording.trace import Trace
from allocsim.state import SegmentState
from allocsim.units import MIB

_MAX_LARGE_SLACK = MIB
_MAX_SLACK = 511
_LAST_ADDRESS = (1 << 64) - 1


@dataclass(slots=True)
class Live:
    """A live block, while entries are undone.

    requested_size: bytes.
    size: bytes of the block; None if only the requested size is known.
    state: "active_allocated" or "active_pending_free".
    frames: stack number; -1 without a stack.
    death: entry that completes its free; -1 if it is not freed.
    """

    requested_size: int
    size: int | None
    state: str
    frames: int
    death: int = -1


class LaterAllocs:
    """Alloc entries from number `entry` on, sorted by address.

    They are sorted at the first use, because most recordings do not need them.
    """

    def __init__(self, trace: Trace, entry: int) -> None:
        self._trace, self._entry = trace, entry

    @cached_property
    def _indices(self) -> NDArray[np.intp]:
        turns = self._trace.by_address
        is_alloc = any_of(turns.kind, (Turn.ALLOC,)) & (turns.entry >= self._entry)
        allocs: NDArray[np.intp] = turns.entry[is_alloc]
        return allocs

    @cached_property
    def _addresses(self) -> NDArray[np.uint64]:
        return self._trace.addr[self._indices]

    def first(self, low: int, high: int, before: int) -> int | None:
        """Return the address of the first alloc in [low, high] before entry `before`.

        `high` is included: an alloc can begin at the address of the next block only if that block
        was freed and did not merge with free space below it.
        """
        if low > _LAST_ADDRESS:
            return None
        start = np.searchsorted(self._addresses, np.uint64(low), "left")
        end = np.searchsorted(self._addresses, np.uint64(min(high, _LAST_ADDRESS)), "right")
        if start >= end:
            return None
        first = start + np.argmin(self._indices[start:end])
        return int(self._addresses[first]) if self._indices[first] < before else None


def true_size(
    segment: SegmentState,
    address: int,
    gap_end: int,
    *,
    least: int,
    landed: int | None,
    never_split: bool = False,
) -> int:
    """Return the size in bytes of the block at `address`.

    least: requested size after rounding, in bytes.
    gap_end: address of the next live block, or the segment's end.
    landed: address of the first alloc in the gap while the block was live; None without such an
        alloc.
    never_split: True if the request reached max_split_size, so that the block was not split.
    """
    room = gap_end - address
    if least >= room or never_split:
        return room
    if landed is not None:
        return landed - address
    unsplit = segment.is_small or segment.is_expandable
    slack = room - least
    return room if slack <= (_MAX_SLACK if unsplit else _MAX_LARGE_SLACK) else least
