"""Long curves reduced to the minimum and maximum of each stretch of values.

No value is skipped, so the extremes bound all values of a stretch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Extremes", "extremes_of", "levels_of", "turning_rows"]

_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Extremes:
    """Minima and maxima of values i * step to (i + 1) * step; the last stretch may be shorter."""

    step: int
    low: _Column
    high: _Column


def extremes_of(values: _Column, step: int) -> Extremes:
    """Return the extremes of each stretch of `step` values."""
    if not len(values):
        return Extremes(step, values, values)
    starts = np.arange(0, len(values), step)
    return Extremes(step, np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts))


def levels_of(values: _Column, first: int, factor: int, enough: int) -> tuple[Extremes, ...]:
    """Return extremes at increasing stretch lengths, until a level has at most `enough` stretches.

    The lengths are `first`, `first * factor`, and so on.
    """
    levels: list[Extremes] = []
    step = first
    while len(values) > enough and (not levels or len(levels[-1].low) > enough):
        levels.append(extremes_of(values, step))
        step *= factor
    return tuple(levels)


def turning_rows(values: _Column, most: int) -> NDArray[np.intp]:
    """Return the rows where `values` changes, including the first row.

    If there are more than `most`, return the first, lowest and highest row of each stretch.
    """
    changed = np.flatnonzero(np.diff(values, prepend=values[:1] - 1))
    if len(changed) <= most:
        return changed
    step = -(-3 * len(changed) // most)
    starts = np.arange(0, len(changed), step)
    stretch = np.repeat(np.arange(len(starts)), np.diff([*starts, len(changed)]))
    by_height = np.lexsort((values[changed], stretch))
    ends = [*starts[1:] - 1, len(changed) - 1]
    rows: NDArray[np.intp] = changed[np.unique([*starts, *by_height[starts], *by_height[ends]])]
    return rows
