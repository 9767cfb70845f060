"""One of two runs that are compared: its peaks, what they are made of, who holds what.

Rule: what was asked for at the peak of allocated memory, what rounding adds to it, and what is
reserved at the most beyond that peak add up to the peak of reserved memory, to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allocsim.engine import DeviceRun, Prepared
from allocsim.errors import RecordingError
from allocsim.measures import Outline, outline_of
from allocsim.owners import (
    Held,
    Moment,
    Scene,
    held_at,
    moment_of,
    moment_of_state,
    scene_of_run,
    scene_of_state,
)
from allocsim.trace import Recording, Trace, refuse_contradictions

__all__ = ["Parts", "Side", "side_of_run", "side_of_state"]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the peak of reserved memory is made of, in bytes.

    requested: of what was allocated at the most, what was asked for; where a recording does not
    say it, what that was rounded to.  rounding: what the blocks are larger.
    unused: what was reserved at the most beyond what was allocated at the most: fragmentation,
    caches of other sizes, and what waits for other streams.
    """

    requested: int
    rounding: int
    unused: int

    @property
    def reserved(self) -> int:
        """Bytes reserved at the most."""
        return self.requested + self.rounding + self.unused


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One of the two.

    conf: the settings of the run.  reserved: what its peak of reserved memory is made of.
    at: the moment of the rows; held: what was allocated then.
    retries, ooms, driver_calls: num_alloc_retries, num_ooms and num_device_alloc of the whole run;
    None of a state, and of a release that does not count them.
    outline: of the whole run; None of a state.
    """

    path: str
    device: int
    conf: str
    reserved: Parts
    at: Moment
    held: Held
    retries: int | None
    ooms: int | None
    driver_calls: int | None
    notes: tuple[str, ...]
    outline: Outline | None

    @property
    def allocated_bytes(self) -> int:
        """At the moment of the rows."""
        return sum(self.held.sizes)


def side_of_run(prepared: Prepared, device_run: DeviceRun, conf: str, at: str | int | None) -> Side:
    """A run that was replayed.  Raises RecordingError if there is no such moment."""
    trace = prepared.trace
    scene = scene_of_run(trace, prepared.start, device_run.timeline)
    timeline = device_run.timeline
    if not len(timeline.entry):
        raise RecordingError(prepared.path, "nothing is allocated in it, so nothing is compared")
    fullest = int(timeline.entry[np.argmax(timeline.allocated)])
    notes = []
    if device_run.fidelity is not None and not device_run.fidelity.is_exact:
        notes.append(f"the replay is not as recorded: {device_run.fidelity.first_mismatch}")
    moment = moment_of(prepared.path, trace, device_run, scene, at or "peak")
    stats = device_run.stats
    return Side(
        path=prepared.path,
        device=trace.device,
        conf=conf,
        reserved=_parts(scene, fullest, int(timeline.reserved.max())),
        at=moment,
        held=held_at(scene, trace, moment.entry or 0),
        retries=stats["num_alloc_retries"],
        ooms=stats["num_ooms"],
        driver_calls=stats.get("num_device_alloc"),
        notes=tuple(notes),
        outline=outline_of(timeline, len(trace)),
    )


def side_of_state(recording: Recording, trace: Trace, at: str | int | None) -> Side:
    """A recording that holds a state only."""
    moment = moment_of_state(recording.path, at)
    refuse_contradictions(recording)
    scene = scene_of_state(trace)
    return Side(
        path=recording.path,
        device=trace.device,
        conf="",
        reserved=_parts(scene, -1, sum(segment.total_size for segment in trace.segments)),
        at=moment,
        held=held_at(scene, trace, -1),
        retries=None,
        ooms=None,
        driver_calls=None,
        notes=("holds a state only, so that its peaks are not known: it is compared as it was",),
        outline=None,
    )


def _parts(scene: Scene, entry: int, reserved: int) -> Parts:
    """entry: after which most is allocated, -1 for the state of one without entries."""
    rows = scene.blocks.in_use(entry)
    allocated = int(scene.blocks.size[rows].sum())
    requested = int(scene.blocks.requested[rows].sum())
    return Parts(requested, allocated - requested, reserved - allocated)
