"""A moment of a recording: the entry, and the program's step and phase.

Answers name the entry, so that a second question can refer to the same moment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allocsim.errors import RecordingError
from allocsim.ownership.scene import Scene
from allocsim.ownership.stacks import Phase
from allocsim.recording import Action, Trace
from allocsim.simulation import DeviceRun

__all__ = ["Moment", "moment_of", "moment_of_state"]


@dataclass(frozen=True, slots=True)
class Moment:
    """Moment after an entry.

    entry: entry number; None for a recording without entries.
    what: "peak", "oom", "end" or "entry".
    step: step number from 1; 0 if no steps are known.
    phase: "forward", "backward", …; "" if unknown.
    requested_bytes: size of the failed request at an out-of-memory error.
    """

    entry: int | None
    what: str
    step: int = 0
    phase: str = ""
    requested_bytes: int | None = None


def moment_of(
    path: str, trace: Trace, device_run: DeviceRun, scene: Scene, at: str | int | None
) -> Moment:
    """Return the moment `at`: "peak", "oom", "end" or an entry number.

    None selects "oom" if the recording has one, else "peak", the peak of allocated bytes.
    Raises RecordingError if the recording does not contain the moment.
    """
    ooms = np.flatnonzero(trace.action == Action.OOM)
    last = len(trace) - 1 if device_run.stopped_at is None else device_run.stopped_at
    if at is None:
        at = "oom" if len(ooms) else "peak"
    requested = None
    if at == "oom":
        if not len(ooms):
            raise RecordingError(
                path, "no out-of-memory error is recorded; expected another moment"
            )
        entry = int(ooms[-1])
        requested = int(trace.size[entry])
    elif at == "peak":
        timeline = device_run.timeline
        entry = int(timeline.entry[np.argmax(timeline.allocated)])
    elif at == "end":
        entry = last
    elif not isinstance(at, str) and 0 <= at <= last:
        entry = int(at)
    else:
        raise RecordingError(path, f"there is no entry {at}; expected 0 to {last}")
    phase = scene.phase_at(entry)
    return Moment(
        entry=entry,
        what=at if isinstance(at, str) else "entry",
        step=scene.step_at(entry),
        phase="" if phase is Phase.UNTOLD else phase.text,
        requested_bytes=requested,
    )


def moment_of_state(path: str, at: str | int | None) -> Moment:
    """Return the only moment of a recording without entries, "end".

    Raises RecordingError if `at` is another moment.
    """
    if at not in (None, "end"):
        what = f"holds a state only and no history: there is no {at!r}, only the end"
        raise RecordingError(path, what)
    return Moment(None, "end")
