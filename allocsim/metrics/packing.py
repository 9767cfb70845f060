"""Memory that is enough if all requests and frees are known before blocks are placed.

To find the minimum is NP-hard (dynamic storage allocation; Garey and Johnson 1979, problem SR2), so
it is bounded: from below by the peak of live bytes, from above by the height of a packing.  A
packing gives each block an offset, so that blocks that are live at the same time do not overlap.

The packing is *greedy by size* (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020, arXiv:2001.03288): blocks in descending size, longer-lived ones first among
equals, each at the lowest offset where it overlaps no block that is live at the same time.  The
time is quadratic in the number of blocks, so only the `MOST_PLACED` largest blocks are placed this
way.  Best fit places all smaller blocks above them, in the order of the requests.  A second packing
places all blocks by best fit, and the lower of the two packings is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.metrics.best_fit import best_fit
from allocsim.metrics.lifetimes import Lifetimes

MOST_PLACED = 12_000
"""Largest number of blocks placed greedily; this takes a few seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Offsets of all blocks.

    offset: bytes, for each row of the lifetimes.
    height: end of the highest block, in bytes.
    n_online: number of blocks placed by best fit, without knowledge of later requests.
    """

    offset: NDArray[np.int64]
    height: int
    n_online: int


def pack(
    lifetimes: Lifetimes, most_placed: int = MOST_PLACED, periods: NDArray[np.int64] | None = None
) -> Packing:
    """Return the lower of two packings of all blocks.

    most_placed: largest number of blocks placed greedily.
    periods: first entry of each period that may repeat; see `best_fit`.
    """
    if not len(lifetimes):
        return Packing(np.zeros(0, dtype=np.int64), 0, 0)
    online = best_fit(lifetimes, periods=periods)
    assert online is not None
    height = int((online + lifetimes.size).max())
    foreseen = _foreseen(lifetimes, most_placed, height, periods)
    return Packing(online, height, len(lifetimes)) if foreseen is None else foreseen


def _foreseen(
    lifetimes: Lifetimes, most_placed: int, most: int, periods: NDArray[np.int64] | None
) -> Packing | None:
    """Return the packing of the largest blocks placed greedily and the other blocks above them.

    Return None if its height exceeds `most` bytes.
    """
    length = lifetimes.end - lifetimes.start
    order = np.lexsort((lifetimes.start, -length, -lifetimes.size))
    foreseen, others = order[:most_placed], order[most_placed:]
    offset = np.zeros(len(lifetimes), dtype=np.int64)
    offset[foreseen] = _by_size(lifetimes.take(foreseen))
    height = int((offset[foreseen] + lifetimes.size[foreseen]).max(initial=0))
    above = best_fit(lifetimes.take(others), most - height, periods)
    if above is None:
        return None
    offset[others] = above + height
    height = int((offset + lifetimes.size).max())
    return Packing(offset, height, len(others)) if height <= most else None


def _by_size(rows: Lifetimes) -> NDArray[np.int64]:
    """Return the offsets of blocks that are placed greedily, in the order of `rows`."""
    # 32-bit integers, since most of the time is spent on finding overlapping lifetimes.
    start, end = rows.start.astype(np.int32), rows.end.astype(np.int32)
    low = np.zeros(len(rows), dtype=np.int64)
    high = np.zeros(len(rows), dtype=np.int64)
    columns = (rows.start.tolist(), rows.end.tolist(), rows.size.tolist())
    for i, (begins, ends, size) in enumerate(zip(*columns, strict=True)):
        (meets,) = ((start[:i] < ends) & (end[:i] > begins)).nonzero()
        meets = meets[low[meets].argsort()]
        low[i] = _lowest_gap(low[meets], high[meets], size)
        high[i] = low[i] + size
    return low


def _lowest_gap(low: NDArray[np.int64], high: NDArray[np.int64], size: int) -> int:
    """Return the lowest offset at which `size` bytes overlap no [low, high); low is ascending."""
    if not len(low) or low[0] >= size:
        return 0
    filled = np.maximum.accumulate(high)
    fits = low[1:] - filled[:-1] >= size
    first = fits.argmax() if len(fits) else 0
    return int(filled[first] if len(fits) and fits[first] else filled[-1])
