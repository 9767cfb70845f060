"""Histogram of block sizes: over the run, and allocated and free at one moment.

Bin i contains sizes from `edges[i]` up to, but not including, `edges[i + 1]`.  Edges are powers of
two from 512 bytes, the smallest block size (semantics 1.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.analysis.picture.instant import Instant
from allocsim.analysis.picture.lives import Lives
from allocsim.core import MIN_BLOCK_SIZE
from allocsim.state import INACTIVE
from allocsim.units import KIB, MIB

__all__ = ["CLASS_NAMES", "class_of", "BlockSizes", "block_sizes"]

_LIMITS = (16 * KIB, MIB, 10 * MIB, 50 * MIB, 200 * MIB)


def _text(size: int) -> str:
    """Return a size such as "16 KiB" or "1 MiB"."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


CLASS_NAMES = (*(f"up to {_text(limit)}" for limit in _LIMITS), f"above {_text(_LIMITS[-1])}")


def class_of(size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class of each size, as an index into `CLASS_NAMES`."""
    return np.searchsorted(np.array(_LIMITS), size, side="left")


_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class BlockSizes:
    """Histograms of block sizes, over a run and at one moment.

    edges: bin i contains sizes from `edges[i]` up to, but not including, `edges[i + 1]`.  Edges are
        powers of two from 512 bytes, the smallest block size (semantics 1.2).
    handed_out: number of blocks allocated over the run; of live blocks if the run is not recorded.
    used_bytes, free_bytes: bytes of live and of free blocks at the moment.
    """

    edges: _Column
    handed_out: _Column
    used_bytes: _Column
    free_bytes: _Column


def block_sizes(lives: Lives | None, instant: Instant) -> BlockSizes:
    """Return the histograms; `lives` is None if only one moment is recorded."""
    there = [block for segment in instant.segments for block in segment.blocks]
    used = np.array([block.size for block in there if block.state != INACTIVE], dtype=np.int64)
    free = np.array([block.size for block in there if block.state == INACTIVE], dtype=np.int64)
    handed_out = used if lives is None else lives.blocks.size
    most = max([MIN_BLOCK_SIZE, *(int(s.max(initial=0)) for s in (handed_out, used, free))])
    n_bins = (most // MIN_BLOCK_SIZE).bit_length()
    edges = MIN_BLOCK_SIZE << np.arange(n_bins + 1, dtype=np.int64)
    return BlockSizes(
        edges=edges,
        handed_out=np.histogram(handed_out, edges)[0].astype(np.int64),
        used_bytes=np.histogram(used, edges, weights=used)[0].astype(np.int64),
        free_bytes=np.histogram(free, edges, weights=free)[0].astype(np.int64),
    )
