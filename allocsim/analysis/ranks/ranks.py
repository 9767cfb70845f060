"""Replay all ranks of a distributed job and compare their memory.

The rank with the most reserved memory decides which device the job needs.  A file that cannot be
read is reported with its error, and the other files are replayed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from statistics import fmean, median_low

from allocsim._repr import Shown
from allocsim.analysis.ranks.rank_run import Found, RankRun, found_in, run_of
from allocsim.errors import AllocsimError, RecordingError
from allocsim.units import format_size

Watch = Callable[[int, int], object]
"""Callback with the number of finished files and the number of all files."""

_ALONE = 2
"""Largest number of files that are read in this process; starting more would take longer."""

_LONGEST_GAP_US = 3600 * 1_000_000
"""Longest time between the entries of two ranks of one job; their histories may be short."""

_SHOWN = 10
"""Number of rows in the table of a notebook."""


@dataclass(frozen=True, slots=True)
class Refused:
    """File that could not be replayed, with the error."""

    path: str
    error: str


@dataclass(frozen=True, slots=True, repr=False)
class Ranks(Shown):
    """Results of all ranks.

    runs: result of each rank, ordered by rank.
    refused: files that could not be replayed.
    conf: setting of all ranks; None for the recorded settings.
    notes: sentences about what was inferred, not recorded.
    """

    runs: tuple[RankRun, ...]
    refused: tuple[Refused, ...]
    conf: str | None
    notes: tuple[str, ...]

    @property
    def decides(self) -> RankRun:
        """Rank with the most reserved memory; of equal ranks, the first."""
        return max(self.runs, key=lambda run: run.reserved_bytes)

    @property
    def least(self) -> RankRun:
        """Rank with the least reserved memory."""
        return min(self.runs, key=lambda run: run.reserved_bytes)

    @property
    def median_bytes(self) -> int:
        """Median of the peak reserved bytes."""
        return median_low(run.reserved_bytes for run in self.runs)

    @property
    def imbalance(self) -> float:
        """Largest peak reserved memory divided by the mean over all ranks; 1 if all are equal."""
        return _imbalance([run.reserved_bytes for run in self.runs])

    @property
    def allocated_imbalance(self) -> float:
        """Largest peak allocated memory divided by the mean over all ranks.

        It does not include memory that only the allocator reserves.
        """
        return _imbalance([run.allocated_bytes for run in self.runs])

    @property
    def failed(self) -> tuple[RankRun, ...]:
        """Ranks that ran out of memory."""
        return tuple(run for run in self.runs if run.ooms)

    @property
    def smallest_device(self) -> int | None:
        """Memory in bytes of the smallest device that suffices for every rank; None if unknown."""
        sizes = [run.smallest_device for run in self.runs]
        return None if None in sizes else max(size or 0 for size in sizes)

    def headline(self) -> str:
        """Return the number of ranks and the largest rank in one line."""
        first = self.decides
        more = (
            f"rank {first.rank} decides: {format_size(first.reserved_bytes)} reserved at the peak"
        )
        return f"{len(self.runs)} ranks; {more}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Yield (rank, peak reserved memory) of the largest ranks."""
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

    names: paths of files, and of folders with recordings.
    conf: PYTORCH_CUDA_ALLOC_CONF for all ranks; None for the recorded value of each rank.
    torch_version: release to model; None for the recorded release.
    smallest: also find the smallest device of each rank, which takes about ten replays.
    mixed: accept files that cannot be of one job.
    jobs: number of processes; None for one per core.
    executor: executor for the replays instead of processes; its workers must be able to read the
        files.
    watch: progress callback.
    Raises RecordingError if no file can be read, if two files have the same rank, or if files
    differ in their release or were recorded more than an hour apart, unless `mixed`.
    """
    found = found_in(names)
    width = min(jobs or os.cpu_count() or 1, len(found))
    asked = partial(_answer, conf=conf, torch_version=torch_version, smallest=smallest)
    if executor is not None:
        answers = _elsewhere(found, asked, executor, watch)
    elif width <= 1 or len(found) <= _ALONE:
        answers = _one_by_one(found, asked, watch)
    else:
        answers = _side_by_side(found, asked, width, watch)
    runs, refused, unnamed = [], [], 0
    for number, (each, answer) in enumerate(zip(found, answers, strict=True)):
        if isinstance(answer, Refused):
            refused.append(answer)
            continue
        rank = next((rank for rank in (answer.rank, each.rank) if rank is not None), None)
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
    """Raise RecordingError if two files cannot be of one job."""
    unless = "to compare files of several jobs, use --mixed (mixed=True)"
    named = [run for run in runs if run.origin.release]
    for run in named:
        if run.origin.release != named[0].origin.release:
            what = f"was recorded by PyTorch {run.origin.release}, and {named[0].path} by PyTorch "
            raise RecordingError(run.path, f"{what}{named[0].origin.release}; {unless}")
    timed = sorted((run.origin.first_us, run.origin.last_us or 0, run.path) for run in runs
                   if run.origin.first_us is not None)  # fmt: skip
    end, last = timed[0][1:] if timed else (0, "")
    for first, until, path in timed:
        if (gap := (first or 0) - end) > _LONGEST_GAP_US:
            hours = f"{gap / _LONGEST_GAP_US:.1f} hours"
            raise RecordingError(path, f"begins {hours} after the end of {last}; {unless}")
        end, last = max((end, last), (until, path))


_Answer = Callable[[str], RankRun | Refused]
"""Function that replays one file."""


def _answer(
    path: str, *, conf: str | None, torch_version: str | None, smallest: bool
) -> RankRun | Refused:
    try:
        return run_of(path, conf, torch_version, smallest=smallest)
    except (AllocsimError, OSError, MemoryError) as error:
        return Refused(path, str(error) or type(error).__name__)


def _one_by_one(
    found: Sequence[Found], answer: _Answer, watch: Watch | None
) -> list[RankRun | Refused]:
    answers = []
    for each in found:
        answers.append(answer(each.path))
        if watch is not None:
            watch(len(answers), len(found))
    return answers


def _elsewhere(
    found: Sequence[Found], answer: _Answer, executor: Executor, watch: Watch | None
) -> list[RankRun | Refused]:
    """Replay the files on a caller's executor, which itself replaces workers that die."""
    under_way = [executor.submit(answer, each.path) for each in found]
    for done, _ in enumerate(as_completed(under_way), 1):
        if watch is not None:
            watch(done, len(found))
    answers = []
    for each, future in zip(found, under_way, strict=True):
        error = future.exception()
        lost = f"the worker that read it was lost ({error})"
        answers.append(future.result() if error is None else Refused(each.path, lost))
    return answers


def _side_by_side(
    found: Sequence[Found], answer: _Answer, width: int, watch: Watch | None
) -> list[RankRun | Refused]:
    """Replay the files in `width` processes; a file whose process dies is refused."""
    answers: dict[int, RankRun | Refused] = {}
    while left := [index for index in range(len(found)) if index not in answers]:
        under_way: dict[Future[RankRun | Refused], int] = {}
        waiting = iter(left)
        with suppress(BrokenExecutor), ProcessPoolExecutor(width) as pool:
            while len(answers) < len(found):
                for index in islice(waiting, 2 * width - len(under_way)):
                    under_way[pool.submit(answer, found[index].path)] = index
                finished, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in finished:
                    answers[under_way[future]] = future.result()
                    del under_way[future]
                if watch is not None:
                    watch(len(answers), len(found))
        # One of the running files killed its process.  Replay each file alone to find it.
        for index in under_way.values():
            answers[index] = _alone(found[index].path, answer)
    return [answers[index] for index in range(len(found))]


def _alone(path: str, answer: _Answer) -> RankRun | Refused:
    with ProcessPoolExecutor(1) as pool:
        try:
            return pool.submit(answer, path).result()
        except BrokenExecutor:
            return Refused(path, "the process that read it was killed, perhaps for lack of memory")
