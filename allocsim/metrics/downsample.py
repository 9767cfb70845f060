"""Reduce a long curve to a few numbers: extremes of groups of values, or 120 peaks of memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.simulation import Timeline

_PARTS = 120  # number of parts of an `Outline`

_Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Extremes:
    """Minimum and maximum of each group of `step` consecutive values; the last may be shorter.

    low, high: minimum and maximum of each group.
    """

    step: int
    low: _Column
    high: _Column


def extremes_of(values: _Column, step: int) -> Extremes:
    """Return the minimum and maximum of each group of `step` consecutive values."""
    if not len(values):
        return Extremes(step, values, values)
    starts = np.arange(0, len(values), step)
    return Extremes(step, np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts))


def levels_of(values: _Column, first: int, factor: int, enough: int) -> tuple[Extremes, ...]:
    """Return the extremes for groups of `first` values, `first * factor` values, and so on.

    The last level has at most `enough` groups.
    """
    levels: list[Extremes] = []
    step = first
    while len(values) > enough and (not levels or len(levels[-1].low) > enough):
        levels.append(extremes_of(values, step))
        step *= factor
    return tuple(levels)


def turning_rows(values: _Column, most: int) -> NDArray[np.intp]:
    """Return the indices at which `values` changes, including index 0.

    If there are more than `most`, they are divided into groups, and the indices of the first,
    lowest and highest value of each group are returned.
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


@dataclass(frozen=True, slots=True)
class Outline:
    """Peaks in equally long parts of a recording.

    entries: number of entries of the recording; a part may be shorter than one entry.
    reserved, allocated: peak bytes of each part.  The maximum of all parts is exactly the peak.
    """

    entries: int
    reserved: tuple[int, ...]
    allocated: tuple[int, ...]


def outline_of(timeline: Timeline, entries: int) -> Outline | None:
    """Return the peaks in 120 parts of `entries` entries; None if the timeline is empty."""
    if not len(timeline.entry) or not entries:
        return None
    edges = np.linspace(0, entries, _PARTS + 1)
    starts = np.searchsorted(timeline.entry, edges)
    return Outline(entries, _most(timeline.reserved, starts), _most(timeline.allocated, starts))


def _most(values: NDArray[np.int64], starts: NDArray[np.intp]) -> tuple[int, ...]:
    before = np.concatenate([values[:1], values])
    return tuple(
        int(before[first : max(end, first) + 1].max())
        for first, end in zip(starts.tolist(), starts.tolist()[1:], strict=False)
    )
