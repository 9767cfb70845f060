"""Replay all ranks of a distributed job and compare their memory.

The rank (number of a process of the job) is stored in a recording, or is read from the name of its
file or folder ("rank3", "rank_3", "r3", or the only number that differs between the files).
Results do not contain the recording, so one process can replay thousands of files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median_low

from allocsim._repr import Shown
from allocsim.errors import AllocsimError, RecordingError
from allocsim.metrics import Outline, outline_of
from allocsim.recording import (
    ENDINGS,
    Action,
    Provenance,
    load,
    recordings_in,
    refuse_contradictions,
)
from allocsim.replaying import Trials, effects_on, prepare, replay_prepared, smallest_device
from allocsim.simulation import Setting
from allocsim.units import format_size
from allocsim.workers import Crew, WorkerDiedError

_NAMED = re.compile(r"(?:^|[^a-z])(?:global[_-]?)?rank[_\-. =]?(\d+)", re.IGNORECASE)
_SHORT = re.compile(r"(?:^|[_\-./])r(\d+)(?=$|[_\-./])")
_NUMBER = re.compile(r"\d+")


def found_in(names: Iterable[str]) -> dict[str, int | None]:
    """Return a dictionary from the path of each recording to its rank, or None if unknown.

    A rank is the number of a process of the job.

    names: paths of recordings, and of folders with recordings.
    Raises RecordingError for a folder without recordings.
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
    return dict(zip(paths, ranks, strict=True))


def rank_in_name(path: str) -> int | None:
    for part in reversed(Path(path).parts):
        named = _NAMED.search(part) or _SHORT.search(part.partition(".")[0])
        if named is not None:
            return int(named[1])
    return None


def _by_difference(paths: Sequence[str]) -> list[int | None] | None:
    numbers = [[int(each) for each in _NUMBER.findall(path)] for path in paths]
    if len(paths) == 1 or len({_NUMBER.sub("#", path) for path in paths}) > 1:
        return None
    differing = [column for column in zip(*numbers, strict=True) if len(set(column)) > 1]
    if len(differing) != 1 or len(set(differing[0])) < len(paths):
        return None
    return list(differing[0])


@dataclass(frozen=True, slots=True)
class RankRun:
    """Results of replaying the recording of one rank (process of a job).

    If the recording is a snapshot without history entries, sizes are read from it, and results
    that need a replay are None.

    torch_version: PyTorch release of the replay.
    entries: number of recorded history entries.
    reserved_bytes, allocated_bytes: peaks in bytes; without entries, the bytes in the snapshot.
    is_as_recorded: True if the replay equals the recorded run in every entry; None if they cannot
        be compared, for example because the settings are not the recorded ones.
    outline: curve of memory over the run, for a small chart.
    smallest_device: bytes of the smallest device on which every request succeeds; None if this size
        was not searched, or if a request fails on a device of any size.
    recorded_release: PyTorch release that the file names; "" if it names none.
    times_us: times of the first and last entry in microseconds since 1970; None if not recorded.
    """

    path: str
    rank: int | None
    device: int
    torch_version: str
    entries: int
    reserved_bytes: int
    allocated_bytes: int
    retries: int | None = None
    ooms: int | None = None
    is_as_recorded: bool | None = None
    outline: Outline | None = None
    smallest_device: int | None = None
    recorded_release: str = ""
    times_us: tuple[int, int] | None = None

    @property
    def unused_bytes(self) -> int:
        return self.reserved_bytes - self.allocated_bytes

    @property
    def is_state(self) -> bool:
        return self.retries is None


def run_of(
    path: str, conf: str | None = None, torch_version: str | None = None, *, smallest: bool = False
) -> RankRun:
    """Load a recording, replay its device with the most entries, and return the results.

    conf: PYTORCH_CUDA_ALLOC_CONF; None for the recorded value.
    torch_version: PyTorch release to model; None to choose it from the recording.
    smallest: also find the smallest device memory with which every request succeeds.
    """
    recording = load(path)
    trace, made = recording.busiest_device(), recording.provenance or Provenance()
    state = RankRun(
        path=path,
        rank=int(made.rank) if made.rank.isdecimal() else None,
        device=trace.device,
        torch_version=made.release,
        entries=0,
        reserved_bytes=sum(segment.total_size for segment in trace.segments),
        allocated_bytes=sum(segment.allocated_size for segment in trace.segments),
        recorded_release=made.release,
    )
    if trace.time_us is not None and len(trace):
        state = replace(state, times_us=(int(trace.time_us.min()), int(trace.time_us.max())))
    if not trace.count(Action.ALLOC):
        refuse_contradictions(recording)
        return state
    (prepared,) = prepare(recording, trace.device, torch_version)
    setting = prepared.recorded if conf is None else Setting(conf)
    run = replay_prepared((prepared,), None if conf is None else setting)
    (device_run,) = run.devices
    found = None
    if smallest:
        trials = Trials(prepared, effect=effects_on(prepared))
        trials.add(setting, device_run)
        found = smallest_device(trials, setting)
    timeline, fidelity = device_run.timeline, device_run.fidelity
    return replace(
        state,
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


Watch = Callable[[int, int], object]
"""Callback with the number of finished files and the number of all files."""

_ALONE = 2  # up to this number of files, no worker process is started

_LONGEST_GAP_US = 3600 * 1_000_000
"""Longest time from the end of one recording of a job to the start of the next, in microseconds."""

_SHOWN = 10  # number of rows in the table of a notebook


@dataclass(frozen=True, slots=True)
class Refused:
    path: str
    error: str


@dataclass(frozen=True, slots=True, repr=False)
class Ranks(Shown):
    """Results of replaying all ranks (processes) of a distributed job.

    runs: results of each rank, in order of rank.
    refused: files that could not be replayed.
    conf: PYTORCH_CUDA_ALLOC_CONF of all ranks; None for the recorded value of each rank.
    notes: sentences about what was inferred, not recorded.
    """

    runs: tuple[RankRun, ...]
    refused: tuple[Refused, ...]
    conf: str | None
    notes: tuple[str, ...]

    @property
    def decides(self) -> RankRun:
        """Rank with the highest peak of reserved memory; of equal ranks, the first."""
        return max(self.runs, key=lambda run: run.reserved_bytes)

    @property
    def least(self) -> RankRun:
        """Rank with the lowest peak of reserved memory."""
        return min(self.runs, key=lambda run: run.reserved_bytes)

    @property
    def median_bytes(self) -> int:
        """Median over all ranks of the peak reserved bytes."""
        return median_low(run.reserved_bytes for run in self.runs)

    @property
    def imbalance(self) -> float:
        """Largest peak reserved memory divided by the mean over all ranks; 1 if all are equal."""
        return _imbalance([run.reserved_bytes for run in self.runs])

    @property
    def allocated_imbalance(self) -> float:
        """Largest peak allocated memory divided by the mean over all ranks.

        Unlike `imbalance`, it does not depend on fragmentation and cached memory.
        """
        return _imbalance([run.allocated_bytes for run in self.runs])

    @property
    def failed(self) -> tuple[RankRun, ...]:
        """Ranks whose replay ran out of memory."""
        return tuple(run for run in self.runs if run.ooms)

    @property
    def smallest_device(self) -> int | None:
        """Bytes of the smallest device that is large enough for every rank; None if unknown."""
        sizes = [run.smallest_device for run in self.runs]
        return None if None in sizes else max(size or 0 for size in sizes)

    def headline(self) -> str:
        first = self.decides
        more = (
            f"rank {first.rank} decides: {format_size(first.reserved_bytes)} reserved at the peak"
        )
        return f"{len(self.runs)} ranks; {more}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for run in sorted(self.runs, key=lambda run: -run.reserved_bytes)[:_SHOWN]:
            yield f"rank {run.rank}", format_size(run.reserved_bytes)


def _imbalance(sizes: Sequence[int]) -> float:
    mean = fmean(sizes)
    return max(sizes) / mean if mean else 1.0


def ranks(
    names: Sequence[str],
    *,
    conf: str | None = None,
    torch_version: str | None = None,
    smallest: bool = False,
    mixed: bool = False,
    jobs: int | None = None,
    executor: Executor | None = None,
    watch: Watch | None = None,
) -> Ranks:
    """Replay the recordings of all ranks of a job and compare them.

    names: paths of recordings, and of folders with recordings.
    conf: PYTORCH_CUDA_ALLOC_CONF for all ranks; None for the recorded value of each rank.
    torch_version: PyTorch release to model; None for the recorded release.
    smallest: also find the smallest device on which each rank can run; this takes about ten replays
        for each rank.
    mixed: accept files of several jobs, which differ in PyTorch release or were recorded more than
        an hour apart.
    jobs: number of worker processes; None for one per core.
    executor: executor that runs the replays instead of worker processes; its workers must be able
        to read the files.
    watch: callback that is given the number of finished files and the number of all files.
    Raises RecordingError if no file can be read, if two files have the same rank, or if the files
    are of several jobs and `mixed` is False.
    """
    found = found_in(names)
    answers: dict[str, RankRun | Refused] = {}

    def done(path: str, answer: RankRun | Refused) -> None:
        answers[path] = answer
        if watch is not None:
            watch(len(answers), len(found))

    # For one or two files, starting worker processes would take longer than the replays.
    width = 1 if len(found) <= _ALONE else min(jobs or os.cpu_count() or 1, len(found))
    act = partial(_answer, conf=conf, torch_version=torch_version, smallest=smallest)
    with Crew(width, executor) as crew:
        crew.run_all(act, list(found), done, _lost)
    runs, refused, unnamed = [], [], 0
    for number, (path, named) in enumerate(found.items()):
        answer = answers[path]
        if isinstance(answer, Refused):
            refused.append(answer)
            continue
        rank = named if answer.rank is None else answer.rank
        unnamed += rank is None
        runs.append(replace(answer, rank=number if rank is None else rank))
    if not runs:
        first = refused[0]
        why = first.error.removeprefix(f"{first.path}: ")
        raise RecordingError(first.path, f"{why}; no recording can be read")
    if not mixed:
        _refuse_strangers(runs)
    _refuse_twins(runs)
    notes = []
    if unnamed:
        notes.append("neither files nor names have ranks; files are numbered by name")
    if any(run.is_state for run in runs):
        notes.append("some files hold only a state: their figures are of that moment, not peaks")
    others = sum(run.is_as_recorded is False for run in runs)
    if others:
        notes.append(f"{others} of the replays differ from the recording; run allocsim replay")
    ordered = tuple(sorted(runs, key=lambda run: run.rank or 0))
    return Ranks(ordered, tuple(refused), conf, tuple(notes))


def _refuse_twins(runs: Sequence[RankRun]) -> None:
    known: dict[int | None, str] = {}
    for run in runs:
        if run.rank in known:
            what = f"has rank {run.rank}, as has {known[run.rank]}; expected one file per rank"
            raise RecordingError(run.path, what)
        known[run.rank] = run.path


def _refuse_strangers(runs: Sequence[RankRun]) -> None:
    unless = "to compare files of several jobs, use --mixed (mixed=True)"
    named = [run for run in runs if run.recorded_release]
    for run in named:
        if run.recorded_release != named[0].recorded_release:
            what = f"was recorded by PyTorch {run.recorded_release}, and {named[0].path} by PyTorch"
            raise RecordingError(run.path, f"{what} {named[0].recorded_release}; {unless}")
    timed = sorted((*run.times_us, run.path) for run in runs if run.times_us is not None)
    end, last = timed[0][1:] if timed else (0, "")
    for first, until, path in timed:
        if (gap := first - end) > _LONGEST_GAP_US:
            hours = f"{gap / _LONGEST_GAP_US:.1f} hours"
            raise RecordingError(path, f"begins {hours} after the end of {last}; {unless}")
        end, last = max((end, last), (until, path))


def _answer(
    path: str, *, conf: str | None, torch_version: str | None, smallest: bool
) -> RankRun | Refused:
    try:
        return run_of(path, conf, torch_version, smallest=smallest)
    except (AllocsimError, OSError, MemoryError) as error:
        return Refused(path, str(error) or type(error).__name__)


def _lost(path: str, error: BaseException) -> Refused:
    if isinstance(error, WorkerDiedError):
        return Refused(path, "the process that read it was killed, perhaps for lack of memory")
    return Refused(path, f"the worker that read it was lost ({error})")
