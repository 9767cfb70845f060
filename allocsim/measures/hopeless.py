"""Cases that no setting helps: more in use at once than the device has, requests refused by others.

Rule: told from the recording alone, without a replay under any setting.
"""

from __future__ import annotations

import numpy as np

from allocsim.engine import Prepared
from allocsim.measures.lifetimes import lifetimes_of
from allocsim.trace import Action

__all__ = ["overflows", "was_refused"]


def overflows(prepared: Prepared, memory: int | None) -> bool:
    """Whether more lives at once than the device has, what failed among it."""
    if memory is None:
        return False
    failed = np.flatnonzero(prepared.trace.action == Action.OOM).tolist()
    lives = lifetimes_of(prepared.trace, answered=failed, until=Action.FREE_REQUESTED)
    return lives.peak_bytes > memory - prepared.context_memory


def was_refused(prepared: Prepared, oom_entry: int | None) -> bool:
    """Whether a request failed at `oom_entry` of the recording though the device had room for it.

    oom_entry: where the replay as recorded fails first; None where it does not.
    """
    if oom_entry is None:
        return False
    trace, at_start = prepared.trace, prepared.in_force(prepared.recorded)
    is_limited = prepared.plan.limit is not None or at_start.fraction(prepared.release) is not None
    if is_limited or trace.action[oom_entry] != Action.OOM:
        return False
    tried = prepared.config.segment_size(int(trace.size[oom_entry]))
    return int(trace.addr[oom_entry]) >= tried
