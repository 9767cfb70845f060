"""Out-of-memory errors that no allocator setting can avoid, recognised without further replays."""

from __future__ import annotations

import numpy as np

from allocsim.metrics import lifetimes_of
from allocsim.recording import Action
from allocsim.replaying import Prepared

__all__ = ["overflows", "was_refused"]


def overflows(prepared: Prepared, memory: int | None) -> bool:
    """Return True if the live requests, including failed requests, exceed `memory` bytes.

    memory: bytes of the device; None if unknown.
    """
    if memory is None:
        return False
    failed = np.flatnonzero(prepared.trace.action == Action.OOM).tolist()
    lives = lifetimes_of(prepared.trace, answered=failed, until=Action.FREE_REQUESTED)
    return lives.peak_bytes > memory - prepared.context_memory


def was_refused(prepared: Prepared, oom_entry: int | None) -> bool:
    """Return True if the request at `oom_entry` failed although the device had room for it.

    oom_entry: first entry that fails in the baseline; None if no entry does.
    """
    if oom_entry is None:
        return False
    trace, at_start = prepared.trace, prepared.in_force(prepared.recorded)
    is_limited = prepared.plan.limit is not None or at_start.fraction(prepared.release) is not None
    if is_limited or trace.action[oom_entry] != Action.OOM:
        return False
    tried = prepared.config.segment_size(int(trace.size[oom_entry]))
    return int(trace.addr[oom_entry]) >= tried
