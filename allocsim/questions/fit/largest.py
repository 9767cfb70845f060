"""The largest batch, sequence, image or prompt of a task that fits a card.

Rule: what is said to fit has run, and so has the next larger, which does not; more of a size is
taken never to fit where less did not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import ConfigError
from allocsim.phantom import Gpu
from allocsim.questions.fit.answering import runner_for
from allocsim.questions.fit.notes import notes_of_law, release_note
from allocsim.questions.fit.ran import Ran
from allocsim.questions.fit.task import Task, most_of
from allocsim.trace import write_snapshot
from allocsim.units import TIB

__all__ = ["SIZES", "Fewest", "Largest", "Tried", "fewest", "largest"]

SIZES = ("batch", "seq", "image", "prompt", "decode", "accumulate", "lora")
"""What can be looked for."""
_MOST = 1 << 20
_MOST_RANKS = 1024
_FURTHER = 4
"""How many times further to look where nothing has failed yet."""
_PARTS = 128
"""Parts of a run that are compared with those of another."""
_ALIKE = 0.95
"""The least share of requests that two runs of one program have in common."""
_AT_ONCE = 2
"""Programs run side by side: each takes a processor."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A value that was run: the peak of reserved memory, up to the error if it does not fit."""

    value: int
    fits: bool
    peak_reserved_bytes: int
    is_limited: bool


@dataclass(frozen=True, slots=True, eq=False)
class Largest:
    """The answer.

    fitting: the run at the largest value that fits, None if not even 1 does.
    value: it, 0 for none.  failing: the run at the next value, None if the model
    has no positions for it.  step: what values are multiples of.
    tried: every run, in order.  notes: what is not known, in sentences.
    """

    name: str
    value: int
    step: int
    fitting: Ran | None
    failing: Ran | None
    tried: tuple[Tried, ...]
    notes: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        """What answered."""
        run = self.fitting or self.failing
        return "program" if run is None else run.engine


def largest(
    task: Task,
    name: str,
    gpu: Gpu,
    *,
    step: int = 1,
    first: int | None = None,
    engine: str = "auto",
    conf: str | None = None,
    python: str | None = None,
    torch_version: str | None = None,
    transformers: str | None = None,
    keep: Path | None = None,
    watch: Callable[[str], object] | None = None,
) -> Largest:
    """The largest value of the size `name` at which `task` fits `gpu`.

    step: look among its multiples.  first: where to look first, if that is known; else two runs
    without a limit tell.  keep: a file for the recording at that value, if one fits.
    watch: called with each value before it is run.  The others are as of `fit`.
    Raises ConfigError for a size of another task, and if the memory does not grow with it.
    """
    run = runner_for(
        task,
        gpu,
        engine,
        conf=conf,
        python=python,
        torch_version=torch_version,
        transformers=transformers,
    )
    search = _Search(task, name, gpu, step, run)
    found = search.run(first, watch or (lambda _: None))
    _keep(found.fitting, keep)
    return replace(found, notes=_notes(torch_version, transformers, found.fitting or found.failing))


@dataclass(frozen=True, slots=True, eq=False)
class Fewest:
    """The fewest GPUs, a power of two, that share a task and have room for it.

    ranks: they, None if no number up to `_MOST_RANKS` does.  fitting: the run of their first rank.
    tried, notes: as of `Largest`.
    """

    ranks: int | None
    fitting: Ran | None
    tried: tuple[Tried, ...]
    notes: tuple[str, ...] = ()
    engine: str = "program"


def fewest(
    task: Task,
    gpu: Gpu,
    *,
    engine: str = "auto",
    conf: str | None = None,
    python: str | None = None,
    torch_version: str | None = None,
    transformers: str | None = None,
    keep: Path | None = None,
    watch: Callable[[str], object] | None = None,
) -> Fewest:
    """The fewest of `gpu` that train `task` by FSDP or DDP.

    Options are those of `largest`.  Each has a batch of the task's own; the rank that is run is
    the first, which has as much as any.
    """
    tried = list[Tried]()
    run = runner_for(
        task,
        gpu,
        engine,
        conf=conf,
        python=python,
        torch_version=torch_version,
        transformers=transformers,
    )
    notes: tuple[str, ...] = ()
    ranks = 2
    while ranks <= _MOST_RANKS:
        pair = [ranks, 2 * ranks]
        if watch is not None:
            watch(f"{ranks} and {2 * ranks} GPUs")
        shared = [replace(task, ranks=each, rank=0) for each in pair]
        runs = dict(zip(pair, _side_by_side(run, shared, gpu), strict=True))
        tried += [_tried(n, ran, is_limited=True) for n, ran in runs.items()]
        notes = _notes(torch_version, transformers, runs[ranks])
        for n, ran in runs.items():
            if not ran.is_out_of_memory:
                _keep(ran, keep)
                return Fewest(n, ran, tuple(tried), notes)
        ranks *= 4
    return Fewest(None, None, tuple(tried), notes)


_Run = Callable[[Task, Gpu], Ran]
"""How a task is run on a card."""


def _keep(ran: Ran | None, keep: Path | None) -> None:
    """Write the recording of what was found to `keep`."""
    if ran is not None and keep is not None:
        write_snapshot(ran.recording, keep)


def _notes(torch_version: str | None, transformers: str | None, ran: Ran | None) -> tuple[str, ...]:
    """Whether another release ran than was asked for, or a law."""
    if ran is None:
        return ()
    return (*release_note(torch_version, ran.torch_version), *notes_of_law(ran, transformers))


def _side_by_side(run: _Run, tasks: Sequence[Task], gpu: Gpu) -> list[Ran]:
    """The runs of tasks, a few at a time."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(run, tasks, [gpu] * len(tasks)))


def _tried(value: int, ran: Ran, *, is_limited: bool) -> Tried:
    return Tried(value, not ran.is_out_of_memory, ran.peak_reserved_bytes, is_limited)


def full_at(runs: Mapping[int, Ran], room: int) -> int | None:
    """About the largest n at which a program takes no more than `room`, by its runs at two.

    Each part of the program has a line of its own: the fullest one at a small batch, where the
    optimizer is, is seldom that at a large one.  None where no part grows, or the runs are of
    different lengths, so that their parts are not the same.
    """
    (n_near, near), (n_far, far) = runs.items()
    lengths = [len(ran.device_run.timeline.entry) for ran in runs.values()]
    if min(lengths) < _ALIKE * max(lengths):
        return None
    first, second = _parts(near), _parts(far)
    slope = (second - first) / (n_far - n_near)
    grows = slope > 0
    if not grows.any():
        return None
    # What is reserved beyond what is allocated is taken to grow alike.
    allocated = room * far.peak_allocated_bytes / far.peak_reserved_bytes
    until = n_near + (allocated - first[grows]) / slope[grows]
    return max(int(until.min()), 1)


def _parts(ran: Ran) -> NDArray[np.int64]:
    """The most that is allocated in each of `_PARTS` parts of a run, the parts beside it included:
    runs at two sizes make nearly, not always exactly, as many requests."""
    allocated = ran.device_run.timeline.allocated
    starts = np.linspace(0, len(allocated), _PARTS, endpoint=False).astype(np.int64)
    most = np.maximum.reduceat(allocated, starts)
    beside = np.pad(most, 1, mode="edge")
    widened: NDArray[np.int64] = np.maximum(np.maximum(beside[:-2], beside[2:]), most)
    return widened


class _Search:
    """Runs two values at a time: where a line through what is known meets the card's memory."""

    def __init__(self, task: Task, name: str, gpu: Gpu, step: int, run: _Run) -> None:
        self.task, self.name, self.gpu, self.step, self.run_on = task, name, gpu, step, run
        self.bound = min(most_of(task, name), _MOST) // step
        self.runs: dict[int, Ran] = {}
        self.peaks: dict[int, int] = {}
        self.tried: list[Tried] = []
        self.is_near = True

    def run(self, first: int | None, watch: Callable[[str], object]) -> Largest:
        if first is None:
            endless = replace(self.gpu, memory=TIB, context_memory=0)
            # Of 1 PyTorch makes views where it copies of more.
            least = min(max(getattr(self.task, self.name) // self.step, 2), self.bound)
            pair = list(dict.fromkeys((least, min(2 * least, self.bound))))
            runs = self._try(pair, endless, watch)
            by_moments = full_at(runs, self.gpu.room) if len(runs) > 1 else None
            guess = min(by_moments or self._guessed(), self.bound - 1) or 1
        else:
            guess = max(min(first // self.step, self.bound), 1)
        low, high = 0, self.bound + 1
        pair = [guess, guess + 1]
        while True:
            self._try(
                [n for n in dict.fromkeys(pair) if n not in self.runs and n <= self.bound],
                self.gpu,
                watch,
            )
            fitting = [n for n, ran in self.runs.items() if not ran.is_out_of_memory]
            low = max(fitting, default=0)
            high = min((n for n, ran in self.runs.items() if ran.is_out_of_memory), default=high)
            if high - low <= 1:
                break
            pair = self._next(low, high)
        if high not in self.runs and self.bound == _MOST // self.step:
            raise ConfigError(
                f"{self.name} makes no difference to the memory: {low * self.step:,} fits as well"
            )
        return Largest(
            name=self.name,
            value=low * self.step,
            step=self.step,
            fitting=self.runs.get(low),
            failing=self.runs.get(high),
            tried=tuple(self.tried),
        )

    def _try(
        self, values: Sequence[int], gpu: Gpu, watch: Callable[[str], object]
    ) -> dict[int, Ran]:
        """Run the values on `gpu`, side by side."""
        for n in values:
            watch(f"{self.name}={n * self.step}")
        tasks = [self.task.at(self.name, n * self.step) for n in values]
        is_limited = gpu is self.gpu
        runs = dict(zip(values, _side_by_side(self.run_on, tasks, gpu), strict=True))
        for n, ran in runs.items():
            # What stays below the limit is the same run with and without one.
            if is_limited or ran.peak_reserved_bytes <= self.gpu.room:
                self.runs[n] = ran
            if not ran.is_out_of_memory:
                self.peaks[n] = ran.peak_reserved_bytes
            self.tried.append(_tried(n * self.step, ran, is_limited=is_limited))
        return runs

    def _guessed(self) -> int:
        """Where the card is full, if the peak grows evenly; 1 at least."""
        if len(self.peaks) < 2:
            return 1
        *_, near, far = sorted(self.peaks)
        growth = (self.peaks[far] - self.peaks[near]) / (far - near)
        if growth <= 0:
            return min(_FURTHER * far, self.bound - 1)
        guess = int(near + (self.gpu.room - self.peaks[near]) / growth)
        return min(max(guess, 1), max(self.bound - 1, 1))

    def _next(self, low: int, high: int) -> list[int]:
        """Two values between one that fits and one that does not: by the line, else by thirds.

        The first guess is taken to have missed by little, once.
        """
        inner, guess = high - low - 1, self._guessed()
        is_near, self.is_near = self.is_near, False
        if high not in self.runs:
            value = max(guess, low + 1 if is_near else _FURTHER * low)
            value = min(value, high - 1)
            return [value, min(value + 1, high - 1)]
        if is_near and low not in self.runs and not self.peaks:
            return [max(high - 2, 1), high - 1]
        if inner <= _AT_ONCE:
            return list(range(low + 1, high))
        if low < guess < high - 1 and not {guess, guess + 1} & self.runs.keys():
            return [guess, guess + 1]
        return [low + 1 + inner // 3, low + 1 + 2 * inner // 3]
