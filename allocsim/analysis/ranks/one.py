"""Replay of one rank.

Only these figures are kept and not the recording, so that a process can read thousands of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.metrics import Outline, outline_of
from allocsim.recommend import effects_on
from allocsim.recording import Action, Recording, Trace, load, refuse_contradictions
from allocsim.replaying import Trials, prepare, replay_prepared, smallest_device
from allocsim.simulation import Setting

__all__ = ["RankRun", "run_of"]


@dataclass(frozen=True, slots=True)
class RankRun:
    """Results of replaying one rank.

    If the recording is only a state (a snapshot without entries), no replay is possible: sizes are
    those of the state, and results that need a replay are None.

    path: path of the recording.
    rank: distributed rank; None if unknown.
    device: number of the replayed device.
    torch_version: release of the replay, or of the state.
    reserved_bytes, allocated_bytes: peaks in bytes.
    retries, ooms: num_alloc_retries and num_ooms.
    is_as_recorded: True if the replay equals the recorded run in every entry; None if the settings
        are not the recorded ones.
    outline: curve of memory over the run, for a small chart.
    smallest_device: memory in bytes of the smallest sufficient device; None if it was not searched
        or if no device suffices.
    """

    path: str
    rank: int | None
    device: int
    torch_version: str
    entries: int
    reserved_bytes: int
    allocated_bytes: int
    retries: int | None
    ooms: int | None
    is_as_recorded: bool | None
    outline: Outline | None
    smallest_device: int | None

    @property
    def unused_bytes(self) -> int:
        """Peak reserved minus peak allocated bytes."""
        return self.reserved_bytes - self.allocated_bytes

    @property
    def is_state(self) -> bool:
        """True if the recording is a snapshot without entries."""
        return self.retries is None


def run_of(
    path: str,
    conf: str | None = None,
    torch_version: str | None = None,
    *,
    smallest: bool = False,
) -> RankRun:
    """Load a recording and replay its busiest device.

    conf: PYTORCH_CUDA_ALLOC_CONF; None for the recorded value.
    torch_version: release to model; None for the recorded release.
    smallest: find the smallest sufficient device, which takes about ten replays.
    Raises RecordingError for an invalid recording, ConfigError for a setting that the release
    refuses.
    """
    recording = load(path)
    trace = recording.busiest_device()
    mark = recording.provenance.rank if recording.provenance is not None else ""
    rank = int(mark) if mark.isdecimal() else None
    if not trace.count(Action.ALLOC):
        return _of_state(recording, trace, rank)
    (prepared,) = prepare(recording, trace.device, torch_version)
    setting = prepared.recorded if conf is None else Setting(conf)
    run = replay_prepared((prepared,), None if conf is None else setting)
    (device_run,) = run.devices
    found = None
    if smallest:
        trials = Trials(prepared, effect=effects_on(prepared))
        trials.note(setting, device_run)
        found = smallest_device(trials, setting)
    timeline = device_run.timeline
    fidelity = device_run.fidelity
    return RankRun(
        path=path,
        rank=rank,
        device=trace.device,
        torch_version=run.torch_version,
        entries=len(trace),
        reserved_bytes=int(timeline.reserved.max(initial=0)),
        allocated_bytes=int(timeline.allocated.max(initial=0)),
        retries=device_run.stats["num_alloc_retries"],
        ooms=len(device_run.ooms),
        is_as_recorded=fidelity.is_exact if fidelity is not None and fidelity.is_compared else None,
        outline=outline_of(timeline, len(trace)),
        smallest_device=None if found is None else found.device_memory,
    )


def _of_state(recording: Recording, trace: Trace, rank: int | None) -> RankRun:
    refuse_contradictions(recording)
    reserved = sum(segment.total_size for segment in trace.segments)
    allocated = sum(segment.allocated_size for segment in trace.segments)
    made = recording.provenance.release if recording.provenance is not None else ""
    return RankRun(
        path=recording.path,
        rank=rank,
        device=trace.device,
        torch_version=made,
        entries=0,
        reserved_bytes=reserved,
        allocated_bytes=allocated,
        retries=None,
        ooms=None,
        is_as_recorded=None,
        outline=None,
        smallest_device=None,
    )
