"""Recordings of the ranks of a job: finding the files, and replaying one of them.

The rank of a file is stored in it.  Otherwise the rank is read from the name of the file or of a
parent folder, as launchers write it ("rank3", "rank_3", "r3"), or it is the only number that
differs between the names.  If the rank is still unknown, files are numbered in the order of their
names.

Results do not contain the recording, so that one process can replay thousands of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from allocsim.errors import RecordingError
from allocsim.metrics import Outline, outline_of
from allocsim.recording import (
    ENDINGS,
    Action,
    Recording,
    Trace,
    load,
    recordings_in,
    refuse_contradictions,
)
from allocsim.replaying import Trials, effects_on, prepare, replay_prepared, smallest_device
from allocsim.simulation import Setting

_NAMED = re.compile(r"(?:^|[^a-z])(?:global[_-]?)?rank[_\-. =]?(\d+)", re.IGNORECASE)
_SHORT = re.compile(r"(?:^|[_\-./])r(\d+)(?=$|[_\-./])")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Found:
    """File of one rank; `rank` is None if the name of the file does not contain it."""

    path: str
    rank: int | None


def found_in(names: Iterable[str]) -> tuple[Found, ...]:
    """Find the recordings of a job.

    names: paths of files, and of folders with recordings.
    Raises RecordingError if a folder holds no recording.
    """
    paths: list[str] = []
    for name in names:
        place = Path(name)
        if not place.is_dir():
            paths.append(name)
            continue
        inside = list(map(str, recordings_in(place)))
        if not inside:
            expected = ", ".join(ENDINGS)
            raise RecordingError(name, f"the folder holds no recording; expected {expected} files")
        paths += inside
    paths = list(dict.fromkeys(paths))
    ranks = [rank_in_name(path) for path in paths]
    if None in ranks:
        ranks = _by_difference(paths) or ranks
    return tuple(Found(path, rank) for path, rank in zip(paths, ranks, strict=True))


def rank_in_name(path: str) -> int | None:
    """Return the rank that the name of a file or of a parent folder contains, or None."""
    for part in reversed(Path(path).parts):
        named = _NAMED.search(part) or _SHORT.search(part.partition(".")[0])
        if named is not None:
            return int(named[1])
    return None


def _by_difference(paths: Sequence[str]) -> list[int | None] | None:
    """Return the value of each path for the only number that differs between the paths.

    Return None if the paths differ in anything else.
    """
    numbers = [[int(each) for each in _NUMBER.findall(path)] for path in paths]
    if len(paths) == 1 or len({_NUMBER.sub("#", path) for path in paths}) > 1:
        return None
    differing = [column for column in zip(*numbers, strict=True) if len(set(column)) > 1]
    if len(differing) != 1 or len(set(differing[0])) < len(paths):
        return None
    return list(differing[0])


@dataclass(frozen=True, slots=True)
class Origin:
    """Program run that a recording comes from.

    release: release of PyTorch that the file names; "" if it names none.
    first_us, last_us: time of the first and last entry in microseconds since 1970; None if the
        entries have no times.
    """

    release: str
    first_us: int | None = None
    last_us: int | None = None


def origin_of(recording: Recording, trace: Trace) -> Origin:
    """Return the origin of the entries of one device."""
    release = "" if recording.provenance is None else recording.provenance.release
    if trace.time_us is None or not len(trace):
        return Origin(release)
    return Origin(release, int(trace.time_us.min()), int(trace.time_us.max()))


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
    origin: program run that the file comes from, as far as the file shows it.
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
    origin: Origin

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
        origin=origin_of(recording, trace),
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
        origin=origin_of(recording, trace),
    )
