"""Rectangles on a grid of pixels: of each pixel the share that they cover.

Rule: the share is exact, however small a rectangle is, so nothing is skipped; rectangles that do
not overlap give shares from 0 to 1.

A rectangle's share is the product of its two sides', and a side's is the running sum of four
weights, two at each end; so each rectangle is sixteen additions, and two running sums over the
grid finish all of them at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["coverage"]

_Floats = NDArray[np.floating[Any]]


def coverage(
    left: _Floats, right: _Floats, low: _Floats, high: _Floats, shape: tuple[int, int]
) -> NDArray[np.float32]:
    """The covered share of each pixel.

    left, right, low, high: sides in pixels, cut off where they leave the grid.  shape: (rows,
    columns); row i spans i to i + 1.
    """
    rows, columns = shape
    grid = np.zeros((rows + 2) * (columns + 2))
    across, along = _ends(low, high, rows), _ends(left, right, columns)
    for row, row_weight in across:
        for column, column_weight in along:
            at = row * (columns + 2) + column
            grid += np.bincount(at, row_weight * column_weight, len(grid))
    shares = grid.reshape(rows + 2, columns + 2).cumsum(axis=0).cumsum(axis=1)
    share: NDArray[np.float32] = np.clip(shares[:rows, :columns], 0, 1).astype(np.float32)
    return share


def _ends(first: _Floats, last: _Floats, length: int) -> list[tuple[NDArray[np.int64], _Floats]]:
    """(pixel, weight) twice for each end of the sides, whose running sum is what they cover."""
    found = []
    for side, sign in ((first, 1.0), (last, -1.0)):
        end = np.clip(side, 0, length)
        pixel = end.astype(np.int64)
        rest = end - pixel
        found += [(pixel, sign * (1 - rest)), (pixel + 1, sign * rest)]
    return found
