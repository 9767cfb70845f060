"""Moment at which a program runs out of memory, and the memory that it would need.

Rule: the moment of the error and the earlier peak are reported separately. The memory that a
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
    """Error that ended a run.

    entry: entry of the recording.
    tried_bytes: bytes requested from the driver.
    reserved_bytes, allocated_bytes: PyTorch's counters after the error.
    """

    entry: int
    tried_bytes: int
    reserved_bytes: int
    allocated_bytes: int


def failure_of(ran: Ran) -> Failure | None:
    """Return the error that ended `ran`; None if there was none or the replay does not show it."""
    oom = ran.oom
    if oom is None:
        return None
    tried = oom.tried_bytes or oom.rounded_bytes
    return Failure(oom.entry, tried, oom.reserved_bytes, oom.allocated_bytes)


def needed_room(unlimited: Ran, gpu: Gpu, trials: Trials) -> int | None:
    """Return the least bytes, without the context, with which all requests succeed.

    unlimited: run on a card without a memory limit.
    gpu: card on which the program fails.
    trials: replays of the unlimited run.

    None if no size suffices, or if the same requests succeed on `gpu`: the program then requested
    other sizes there.
    """
    prepared = unlimited.prepared
    setting, context = prepared.recorded, prepared.context_memory
    # smallest_device() assumes that the run fails on `gpu`: it only looks at larger cards.
    if trials.under(setting, gpu.room + context, to_first_oom=True).goes_through:
        return None
    found = smallest_device(trials, setting)
    return None if found is None else found.device_memory - context
