"""How little memory any allocator could do with, so that a best setting can be judged.

Rule: both figures come from the recorded requests alone: the peak of live bytes, below which
nothing goes, and a packing that knows the whole run (`allocsim.measures.packing`), which no
allocator that answers requests as they come can promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from allocsim.core import AllocatorConfig
from allocsim.engine import Prepared
from allocsim.measures import Lifetimes, lifetimes_of, pack
from allocsim.trace import Action, Trace

__all__ = ["Bounds", "LivePeak", "bounds_of", "needed_of"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """peak_live_bytes: in use at once, requests rounded up to 512; packed_bytes: a placement."""

    peak_live_bytes: int
    packed_bytes: int

    def above_ideal(self, reserved: int) -> int:
        """How many bytes more than the peak of live bytes a peak of reserved ones is."""
        return max(reserved - self.peak_live_bytes, 0)


def bounds_of(parts: Sequence[Prepared]) -> Bounds:
    """The bounds of several recordings: of each the highest."""
    traces = [part.trace for part in parts]
    return Bounds(
        peak_live_bytes=max(needed_of(trace).peak_bytes for trace in traces),
        packed_bytes=max(pack(lifetimes_of(trace)).height for trace in traces),
    )


def needed_of(trace: Trace) -> Lifetimes:
    """The blocks of a trace for as long as no allocator can do without them."""
    return lifetimes_of(trace, until=Action.FREE_REQUESTED)


class LivePeak:
    """The most bytes in use at once under any rounding, of one recording; no peak undercuts it.

    Blocks from before the recording keep their sizes.
    """

    def __init__(self, lifetimes: Lifetimes) -> None:
        size = np.where(lifetimes.start >= 0, lifetimes.size, -lifetimes.size)
        self._sizes, which = np.unique(size, return_inverse=True)
        moment = np.concatenate((lifetimes.start, lifetimes.end))
        begins = np.repeat([True, False], len(lifetimes))
        # As in `Lifetimes.peak_bytes`; ordered once, because a sweep asks for every setting.
        order = np.lexsort((begins, moment))
        self._which = np.tile(which, 2)[order]
        self._sign = np.where(begins, 1, -1)[order]
        self._plain = lifetimes.peak_bytes
        self._known: dict[tuple[int, ...], int] = {}

    def under(self, config: AllocatorConfig | None) -> int:
        """The peak under the rounding of `config`; None: requests rounded up to 512."""
        if config is None or not config.rounds_to_power2:
            return self._plain
        if config.release.one_division_keeps_size and 1 in config.roundup_power2_divisions:
            return 0  # sizes that stay unrounded are below those of the lifetimes
        divisions = config.roundup_power2_divisions
        if divisions not in self._known:
            sizes = self._sizes.tolist()
            rounded = [config.round_size(size) if size > 0 else -size for size in sizes]
            moved = np.array(rounded, dtype=np.int64)[self._which] * self._sign
            self._known[divisions] = int(np.cumsum(moved).max(initial=0))
        return self._known[divisions]
