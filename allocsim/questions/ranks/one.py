"""One rank's run, replayed.

Rule: nothing of a recording is kept but these figures, so that a process can read thousands.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.engine import Setting, prepare, replay_prepared
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

    @property
    def unused_bytes(self) -> int:
        """What is reserved at the most beyond what is allocated at the most."""
        return self.reserved_bytes - self.allocated_bytes

    @property
    def is_state(self) -> bool:
        """Whether the recording holds a state only."""
        return self.retries is None


def run_of(path: str, conf: str | None = None, torch_version: str | None = None) -> RankRun:
    """Load and replay the busiest device of a recording.

    conf: PYTORCH_CUDA_ALLOC_CONF, None for what was recorded.  torch_version: as for `replay`.
    Raises RecordingError for what is no recording, ConfigError for what the release refuses.
    """
    recording = load(path)
    trace = max(recording.devices, key=len)
    mark = recording.provenance.rank if recording.provenance is not None else ""
    rank = int(mark) if mark.isdecimal() else None
    if not trace.count(Action.ALLOC):
        return _of_state(recording, trace, rank)
    (prepared,) = prepare(recording, trace.device, torch_version)
    run = replay_prepared((prepared,), None if conf is None else Setting(conf))
    (device_run,) = run.devices
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
        is_as_recorded=None if fidelity is None else fidelity.is_exact,
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
    )
