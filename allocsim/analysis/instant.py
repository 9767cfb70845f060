"""What a device held after one entry: segments, and the blocks in each.

Rule: a segment's pieces follow one another from its address to its end without gap or overlap;
what is neither allocated nor waiting is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from allocsim.analysis.lives import Lives

__all__ = ["Instant", "Piece", "Place", "instant_of"]

ALLOCATED, WAITING, FREE = "allocated", "waiting", "free"


@dataclass(frozen=True, slots=True)
class Piece:
    """A block in use, or free space up to the next one.  row: of the block in its lives."""

    address: int
    size: int
    state: str
    requested: int = 0
    row: int = -1


@dataclass(frozen=True, slots=True)
class Place:
    """A segment, or a mapped range without a gap of an expandable one; sizes in bytes."""

    address: int
    size: int
    stream: int
    pieces: tuple[Piece, ...]

    def held(self, state: str) -> int:
        """Bytes of the pieces in `state`."""
        return sum(piece.size for piece in self.pieces if piece.state == state)

    @property
    def largest_free(self) -> int:
        """The largest free piece, 0 for none."""
        return max((piece.size for piece in self.pieces if piece.state == FREE), default=0)


@dataclass(frozen=True, slots=True)
class Instant:
    """All of a device after `entry`, by address."""

    entry: int
    places: tuple[Place, ...]

    @property
    def reserved(self) -> int:
        """Bytes held from the driver."""
        return sum(place.size for place in self.places)

    def held(self, state: str) -> int:
        """Bytes of the pieces in `state`."""
        return sum(place.held(state) for place in self.places)


def instant_of(lives: Lives, entry: int, *, is_expandable: bool) -> Instant:
    """The state after `entry`.

    is_expandable: ranges that touch were mapped side by side, so they are one.
    """
    segments, blocks = lives.segments, lives.blocks
    there = np.flatnonzero((segments.born <= entry) & (entry < segments.died))
    there = there[np.argsort(segments.address[there])]
    ranges: list[tuple[int, int, int]] = []
    for row in there.tolist():
        address, size = int(segments.address[row]), int(segments.size[row])
        stream = int(segments.stream[row])
        joins = ranges and is_expandable and ranges[-1][2] == stream
        if joins and sum(ranges[-1][:2]) == address:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + size, stream)
        else:
            ranges.append((address, size, stream))
    used = np.flatnonzero((blocks.born <= entry) & (entry < blocks.completed))
    used = used[np.argsort(blocks.address[used])]
    pieces = [_piece(lives, row, entry) for row in used.tolist()]
    starts = np.searchsorted(blocks.address[used], [start for start, _, _ in ranges])
    cuts = [*starts.tolist(), len(pieces)]
    return Instant(
        entry,
        tuple(
            Place(start, size, stream, tuple(_tiled(start, size, pieces[first:last])))
            for (start, size, stream), (first, last) in zip(ranges, pairwise(cuts), strict=True)
        ),
    )


def _piece(lives: Lives, row: int, entry: int) -> Piece:
    blocks = lives.blocks
    state = ALLOCATED if entry < blocks.freed[row] else WAITING
    where = int(blocks.address[row]), int(blocks.size[row])
    return Piece(*where, state, int(blocks.requested[row]), row)


def _tiled(start: int, size: int, used: list[Piece]) -> list[Piece]:
    """The blocks of a segment with the free space between them."""
    at, found = start, []
    for piece in used:
        if piece.address > at:
            found.append(Piece(at, piece.address - at, FREE))
        found.append(piece)
        at = piece.address + piece.size
    if at < start + size:
        found.append(Piece(at, start + size - at, FREE))
    return found
