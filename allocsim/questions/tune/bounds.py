"""What could be gained at all, by the recorded requests alone.

Rule: nothing goes below the peak of live bytes, and a packing that knows the whole run
(`allocsim.measures.packing`) is possible, though no allocator that answers requests as they come
can promise it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allocsim.engine import Prepared
from allocsim.measures import lifetimes_of, pack, rounds_of
from allocsim.questions.tune.floor import needed_of

__all__ = ["Bounds", "bounds_of", "highest"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """peak_live_bytes: in use at once, requests rounded up to 512; packed_bytes: a placement."""

    peak_live_bytes: int
    packed_bytes: int

    def above_ideal(self, reserved: int) -> int:
        """How many bytes more than the peak of live bytes a peak of reserved ones is."""
        return max(reserved - self.peak_live_bytes, 0)


def bounds_of(prepared: Prepared) -> Bounds:
    """The bounds of one device of a recording."""
    trace = prepared.trace
    return Bounds(
        peak_live_bytes=needed_of(trace).peak_bytes,
        packed_bytes=pack(lifetimes_of(trace), rounds=rounds_of(prepared)).height,
    )


def highest(each: Sequence[Bounds]) -> Bounds:
    """The bounds of several: of each the highest."""
    return Bounds(
        peak_live_bytes=max(bounds.peak_live_bytes for bounds in each),
        packed_bytes=max(bounds.packed_bytes for bounds in each),
    )
