"""Outline of a run's memory: peak reserved and allocated bytes in each stretch of entries.

The maximum over all stretches is exactly the peak.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.simulation import Timeline

__all__ = ["Outline", "outline_of"]

_STRETCHES = 120


@dataclass(frozen=True, slots=True)
class Outline:
    """Peaks of equally long stretches of a run.

    entries: number of entries of the run; a stretch may be shorter than one entry.
    reserved, allocated: peak bytes of each stretch.
    """

    entries: int
    reserved: tuple[int, ...]
    allocated: tuple[int, ...]


def outline_of(timeline: Timeline, entries: int) -> Outline | None:
    """Return the outline of a run of `entries` entries; None for an empty timeline."""
    if not len(timeline.entry) or not entries:
        return None
    edges = np.linspace(0, entries, _STRETCHES + 1)
    starts = np.searchsorted(timeline.entry, edges)
    return Outline(entries, _most(timeline.reserved, starts), _most(timeline.allocated, starts))


def _most(values: NDArray[np.int64], starts: NDArray[np.intp]) -> tuple[int, ...]:
    """Return the maximum of each stretch, including its initial value."""
    before = np.concatenate([values[:1], values])
    return tuple(
        int(before[first : max(end, first) + 1].max())
        for first, end in zip(starts.tolist(), starts.tolist()[1:], strict=False)
    )
