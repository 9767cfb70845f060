"""State of a device after one entry, derived from the lifetimes of segments and blocks.

The gap between two active blocks of a segment is one inactive block, regardless of how it arose.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from allocsim.analysis.picture.lives import Lives
from allocsim.core import SMALL_BUFFER
from allocsim.state import ALLOCATED, DEFAULT_POOL, INACTIVE, PENDING, BlockState, SegmentState

__all__ = ["Instant", "instant_of"]


@dataclass(frozen=True, slots=True)
class Instant:
    """Segments of a device after one entry, by address.

    entry: entry number; None if only this state is recorded.
    """

    entry: int | None
    segments: tuple[SegmentState, ...]

    @property
    def reserved(self) -> int:
        """Reserved bytes."""
        return sum(segment.total_size for segment in self.segments)

    def held(self, state: str) -> int:
        """Return the bytes of all blocks in `state`, a block state of a snapshot."""
        return sum(segment.held(state) for segment in self.segments)


def instant_of(lives: Lives, entry: int, *, is_expandable: bool) -> Instant:
    """Return the segments and blocks after `entry`.

    is_expandable: join adjacent ranges, which belong to one expandable segment.
    """
    segments, blocks = lives.segments, lives.blocks
    there = np.flatnonzero((segments.born <= entry) & (entry < segments.died))
    there = there[np.argsort(segments.address[there])]
    ranges: list[tuple[int, int, int, int]] = []
    places = (segments.address, segments.size, segments.stream, segments.pool)
    for address, size, *kind in zip(*(c[there].tolist() for c in places), strict=True):
        stream, pool = kind
        joins = ranges and is_expandable and ranges[-1][2:] == (stream, pool)
        if joins and sum(ranges[-1][:2]) == address:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + size, stream, pool)
        else:
            ranges.append((address, size, stream, pool))
    used = np.flatnonzero((blocks.born <= entry) & (entry < blocks.completed))
    used = used[np.argsort(blocks.address[used])]
    columns = (blocks.address, blocks.size, blocks.requested, blocks.freed)
    in_use = [
        BlockState(address, size, requested, ALLOCATED if entry < freed else PENDING)
        for address, size, requested, freed in zip(
            *(c[used].tolist() for c in columns), strict=True
        )
    ]
    firsts = np.array([start for start, *_ in ranges], dtype=np.uint64)
    starts = np.searchsorted(blocks.address[used], firsts)
    cuts = [*starts.tolist(), len(in_use)]
    return Instant(
        entry,
        tuple(
            SegmentState(
                address=start,
                total_size=size,
                stream=stream,
                is_small=not is_expandable and size == SMALL_BUFFER,
                pool_id=lives.pools[pool] if pool >= 0 else DEFAULT_POOL,
                is_expandable=is_expandable,
                blocks=tuple(_tiled(start, size, in_use[first:last])),
            )
            for (start, size, stream, pool), (first, last) in zip(
                ranges, pairwise(cuts), strict=True
            )
        ),
    )


def _tiled(start: int, size: int, used: list[BlockState]) -> list[BlockState]:
    """Return the blocks of a segment: the used blocks, and one free block in each gap."""
    at, found = start, []
    for block in used:
        if block.address > at:
            found.append(BlockState(at, block.address - at, 0, INACTIVE))
        found.append(block)
        at = block.end
    if at < start + size:
        found.append(BlockState(at, start + size - at, 0, INACTIVE))
    return found
