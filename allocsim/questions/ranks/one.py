"""One rank's run, replayed.

Rule: nothing of a recording is kept but these figures, so that a process can read thousands.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.engine import Setting, Trials, prepare, replay_prepared, smallest_device
from allocsim.measures import Outline, effects_on, outline_of
from allocsim.trace import Action, Recording, Trace, load, refuse_contradictions

__all__ = ["RankRun", "run_of"]


@dataclass(frozen=True, slots=True)
class RankRun:
    """One rank.

    rank: by the file's own mark, None where it has none.
    reserved_bytes, allocated_bytes: at their peaks; of a recording that holds a state only, as they
    were then.
    retries, ooms: num_alloc_retries and num_ooms; None of a state.
    is_as_recorded: whether the replay is the recorded run, entry for entry; None of a state, and of
    a replay under other settings.
    outline: of the run; None of a state.
    smallest_device: bytes of the smallest device on which it goes through; None if it was not
    looked for, of a state, and of a setting that goes through nowhere.
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
        """What is reserved at the most beyond what is allocated at the most."""
        return self.reserved_bytes - self.allocated_bytes

    @property
    def is_state(self) -> bool:
        """Whether the recording holds a state only."""
        return self.retries is None


def run_of(
    path: str,
    conf: str | None = None,
    torch_version: str | None = None,
    *,
    smallest: bool = False,
) -> RankRun:
    """Load and replay the busiest device of a recording.

    conf: PYTORCH_CUDA_ALLOC_CONF, None for what was recorded.  torch_version: as for `replay`.
    smallest: whether to look for the smallest device, which takes some ten replays.
    Raises RecordingError for what is no recording, ConfigError for what the release refuses.
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
