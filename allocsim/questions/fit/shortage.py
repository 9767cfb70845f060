"""What a card lacks on which a program runs out of memory, and the moment when it did.

Rule: the moment of the error and that of the peak before it are two; what a program needs is the
smallest card on which it comes to its end, not what it would reserve on a card without end.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.engine import Trials, smallest_device
from allocsim.phantom import Gpu
from allocsim.questions.fit.ran import Ran

__all__ = ["Failure", "failure_of", "needed_room"]


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ended a run.

    entry: of the recording.  tried_bytes: what the driver was asked for.  reserved_bytes,
    allocated_bytes: of PyTorch, as the error left them.
    """

    entry: int
    tried_bytes: int
    reserved_bytes: int
    allocated_bytes: int


def failure_of(ran: Ran) -> Failure | None:
    """Return the error that ended `ran`; None if none did, or no replay of it shows it."""
    oom = ran.oom
    if oom is None:
        return None
    tried = oom.tried_bytes or oom.rounded_bytes
    return Failure(oom.entry, tried, oom.reserved_bytes, oom.allocated_bytes)


def needed_room(unlimited: Ran, gpu: Gpu, trials: Trials) -> int | None:
    """Return the least bytes beside the context on which the program's requests are all answered.

    unlimited: the run on a card without end.  gpu: a card on which the program fails.  trials: of
    the unlimited run.  None where no size does, or where the same requests come through on `gpu`,
    so that there the program did not ask for the same.
    """
    prepared = unlimited.prepared
    setting, context = prepared.recorded, prepared.context_memory
    # With a failure there, only larger cards are looked at.
    if trials.under(setting, gpu.room + context, to_first_oom=True).goes_through:
        return None
    found = smallest_device(trials, setting)
    return None if found is None else found.device_memory - context
