"""Replay result of a recording that the model has just made, computed without a replay.

The result is equal to the result of `replay_prepared` for that recording, in every field.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.core import CachingAllocator
from allocsim.recording import Action
from allocsim.replaying.notes import known_notes
from allocsim.replaying.prepared import Prepared
from allocsim.replaying.setup import device_of
from allocsim.simulation import (
    DeviceRun,
    Fidelity,
    PeakState,
    StepKind,
    Steps,
    Timeline,
    driver_calls_of,
)

_SIGNS = {
    Action.SEGMENT_ALLOC: 1,
    Action.SEGMENT_MAP: 1,
    Action.SEGMENT_FREE: -1,
    Action.SEGMENT_UNMAP: -1,
}


def run_as_made(
    prepared: Prepared,
    allocator: CachingAllocator,
    moved: NDArray[np.int64],
    peak: PeakState,
    peak_device_bytes: int,
) -> DeviceRun:
    """Build the result that a replay of a simulated recording has, without the replay.

    The recording must have no failed request.

    allocator: allocator that made the recording, after the last request.
    moved: change of allocated bytes at each request and free.
    peak, peak_device_bytes: fields of the result.
    """
    trace, steps = prepared.trace, prepared.plan.steps
    memory, notes = device_of(prepared)
    of_step = np.zeros(len(steps), dtype=np.int64)
    of_step[any_of(steps.kind, (StepKind.ALLOC, StepKind.FREE))] = moved
    # Reserved bytes change only at segment entries.
    reserved = np.zeros(len(trace), dtype=np.int64)
    for action, sign in _SIGNS.items():
        reserved += np.where(trace.action == action, sign * trace.size, 0)
    allocations, segments = trace.count(Action.ALLOC), len(trace.segments)
    return DeviceRun(
        device=trace.device,
        entries=len(trace),
        device_memory=memory,
        peak_device_bytes=peak_device_bytes,
        stats=allocator.memory_stats(),
        timeline=Timeline(
            entry=steps.entry,
            allocated=np.cumsum(of_step),
            reserved=_reserved_after_steps(steps, np.cumsum(reserved)),
        ),
        peak=peak,
        ooms=(),
        fidelity=Fidelity(
            allocations=allocations,
            addresses_matched=allocations,
            segments=segments,
            segments_matched=segments,
            entries=len(trace),
            entries_matched=len(trace),
            first_mismatch=None,
        ),
        inferred=(*notes, *known_notes(prepared)),
        stopped_at=None,
        driver_calls=driver_calls_of(allocator.device.calls),
    )


def _reserved_after_steps(steps: Steps, reserved: NDArray[np.int64]) -> NDArray[np.int64]:
    # A DICTATE step comes before its segment exists, so it has the value of the step before it.
    last = np.where(steps.kind == StepKind.DICTATE, -1, np.arange(len(steps)))
    last = np.maximum.accumulate(last)
    return np.where(last < 0, 0, reserved[steps.entry[last]])
