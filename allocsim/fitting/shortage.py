"""Out-of-memory error of a run, and the memory that the program would need.

Rule: the counters at the error and the earlier peak are reported separately. The memory that a
    program needs is that of the smallest card on which it completes, not the amount that it would
    reserve on an unlimited card.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.fitting.run_result import Ran
from allocsim.phantom import Gpu
from allocsim.replaying import Trials, smallest_device

__all__ = ["Failure", "failure_of", "needed_room"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Out-of-memory error that ended a run.

    entry: entry of the recording at which it occurred.
    tried_bytes: bytes requested from the driver.
    reserved_bytes, allocated_bytes: PyTorch's counters after the error.
    """

    entry: int
    tried_bytes: int
    reserved_bytes: int
    allocated_bytes: int


def failure_of(ran: Ran) -> Failure | None:
    """Return the error that ended `ran`, or None if none did or the replay does not show it."""
    oom = ran.oom
    if oom is None:
        return None
    tried = oom.tried_bytes or oom.rounded_bytes
    return Failure(oom.entry, tried, oom.reserved_bytes, oom.allocated_bytes)


def needed_room(unlimited: Ran, gpu: Gpu, trials: Trials) -> int | None:
    """Return the least bytes, without the CUDA context, with which all requests succeed.

    unlimited: run on a card without a memory limit.
    gpu: card on which the program fails.
    trials: replays of the unlimited run.

    Returns None if no size suffices. Returns None also if the same requests succeed on `gpu`,
    because the program then requested other sizes there.
    """
    prepared = unlimited.prepared
    setting, context = prepared.recorded, prepared.context_memory
    # smallest_device() assumes that the run fails on `gpu`: it only looks at larger cards.
    if trials.under(setting, gpu.room + context, to_first_oom=True).goes_through:
        return None
    found = smallest_device(trials, setting)
    return None if found is None else found.device_memory - context
