"""Memory of a replay in 120 numbers: the peaks in equally long parts of the recording."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.simulation import Timeline

__all__ = ["Outline", "outline_of"]

_STRETCHES = 120


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
    edges = np.linspace(0, entries, _STRETCHES + 1)
    starts = np.searchsorted(timeline.entry, edges)
    return Outline(entries, _most(timeline.reserved, starts), _most(timeline.allocated, starts))


def _most(values: NDArray[np.int64], starts: NDArray[np.intp]) -> tuple[int, ...]:
    """Return the maximum of each part, including the value before its first change."""
    before = np.concatenate([values[:1], values])
    return tuple(
        int(before[first : max(end, first) + 1].max())
        for first, end in zip(starts.tolist(), starts.tolist()[1:], strict=False)
    )
