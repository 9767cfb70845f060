"""How little memory any allocator could do with, so that a best setting can be judged.

Rule: both figures come from the recorded requests alone.  From below the peak of live bytes,
which nothing undercuts; from above a packing with the whole run known, which no allocator that
answers requests as they come can promise.  See `allocsim.analysis.packing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from allocsim.analysis.lifetimes import Lifetimes, lifetimes_of
from allocsim.analysis.packing import pack
from allocsim.core import AllocatorConfig
from allocsim.engine.rerun import Rerun

__all__ = ["Bounds", "bounds_of", "live_peak"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """peak_live_bytes: in use at once, requests rounded up to 512; packed_bytes: a placement."""

    peak_live_bytes: int
    packed_bytes: int

    def above_ideal(self, reserved: int) -> int:
        """How many bytes more than the peak of live bytes a peak of reserved ones is."""
        return max(reserved - self.peak_live_bytes, 0)


def bounds_of(parts: Sequence[Rerun]) -> Bounds:
    """The bounds of several recordings: of each the highest."""
    found = [lifetimes_of(part.trace) for part in parts]
    return Bounds(
        peak_live_bytes=max(each.peak_bytes for each in found),
        packed_bytes=max(pack(each).height for each in found),
    )


def live_peak(lifetimes: Lifetimes, config: AllocatorConfig | None) -> int:
    """The most bytes in use at once under the rounding of `config`, which no peak undercuts.

    None: requests rounded up to 512.  Blocks from before the recording keep their sizes.
    """
    if config is None or not config.rounds_to_power2:
        return lifetimes.peak_bytes
    if config.release.one_division_keeps_size and 1 in config.roundup_power2_divisions:
        return 0  # sizes that stay unrounded are below those of the lifetimes
    size, which = np.unique(lifetimes.size, return_inverse=True)
    rounded = np.array([config.round_size(each) for each in size.tolist()], dtype=np.int64)
    is_asked = lifetimes.start >= 0
    sizes = np.where(is_asked, rounded[which], lifetimes.size)
    return Lifetimes(lifetimes.start, lifetimes.end, sizes).peak_bytes
