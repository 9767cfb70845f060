"""How long a block really was, when only its request is known.

A large block may keep up to 1 MiB that was not worth splitting off (semantics 1.7).  Rule: an
unsplit gap after a block that was live before the recording is that block's slack unless a
later allocation lands inside it while the block lives.  The first that does shows the block's true
end: between two live blocks of a segment there is at most one free block, and allocations take a
free block from its front.  A gap too long to be slack is taken for free space.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import any_of
from allocsim.state import SegmentState
from allocsim.trace.by_address import Turn
from allocsim.trace.trace import Trace
from allocsim.units import MIB

__all__ = ["LaterAllocs", "Live", "true_size"]

_MAX_LARGE_SLACK = MIB
_MAX_SLACK = 511
_LAST_ADDRESS = (1 << 64) - 1


@dataclass(slots=True)
class Live:
    """A block in use; size: None if only the request is known; death: the entry that frees it."""

    requested_size: int
    size: int | None
    state: str
    frames: int
    death: int = -1


class LaterAllocs:
    """The alloc entries of a trace from one entry on, found by address.

    They are sorted once one is asked for: a recording of a whole run has no slack to find.
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
        """The address of the first alloc in [low, high], bounds included, before an entry.

        The upper bound counts: where the next block began, an alloc can only land if that block
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
    """The size of the block at `address` whose rounded request is `least`, in bytes.

    gap_end: the next block in use, or the segment's end.  landed: where the first alloc fell
    between the rounded end and there while the block lived.  never_split: the request reached
    max_split_size, so that the block got all there was.
    """
    room = gap_end - address
    if least >= room or never_split:
        return room
    if landed is not None:
        return landed - address
    unsplit = segment.is_small or segment.is_expandable
    slack = room - least
    return room if slack <= (_MAX_SLACK if unsplit else _MAX_LARGE_SLACK) else least
