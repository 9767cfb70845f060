"""Measures of fragmentation, and bounds of the reserved memory that a better placement could save.

R(t) and A(t) are the reserved and allocated bytes after entry t, as in torch.cuda.memory_stats().
Allocated bytes are sizes of blocks, including the bytes added by rounding.

The four ratios are those of Johnstone and Wilson, "The Memory Fragmentation Problem: Solved?"
(ISMM 1998); see also Wilson, Johnstone, Neely and Boles, "Dynamic Storage Allocation: A Survey and
Critical Review" (IWMM 1995).  Each is reserved memory as an overhead over allocated memory; 0 means
that all reserved memory is allocated:

    mean        (Σ R(t)) / (Σ A(t)) - 1
    at_live     R(p) / A(p) - 1      where A(p) = max A, the first such p
    at_reserved R(q) / A(q) - 1      where R(q) = max R, the first such q
    of_peaks    max R / max A - 1

Papers on PyTorch's allocator use the inverse of the last ratio, the utilization max A / max R, and
call 1 - utilization the fragmentation (GMLake, ASPLOS 2024; STAlloc and STWeaver, 2025).

A ratio does not show how much memory could be saved, so there are bounds in bytes as well:

    lower       peak of requested bytes, each request rounded up to 512; no allocator needs less
    packed      memory that is enough if all requests are known in advance (packing.py)
    avoidable   max(max R - packed, 0); at least this part of the peak could be saved
    open        packed - lower; it is unknown whether this part could be saved
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.metrics.lifetimes import lifetimes_of
from allocsim.metrics.packing import pack
from allocsim.recording import Action, Trace
from allocsim.simulation import DeviceRun


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of one device's replay: bytes, and overheads as ratios (0: no overhead).

    slack_share: share of all bytes ever allocated that rounding and unsplit blocks added.
    lower_bound_bytes, packed_bytes: `lower` and `packed` of the module docstring.
    n_blocks: number of blocks that were packed.
    n_online: number of these that were placed by best fit, without knowledge of later requests.
    """

    peak_reserved_bytes: int
    peak_allocated_bytes: int
    mean_overhead: float
    overhead_at_peak_allocated: float
    overhead_at_peak_reserved: float
    overhead_of_peaks: float
    slack_share: float
    lower_bound_bytes: int
    packed_bytes: int
    n_blocks: int
    n_online: int

    @property
    def utilization(self) -> float:
        """Peak allocated over peak reserved bytes; 1 if nothing was reserved."""
        reserved = self.peak_reserved_bytes
        return self.peak_allocated_bytes / reserved if reserved else 1.0

    @property
    def avoidable_bytes(self) -> int:
        """Bytes of the reserved peak that a placement with knowledge of all requests saves."""
        return max(self.peak_reserved_bytes - self.packed_bytes, 0)

    @property
    def open_bytes(self) -> int:
        """Bytes for which it is unknown whether another placement could save them."""
        return self.packed_bytes - self.lower_bound_bytes


def measures_of(
    trace: Trace, device_run: DeviceRun, periods: NDArray[np.int64] | None = None
) -> Measures:
    """Return the measures of a replay of `trace`, up to the entry where the replay stopped.

    periods: first entry of each period, from `period_starts`.  Periods save time and do not change
        the result.
    """
    timeline = device_run.timeline
    is_last = np.append(timeline.entry[1:] != timeline.entry[:-1], True)[: len(timeline.entry)]
    reserved, allocated = timeline.reserved[is_last], timeline.allocated[is_last]
    failed = {oom.entry for oom in device_run.ooms}
    recorded = np.flatnonzero(trace.action[: device_run.stopped_at] == Action.OOM).tolist()
    answered = [entry for entry in recorded if entry not in failed]
    lifetimes = lifetimes_of(trace, device_run.stopped_at, answered)
    packing = pack(lifetimes, periods=periods)
    needed = lifetimes_of(trace, device_run.stopped_at, answered, until=Action.FREE_REQUESTED)
    stats = device_run.stats
    blocks = stats["allocated_bytes.all.allocated"]
    asked = stats.get("requested_bytes.all.allocated", blocks)
    return Measures(
        peak_reserved_bytes=device_run.peak_reserved_bytes,
        peak_allocated_bytes=device_run.peak_allocated_bytes,
        mean_overhead=_overhead(int(reserved.sum()), int(allocated.sum())),
        overhead_at_peak_allocated=_highest(allocated, reserved, allocated),
        overhead_at_peak_reserved=_highest(reserved, reserved, allocated),
        overhead_of_peaks=_overhead(
            device_run.peak_reserved_bytes, device_run.peak_allocated_bytes
        ),
        slack_share=1 - asked / blocks if blocks else 0.0,
        lower_bound_bytes=needed.peak_bytes,
        packed_bytes=packing.height,
        n_blocks=len(lifetimes),
        n_online=packing.n_online,
    )


def _highest(
    of: NDArray[np.int64], reserved: NDArray[np.int64], allocated: NDArray[np.int64]
) -> float:
    if not len(of):
        return 0.0
    row = int(np.argmax(of))
    return _overhead(int(reserved[row]), int(allocated[row]))


def _overhead(reserved: int, allocated: int) -> float:
    return reserved / allocated - 1 if allocated else 0.0
