"""How close a replay came to running out of memory, and what its idle memory was worth.

Rules: only a request that needs memory from the driver can fail, so the device is looked at when
one has been answered that way.  Its headroom then is what the driver had left, plus what PyTorch
could have given back: whole free segments and whole free handles of expandable segments.

Unusable is what is reserved, in no block in use, and in no piece that would serve the largest
request of the recording: the external fragmentation seen by that request (the "unusable free
space index" of Gorman and Whitcroft, Ottawa Linux Symposium 2006, in bytes and for one size).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allocsim.core import SMALL_SIZE, Block, CachingAllocator, free_blocks, returnable_bytes
from allocsim.engine import Observer, Timeline
from allocsim.trace import Action, Trace

__all__ = ["HeadroomPoint", "HeadroomWatch", "Span", "largest_entry", "spans_of"]


@dataclass(frozen=True, slots=True)
class HeadroomPoint:
    """The device after the request of `entry` was answered with memory from the driver.

    free_bytes: of the device and within the limit of a memory fraction.
    returnable_bytes: what PyTorch could have given back.
    idle_bytes: reserved and in no block in use.
    unusable_bytes: the part of the idle that could not serve the largest request.
    """

    entry: int
    reserved_bytes: int
    free_bytes: int
    returnable_bytes: int
    idle_bytes: int
    unusable_bytes: int

    @property
    def headroom_bytes(self) -> int:
        """What a request could still have had of the driver."""
        return self.free_bytes + self.returnable_bytes


class HeadroomWatch(Observer):
    """Notes the headroom whenever memory came from the driver; an observer for `replay`.

    largest: the rounded size and the stream of the recording's largest request.
    points: in the order of the entries.
    """

    def __init__(self, largest: tuple[int, int]) -> None:
        self.points: list[HeadroomPoint] = []
        self._size, self._stream = largest

    @property
    def tightest(self) -> HeadroomPoint | None:
        """The first point of the least headroom; None if nothing came from the driver."""
        return min(self.points, key=lambda point: point.headroom_bytes, default=None)

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        reserved = allocator.reserved_bytes
        free, limit = allocator.device.free, allocator.memory_limit
        if limit is not None:
            free = min(free, max(limit - reserved, 0))
        returnable = idle = usable = 0
        for block in free_blocks(allocator):
            idle += block.size
            returnable += returnable_bytes(allocator, block)
            if self._serves(block):
                usable += block.size
        self.points.append(HeadroomPoint(entry, reserved, free, returnable, idle, idle - usable))

    def _serves(self, block: Block) -> bool:
        """Whether a free block would serve the largest request."""
        pool = block.pool
        is_its_pool = pool.owner is None and pool.is_small == (self._size <= SMALL_SIZE)
        return is_its_pool and block.stream == self._stream and block.size >= self._size


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of entries.  allocated_bytes, reserved_bytes: their highest in it."""

    first: int
    last: int
    allocated_bytes: int
    reserved_bytes: int


def spans_of(timeline: Timeline, count: int) -> tuple[Span, ...]:
    """`count` stretches of about as many steps each; fewer if there are fewer steps."""
    rows = len(timeline.entry)
    edges = np.unique(np.linspace(0, rows, count + 1).astype(np.int64))
    return tuple(
        Span(
            first=int(timeline.entry[start]),
            last=int(timeline.entry[stop - 1]),
            allocated_bytes=int(timeline.allocated[start:stop].max()),
            reserved_bytes=int(timeline.reserved[start:stop].max()),
        )
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    )


def largest_entry(trace: Trace) -> int | None:
    """The first entry with the largest request, a failed one included; None without any."""
    asks = np.flatnonzero(np.isin(trace.action, (Action.ALLOC, Action.OOM)))
    return int(asks[np.argmax(trace.size[asks])]) if len(asks) else None
