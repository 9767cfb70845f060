"""Bounds on the memory that any allocator needs for the recorded requests.

No allocator needs less than the peak of live bytes.  A packing that knows the whole run
(`allocsim.metrics.packing`) is possible, but an online allocator cannot guarantee it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allocsim.analysis.tune.lower_bound import needed_of
from allocsim.metrics import lifetimes_of, pack, period_starts
from allocsim.replaying import Prepared

__all__ = ["Bounds", "bounds_of", "highest"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one device of a recording; bytes.

    peak_live_bytes: peak of live requests, rounded up to 512.
    packed_bytes: height of a packing of all blocks.
    """

    peak_live_bytes: int
    packed_bytes: int

    def above_ideal(self, reserved: int) -> int:
        """Return the bytes by which a reserved peak exceeds the peak of live bytes."""
        return max(reserved - self.peak_live_bytes, 0)


def bounds_of(prepared: Prepared) -> Bounds:
    """Return the bounds of one device of a recording."""
    trace = prepared.trace
    return Bounds(
        peak_live_bytes=needed_of(trace).peak_bytes,
        packed_bytes=pack(lifetimes_of(trace), periods=period_starts(prepared)).height,
    )


def highest(each: Sequence[Bounds]) -> Bounds:
    """Return the highest value of each bound."""
    return Bounds(
        peak_live_bytes=max(bounds.peak_live_bytes for bounds in each),
        packed_bytes=max(bounds.packed_bytes for bounds in each),
    )
