"""How many blocks of which size: over the run, and in use and free at one moment.

Rule: bin i holds sizes from `edges[i]` up to, not including, `edges[i + 1]`; edges are powers of
two from 512 bytes, the smallest block there is (semantics 1.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.analysis.instant import FREE, Instant
from allocsim.analysis.lives import Lives
from allocsim.core.constants import MIN_BLOCK_SIZE

__all__ = ["BlockSizes", "block_sizes"]

_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class BlockSizes:
    """handed_out: blocks over the run.  used_bytes, free_bytes: of the blocks at `entry`."""

    edges: _Column
    handed_out: _Column
    used_bytes: _Column
    free_bytes: _Column
    entry: int


def block_sizes(lives: Lives, instant: Instant) -> BlockSizes:
    """The sizes of a replay, and of one moment in it."""
    pieces = [piece for place in instant.places for piece in place.pieces]
    used = np.array([piece.size for piece in pieces if piece.state != FREE], dtype=np.int64)
    free = np.array([piece.size for piece in pieces if piece.state == FREE], dtype=np.int64)
    most = max([MIN_BLOCK_SIZE, *(int(s.max(initial=0)) for s in (lives.blocks.size, used, free))])
    n_bins = (most // MIN_BLOCK_SIZE).bit_length()
    edges = MIN_BLOCK_SIZE << np.arange(n_bins + 1, dtype=np.int64)
    return BlockSizes(
        edges=edges,
        handed_out=np.histogram(lives.blocks.size, edges)[0].astype(np.int64),
        used_bytes=np.histogram(used, edges, weights=used)[0].astype(np.int64),
        free_bytes=np.histogram(free, edges, weights=free)[0].astype(np.int64),
        entry=instant.entry,
    )
