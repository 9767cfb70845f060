"""Measures of fragmentation, each with its definition, and how much of it could be avoided.

Notation: after step t of n, R(t) is what PyTorch holds from the driver and A(t) what is in
allocated blocks, slack included (`reserved` and `allocated` of torch.cuda.memory_stats()).

The four classic ratios are those of Johnstone and Wilson, "The Memory Fragmentation Problem:
Solved?" (ISMM 1998), which the survey of Wilson, Johnstone, Neely and Boles, "Dynamic Storage
Allocation: A Survey and Critical Review" (IWMM 1995) prepares; each is given as the overhead over
live memory, so that 0 is none:

    mean        (Σ R(t)) / (Σ A(t)) - 1
    at_live     R(p) / A(p) - 1      where A(p) = max A, the first such p
    at_reserved R(q) / A(q) - 1      where R(q) = max R, the first such q
    of_peaks    max R / max A - 1

Papers on PyTorch's allocator use the last one upside down, as the utilization max A / max R,
and 1 - utilization as the fragmentation (GMLake, ASPLOS 2024; STAlloc and STWeaver, 2025).

Bounds, because a ratio alone does not say what could be gained:

    lower       the peak of requested bytes rounded up to 512: nothing does with less
    packed      the height of a packing with the whole run known (packing.py): something does
                with so much
    avoidable   max(max R - packed, 0): at least so much of the peak is the allocator's doing
    open        packed - lower: whether that could be saved too is not known
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.engine import DeviceRun
from allocsim.measures.lifetimes import lifetimes_of
from allocsim.measures.packing import pack
from allocsim.trace import Action, Trace

__all__ = ["Measures", "measures_of"]


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of one device's replay; bytes, and ratios over live memory (0 is none).

    slack_share: the part of all bytes allocated over the run that no request asked for.
    n_blocks: how many blocks were packed.
    n_online: how many of them without foresight.
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
        """max A / max R; 1 where nothing was reserved."""
        reserved = self.peak_reserved_bytes
        return self.peak_allocated_bytes / reserved if reserved else 1.0

    @property
    def avoidable_bytes(self) -> int:
        """What a placement with foresight would surely have saved of the peak."""
        return max(self.peak_reserved_bytes - self.packed_bytes, 0)

    @property
    def open_bytes(self) -> int:
        """Between the best packing found and the lower bound."""
        return self.packed_bytes - self.lower_bound_bytes


def measures_of(
    trace: Trace, device_run: DeviceRun, rounds: NDArray[np.int64] | None = None
) -> Measures:
    """The measures of a replay of `trace`; one that stopped early is measured up to there.

    rounds: as in `rounds_of`, for an answer sooner; it is the same without.
    """
    timeline = device_run.timeline
    is_last = np.append(timeline.entry[1:] != timeline.entry[:-1], True)[: len(timeline.entry)]
    reserved, allocated = timeline.reserved[is_last], timeline.allocated[is_last]
    failed = {oom.entry for oom in device_run.ooms}
    recorded = np.flatnonzero(trace.action[: device_run.stopped_at] == Action.OOM).tolist()
    answered = [entry for entry in recorded if entry not in failed]
    lifetimes = lifetimes_of(trace, device_run.stopped_at, answered)
    packing = pack(lifetimes, rounds=rounds)
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
    """The overhead where `of` is highest for the first time."""
    if not len(of):
        return 0.0
    row = int(np.argmax(of))
    return _overhead(int(reserved[row]), int(allocated[row]))


def _overhead(reserved: int, allocated: int) -> float:
    return reserved / allocated - 1 if allocated else 0.0
