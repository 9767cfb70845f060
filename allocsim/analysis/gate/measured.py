"""Measure the memory that a part of a recording needs on an empty allocator.

The replay takes only the requests from the recording.  The cache is empty at first, device memory
is unlimited and addresses begin at 0, so that the result does not depend on earlier history.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from allocsim.analysis.gate.baseline import Baseline
from allocsim.analysis.gate.body import Body, HeldBefore, body_of
from allocsim.core import ReplayAllocator
from allocsim.errors import RecordingError
from allocsim.ownership import held_at, scene_of_run
from allocsim.recording import Action, Recording
from allocsim.replaying import Prepared, prepare
from allocsim.simulation import Drive, Progress, Setting

__all__ = ["Measured", "measured"]

_NO_END = 1 << 60


@dataclass(frozen=True, slots=True)
class Measured(Baseline):
    """Memory of a recording, with everything that a baseline file stores.

    first: first entry of the measured part.
    entry: entry of peak allocated memory.
    held: memory held when the measured part begins.
    notes: sentences about the replay.
    """

    device: int
    first: int
    entry: int
    held: HeldBefore
    notes: tuple[str, ...] = ()

    @property
    def fragmentation(self) -> float:
        """Share of peak reserved memory above peak allocated memory, from 0 to 1."""
        if not self.peak_reserved_bytes:
            return 0.0
        return 1 - self.peak_allocated_bytes / self.peak_reserved_bytes


def measured(
    recording: Recording,
    *,
    at: tuple[str, str] | None = None,
    counts_held: bool = True,
    conf: str | None = None,
    device: int | None = None,
    torch_version: str | None = None,
    progress: Progress | None = None,
) -> Measured:
    """Measure the memory that the requests of a recording need on an empty allocator.

    at: place where the measured part begins: ("step", "2"), ("phase", "forward"), ("mark",
        "prefill") or ("entry", "1200"); None for the beginning.
    counts_held: count the memory that is held from before the part until its last request.
    conf: PYTORCH_CUDA_ALLOC_CONF; None for the recorded value.
    device: device number; None if only one device is recorded.
    torch_version, progress: as for `replay`.
    Raises RecordingError if there is nothing to replay or no such place, and ConfigError for
    settings that the release refuses.
    """
    trace = recording.only_device(device)
    if not trace.count(Action.ALLOC):
        raise RecordingError(
            recording.path, "holds no requests; expected a recording with a history"
        )
    (prepared,) = prepare(recording, trace.device, torch_version)
    body = body_of(prepared, at, counts_held=counts_held, annotations=recording.annotations)
    if not body.trace.count(Action.ALLOC):
        place = " ".join(at or ())
        raise RecordingError(
            recording.path, f"has no requests after {place}; expected an earlier place"
        )
    setting = prepared.recorded if conf is None else Setting(conf)
    drive = _driven(prepared, body, setting, progress)
    timeline = drive.timeline.build(drive.plan.steps.entry)
    stats = drive.allocator.memory_stats()
    fullest = int(timeline.entry[np.argmax(timeline.allocated)]) if len(timeline.entry) else -1
    scene = scene_of_run(body.trace, body.start, timeline)
    owned = held_at(scene, body.trace, fullest)
    requested = owned.blocks.requested[owned.rows].tolist()
    owners: Counter[str] = Counter()
    for index, size in enumerate(requested):
        owners[owned.line(index)] += size or owned.sizes[index]
    return Measured(
        path=recording.path,
        device=trace.device,
        at=at,
        counts_held=counts_held,
        first=body.first,
        conf=setting.conf,
        torch_version=prepared.release.version,
        peak_reserved_bytes=stats["reserved_bytes.all.peak"],
        peak_allocated_bytes=stats["allocated_bytes.all.peak"],
        peak_requested_bytes=stats.get("requested_bytes.all.peak", sum(requested)),
        driver_calls=stats.get("num_device_alloc", stats["segment.all.allocated"]),
        entry=body.first + fullest,
        held=body.held,
        owners=dict(sorted(owners.items(), key=lambda each: (-each[1], each[0]))),
        notes=_notes(drive, body),
    )


def _driven(prepared: Prepared, body: Body, setting: Setting, progress: Progress | None) -> Drive:
    allocator = ReplayAllocator(
        _NO_END,
        setting.conf,
        prepared.release.version,
        base_address=0,
        device=prepared.trace.device,
    )
    drive = Drive(
        allocator,
        prepared.plan_under(setting, body.plan),
        len(body.trace),
        dictates=False,
        progress=progress,
        lays_out=body.start,
    )
    drive.run()
    return drive


def _notes(drive: Drive, body: Body) -> tuple[str, ...]:
    found = []
    if body.trace.count(Action.OOM):
        found.append("requests that failed in the recording succeed here, and they count")
    if drive.plan.empties_cache:
        found.append("the program calls empty_cache(), and so does this replay")
    return tuple(found)
