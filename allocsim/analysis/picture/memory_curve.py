"""Memory after every entry: reserved, allocated, requested and ideal.

Row e is the state after entry e.  "Ideal" is the running maximum of live requests, each rounded up
to 512 bytes: an allocator that releases nothing cannot reserve less (`Lifetimes.peak_bytes`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.analysis.picture.lives import Lives
from allocsim.core import MIN_BLOCK_SIZE

__all__ = ["MemoryCurve", "memory_curve"]

_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryCurve:
    """Bytes after each entry; index e is the state after entry e.

    active: allocated bytes, and freed bytes that wait for other streams.
    requested: allocated bytes before rounding.
    ideal: highest sum of live requests so far, each rounded up to 512 bytes.  An allocator that
        returns no memory to the driver cannot reserve less.
    driver_takes, driver_gives: entries at which memory was obtained from the driver and returned.
    """

    reserved: _Column
    active: _Column
    allocated: _Column
    requested: _Column
    ideal: _Column
    driver_takes: _Column
    driver_gives: _Column

    def __len__(self) -> int:
        return len(self.reserved)


def memory_curve(lives: Lives) -> MemoryCurve:
    blocks, segments, n = lives.blocks, lives.segments, lives.n_entries
    needed = -(-blocks.requested // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE
    in_use = _level(blocks.born, blocks.completed, needed, n)
    start = int(needed[blocks.born < 0].sum())
    return MemoryCurve(
        reserved=_level(segments.born, segments.died, segments.size, n),
        active=_level(blocks.born, blocks.completed, blocks.size, n),
        allocated=_level(blocks.born, blocks.freed, blocks.size, n),
        requested=_level(blocks.born, blocks.freed, blocks.requested, n),
        ideal=np.maximum(np.maximum.accumulate(in_use), start) if n else in_use,
        driver_takes=np.sort(segments.born[segments.born >= 0]),
        driver_gives=np.sort(segments.died[segments.died < n]),
    )


def _level(born: _Column, end: _Column, size: _Column, n: int) -> _Column:
    """Return the sum of `size` of everything that is live after each of `n` entries."""
    moved = np.zeros(n + 1, dtype=np.int64)
    np.add.at(moved, np.maximum(born, 0), size)
    np.subtract.at(moved, np.clip(end, 0, n), size)
    return np.cumsum(moved)[:n]
