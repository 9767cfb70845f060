"""Choice of an entry of a recording, such as the peak, with the step and phase of the program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allocsim.errors import RecordingError
from allocsim.ownership.scene import Scene
from allocsim.ownership.stacks import Phase
from allocsim.recording import Action, Trace
from allocsim.simulation import DeviceRun


@dataclass(frozen=True, slots=True)
class Moment:
    """State of the program after an entry.

    entry: entry number; None for a recording without entries.
    what: "peak", "oom" or "end"; "entry" if the user gave the entry number.
    step: number of the training step, from 1; 0 if no steps are known.
    phase: training phase, such as "forward"; "" if unknown.
    requested_bytes: bytes of the failed request if `what` is "oom", else None.
    """

    entry: int | None
    what: str
    step: int = 0
    phase: str = ""
    requested_bytes: int | None = None


def moment_of(
    path: str, trace: Trace, device_run: DeviceRun, scene: Scene, at: str | int | None
) -> Moment:
    """Return the moment that the user selected.

    path: file name for errors.
    at: "peak" (of allocated bytes), "oom" (the last out-of-memory error), "end" or an entry number.
        None for "oom" if the recording has an out-of-memory error, else "peak".

    Raises RecordingError if the recording has no such moment.
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
    """Return the moment "end", the only moment of a recording without entries.

    Raises RecordingError if `at` selects another moment.
    """
    if at not in (None, "end"):
        what = f"holds a state only and no history: there is no {at!r}, only the end"
        raise RecordingError(path, what)
    return Moment(None, "end")
