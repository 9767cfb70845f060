"""Memory that the recorded requests need under any allocator, to judge what a setting can save.

No allocator needs less than the peak of live bytes.  If all requests are known in advance, blocks
can be placed almost that tightly (`allocsim.metrics.packing`), but an allocator that sees one
request at a time cannot guarantee this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allocsim.analysis.tune.lower_bound import needed_of
from allocsim.metrics import lifetimes_of, pack, period_starts
from allocsim.replaying import Prepared


@dataclass(frozen=True, slots=True)
class Bounds:
    """Memory that the requests of one device need, in bytes.

    peak_live_bytes: peak of live requests, each rounded up to 512 bytes; no allocator needs less.
    packed_bytes: memory that suffices if all requests are known in advance.
    """

    peak_live_bytes: int
    packed_bytes: int

    def above_ideal(self, reserved: int) -> int:
        """Return the bytes by which a reserved peak exceeds the peak of live bytes."""
        return max(reserved - self.peak_live_bytes, 0)


def bounds_of(prepared: Prepared) -> Bounds:
    trace = prepared.trace
    return Bounds(
        peak_live_bytes=needed_of(trace).peak_bytes,
        packed_bytes=pack(lifetimes_of(trace), periods=period_starts(prepared)).height,
    )


def highest(each: Sequence[Bounds]) -> Bounds:
    """Return the largest value of each bound over several devices."""
    return Bounds(
        peak_live_bytes=max(bounds.peak_live_bytes for bounds in each),
        packed_bytes=max(bounds.packed_bytes for bounds in each),
    )
