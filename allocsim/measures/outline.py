"""A run's memory in few numbers: the most that was reserved and allocated in each stretch.

Rule: no value is skipped; the most of all stretches is the peak, to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.engine import Timeline

__all__ = ["Outline", "outline_of"]

_STRETCHES = 120


@dataclass(frozen=True, slots=True)
class Outline:
    """entries: of the run, cut into stretches of the same length, or with less than one entry.

    reserved, allocated: bytes, the most of each stretch.
    """

    entries: int
    reserved: tuple[int, ...]
    allocated: tuple[int, ...]


def outline_of(timeline: Timeline, entries: int) -> Outline | None:
    """The outline of a run of so many entries; None where nothing happened."""
    if not len(timeline.entry) or not entries:
        return None
    edges = np.linspace(0, entries, _STRETCHES + 1)
    starts = np.searchsorted(timeline.entry, edges)
    return Outline(entries, _most(timeline.reserved, starts), _most(timeline.allocated, starts))


def _most(values: NDArray[np.int64], starts: NDArray[np.intp]) -> tuple[int, ...]:
    """The most between starts, and of what the stretch began with."""
    before = np.concatenate([values[:1], values])
    return tuple(
        int(before[first : max(end, first) + 1].max())
        for first, end in zip(starts.tolist(), starts.tolist()[1:], strict=False)
    )
