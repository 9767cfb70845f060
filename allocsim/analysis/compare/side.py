"""One of two compared runs: its peaks, and the owners of its memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allocsim.errors import RecordingError
from allocsim.metrics import Outline, outline_of
from allocsim.ownership import (
    Held,
    Moment,
    Scene,
    held_at,
    moment_of,
    moment_of_state,
    scene_of_run,
    scene_of_state,
)
from allocsim.recording import Recording, Trace, refuse_contradictions
from allocsim.replaying import Prepared
from allocsim.simulation import DeviceRun


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of peak reserved memory, in bytes; their sum is the peak.

    requested: requested bytes of the blocks at peak allocated memory; their rounded bytes if the
        recording has only rounded sizes.
    rounding: bytes that size rounding adds to these blocks.
    unused: peak reserved minus peak allocated memory: fragmentation, cached blocks of other sizes,
        and freed blocks that wait for other streams.
    """

    requested: int
    rounding: int
    unused: int

    @property
    def reserved(self) -> int:
        """Peak reserved bytes."""
        return self.requested + self.rounding + self.unused


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One of two compared runs.

    conf: PYTORCH_CUDA_ALLOC_CONF of the run.
    reserved: parts of peak reserved memory.
    at: moment at which owners are compared.
    held: blocks allocated at this moment.
    retries, ooms, driver_calls: num_alloc_retries, num_ooms and num_device_alloc of the whole run;
        None if the recording has no entries, or if the release does not count them.
    notes: sentences about what was inferred, not recorded.
    outline: curve of memory over the run, for a small chart; None if the recording has no entries.
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
        """Allocated bytes at the compared moment."""
        return sum(self.held.sizes)


def side_of_run(prepared: Prepared, device_run: DeviceRun, conf: str, at: str | int | None) -> Side:
    """Return the peaks and owners of a finished replay, as one side of a comparison.

    conf: PYTORCH_CUDA_ALLOC_CONF to report.
    at: moment at which owners are compared, as in `compare`.
    Raises RecordingError if the moment `at` does not exist.
    """
    trace = prepared.trace
    scene = scene_of_run(trace, prepared.start, device_run.timeline)
    timeline = device_run.timeline
    if not len(timeline.entry):
        raise RecordingError(prepared.path, "allocates nothing; expected a recording with requests")
    fullest = int(timeline.entry[np.argmax(timeline.allocated)])
    notes = []
    if device_run.fidelity is not None and not device_run.fidelity.is_exact:
        notes.append(f"the replay differs from the recording: {device_run.fidelity.first_mismatch}")
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
    """Return the sizes and owners of a recording without entries, as one side of a comparison.

    at: moment at which owners are compared; such a recording has only "end".
    """
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
        notes=("holds only a state, so its peaks are unknown and the state is compared",),
        outline=None,
    )


def _parts(scene: Scene, entry: int, reserved: int) -> Parts:
    """Return the parts of peak reserved memory.

    entry: entry of peak allocated memory; -1 for a recording without entries.
    """
    rows = scene.blocks.in_use(entry)
    allocated = int(scene.blocks.size[rows].sum())
    requested = int(scene.blocks.requested[rows].sum())
    return Parts(requested, allocated - requested, reserved - allocated)
