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
    """Figures of one rank.

    rank: rank stored in the file; None if there is none.
    torch_version: release of the replay; for a state, the release stored in the file.
    reserved_bytes, allocated_bytes: peaks; for a state, its values.
    retries, ooms: num_alloc_retries and num_ooms; None for a state.
    is_as_recorded: True if the replay equals the recorded run in every entry; None for a state and
        for other settings.
    outline: outline of the run; None for a state.
    smallest_device: memory in bytes of the smallest device that suffices; None for a state, if it
        was not searched, and if no device suffices.
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
        """True if the recording holds only a state."""
        return self.retries is None


def run_of(
    path: str,
    conf: str | None = None,
    torch_version: str | None = None,
    *,
    smallest: bool = False,
) -> RankRun:
    """Load and replay the busiest device of a recording.

    conf: PYTORCH_CUDA_ALLOC_CONF; None for the recorded value.
    torch_version: as for `replay`.
    smallest: find the smallest device, which takes about ten replays.
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
