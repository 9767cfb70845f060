"""Search for the largest batch, sequence, image or prompt with which a task fits a card.

The task is run at the reported value, where it fits, and at the next larger value, where it does
not.  The search assumes that a value does not fit if a smaller one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import ConfigError
from allocsim.fitting.by_engine import AT_ONCE, RunOptions, runner_for
from allocsim.fitting.by_formula import Estimate
from allocsim.fitting.notes import notes_of_search
from allocsim.fitting.run_result import Ran
from allocsim.fitting.task import Task, most_of, usual_values
from allocsim.phantom import Gpu
from allocsim.recording import write_snapshot
from allocsim.units import TIB

SIZES = ("batch", "seq", "image", "prompt", "decode", "accumulate", "lora")
_MOST = 1 << 20
_RANKS = (2, 8, 32, 128, 512)
"""Numbers of GPUs that are tried; each is run at the same time as twice this number."""
_GROWTH = 4
"""Factor between successive values that are tried, as long as all of them fit."""
_PARTS = 128
"""Number of equal parts of a run; the peak of each part is extrapolated from runs at two sizes."""
_ALIKE = 0.95
"""Least ratio of two runs' numbers of allocator calls; `full_at` extrapolates only above it."""


Watch = Callable[[str], object]
"""Function that is called with a text such as "batch=8" before each run, to show progress."""


@dataclass(frozen=True, slots=True)
class TriedSize:
    """Result of a run with one value of the size that is searched for.

    peak_reserved_bytes: peak of reserved memory, up to the error if the value does not fit.
    is_limited: True if the run had the memory of the card, False if it had unlimited memory.
    """

    value: int
    fits: bool
    peak_reserved_bytes: int
    is_limited: bool


@dataclass(frozen=True, slots=True, eq=False)
class Largest:
    """Largest value of a size, such as the batch, with which a task fits a card.

    name: name of the size, one of `SIZES`.
    value: largest value that fits, 0 if not even `step` fits.
    step: only multiples of `step` are tried.
    fitting: run at `value`, or None if no value fits.
    failing: run at the next multiple of `step`; None if the model cannot have so large a size.
    tried: results of all runs, in order.
    notes: limits of the answer, one sentence each.
    """

    name: str
    value: int
    step: int
    fitting: Ran | Estimate | None
    failing: Ran | Estimate | None
    tried: tuple[TriedSize, ...]
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.fitting is not None

    @property
    def engine(self) -> str:
        run = self.fitting or self.failing
        return "program" if run is None else run.engine


def largest(
    task: Task,
    name: str,
    gpu: Gpu,
    *,
    step: int = 1,
    first: int | None = None,
    keep: Path | None = None,
    watch: Watch = lambda _: None,
    **how: Unpack[RunOptions],
) -> Largest:
    """Find the largest value of the size `name`, such as "batch", at which `task` fits `gpu`.

    step: only multiples of `step` are tried.
    first: value to try first; default: estimated from two runs without a memory limit.
    keep: file for the recording at the largest value, if one fits.

    The other arguments are those of `fit`. Raises ConfigError for a size that the task does not
    have, and if memory does not grow with the size.
    """
    run = runner_for(task, gpu, **how)
    search = _Search(task, name, gpu, step, run)
    found = search.run(first, watch)
    _keep(found.fitting, keep)
    return replace(found, notes=_notes(found.fitting or found.failing, task, gpu, how))


@dataclass(frozen=True, slots=True, eq=False)
class Fewest:
    """Fewest GPUs, a power of two, on which training with FSDP or DDP fits.

    ranks: number of GPUs, None if not even 1,024 suffice.
    fitting: run of the first rank on `ranks` GPUs, or None.
    tried: results of all runs, in order, where the value is the number of GPUs.
    notes: limits of the answer, one sentence each.
    """

    ranks: int | None
    fitting: Ran | Estimate | None
    tried: tuple[TriedSize, ...]
    notes: tuple[str, ...] = ()
    engine: str = "program"

    @property
    def fits(self) -> bool:
        return self.fitting is not None


def fewest(
    task: Task,
    gpu: Gpu,
    *,
    keep: Path | None = None,
    watch: Watch = lambda _: None,
    **how: Unpack[RunOptions],
) -> Fewest:
    """Find the fewest GPUs like `gpu` that train `task` with FSDP or DDP.

    Each GPU has the task's batch. Only the first rank is run, because no rank needs more memory.
    The arguments are those of `largest`.
    """
    tried, run = list[TriedSize](), runner_for(task, gpu, **how)
    for ranks in _RANKS:
        pair = [ranks, 2 * ranks]
        watch(f"{ranks} and {2 * ranks} GPUs")
        shared = [replace(task, ranks=each, rank=0) for each in pair]
        runs = dict(zip(pair, _side_by_side(run, shared, gpu), strict=True))
        tried += [_tried(n, ran, is_limited=True) for n, ran in runs.items()]
        notes, engine = _notes(runs[ranks], task, gpu, how), runs[ranks].engine
        for n, ran in runs.items():
            if not ran.is_out_of_memory:
                _keep(ran, keep)
                return Fewest(n, ran, tuple(tried), notes, engine)
    return Fewest(None, None, tuple(tried), notes, engine)


_Run = Callable[[Task, Gpu], Ran | Estimate]


def _keep(ran: Ran | Estimate | None, keep: Path | None) -> None:
    if keep is None or ran is None:
        return
    if isinstance(ran, Estimate):
        raise ConfigError("a formula makes no recording to keep; it needs a program or a law")
    write_snapshot(ran.recording, keep)


def _notes(ran: Ran | Estimate | None, task: Task, gpu: Gpu, how: RunOptions) -> tuple[str, ...]:
    if ran is None:
        return ()
    if isinstance(ran, Estimate):
        return (*ran.notes, *filter(None, [ran.reason]))
    releases = how.get("torch_version"), how.get("transformers")
    return tuple(notes_of_search(ran, task, gpu, *releases))


def _side_by_side(run: _Run, tasks: Sequence[Task], gpu: Gpu) -> list[Ran | Estimate]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(run, tasks, [gpu] * len(tasks)))


def _tried(value: int, ran: Ran | Estimate, *, is_limited: bool) -> TriedSize:
    return TriedSize(value, not ran.is_out_of_memory, ran.peak_reserved_bytes, is_limited)


def full_at(runs: Mapping[int, Ran], room: int) -> int | None:
    """Estimate the largest value of a size, such as the batch, that fits in `room` bytes.

    runs: dictionary from two values of the size to a run with each; their peaks are extrapolated.

    Return None if memory does not grow with the size, or if the numbers of allocator calls of both
    runs differ too much.
    """
    # Memory of each part grows linearly, at its own rate; the first line to reach the limit
    # decides. At a small batch the fullest part is the optimizer; at a large one usually another.
    (n_near, near), (n_far, far) = runs.items()
    lengths = [len(ran.device_run.timeline.entry) for ran in runs.values()]
    if min(lengths) < _ALIKE * max(lengths):
        return None
    first, second = _peaks_of_parts(near), _peaks_of_parts(far)
    slope = (second - first) / (n_far - n_near)
    grows = slope > 0
    if not grows.any():
        return None
    # Assumes that reserved memory grows in proportion to allocated memory.
    allocated = room * far.peak_allocated_bytes / far.peak_reserved_bytes
    until = n_near + (allocated - first[grows]) / slope[grows]
    return max(int(until.min()), 1)


def _peaks_of_parts(ran: Ran) -> NDArray[np.int64]:
    # Each part has the peak of its neighbours, too: runs at two sizes make nearly, not exactly, the
    # same number of requests, so that a peak may be in the next part.
    allocated = ran.device_run.timeline.allocated
    starts = np.linspace(0, len(allocated), _PARTS, endpoint=False).astype(np.int64)
    most = np.maximum.reduceat(allocated, starts)
    beside = np.pad(most, 1, mode="edge")
    widened: NDArray[np.int64] = np.maximum.reduce([beside[:-2], beside[1:-1], beside[2:]])
    return widened


class _Search:
    """Search for the largest value of a size, such as the batch, with which a task fits a card."""

    def __init__(self, task: Task, name: str, gpu: Gpu, step: int, run: _Run) -> None:
        self.task, self.name, self.gpu, self.step, self.run_on = task, name, gpu, step, run
        self.bound = min(most_of(task, name), _MOST) // step
        self.runs: dict[int, Ran | Estimate] = {}
        self.peaks: dict[int, int] = {}
        self.tried: list[TriedSize] = []
        self.is_first = True

    def run(self, first: int | None, watch: Watch) -> Largest:
        if first is None:
            endless = replace(self.gpu, memory=TIB, context_memory=0)
            # Size 1 gives views where larger sizes are copied, so its peak predicts nothing.
            least = min(max(getattr(self.task, self.name) // self.step, 2), self.bound)
            pair = list(dict.fromkeys((least, min(2 * least, self.bound))))
            runs = self._try(pair, endless, watch)
            timed = {n: ran for n, ran in runs.items() if isinstance(ran, Ran)}
            by_parts = full_at(timed, self.gpu.room) if len(timed) > 1 else None
            guess = min(by_parts or self._predicted_linearly(), self.bound - 1) or 1
        else:
            guess = max(min(first // self.step, self.bound), 1)
        pair, high = [guess, guess + 1], self.bound + 1
        while True:
            untried = [n for n in dict.fromkeys(pair) if n not in self.runs and n <= self.bound]
            self._try(untried, self.gpu, watch)
            fitting = [n for n, ran in self.runs.items() if not ran.is_out_of_memory]
            low = max(fitting, default=0)
            high = min((n for n, ran in self.runs.items() if ran.is_out_of_memory), default=high)
            if high - low <= 1:
                break
            pair = self._next(low, high)
        # At the model's own bound nothing larger exists; at the search limit memory never grew.
        if high not in self.runs and self.bound == _MOST // self.step:
            raise ConfigError(
                f"{self.name} makes no difference to the memory: {low * self.step:,} fits as well"
            )
        ends = self.runs.get(low), self.runs.get(high)
        return Largest(self.name, low * self.step, self.step, *ends, tuple(self.tried))

    def _try(self, values: Sequence[int], gpu: Gpu, watch: Watch) -> dict[int, Ran | Estimate]:
        for n in values:
            watch(f"{self.name}={n * self.step}")
        tasks = [self.task.at(self.name, n * self.step) for n in values]
        is_limited = gpu is self.gpu
        runs = dict(zip(values, _side_by_side(self.run_on, tasks, gpu), strict=True))
        for n, ran in runs.items():
            # A run that stays below the limit is the same with and without a limit.
            if is_limited or ran.peak_reserved_bytes <= self.gpu.room:
                self.runs[n] = ran
            if not ran.is_out_of_memory:
                self.peaks[n] = ran.peak_reserved_bytes
            self.tried.append(_tried(n * self.step, ran, is_limited=is_limited))
        return runs

    def _predicted_linearly(self) -> int:
        if len(self.peaks) < 2:
            return 1
        *_, near, far = sorted(self.peaks)
        growth = (self.peaks[far] - self.peaks[near]) / (far - near)
        if growth <= 0:
            return min(_GROWTH * far, self.bound - 1)
        guess = int(near + (self.gpu.room - self.peaks[near]) / growth)
        return min(max(guess, 1), max(self.bound - 1, 1))

    def _next(self, low: int, high: int) -> list[int]:
        inner, guess = high - low - 1, self._predicted_linearly()
        is_first, self.is_first = self.is_first, False
        # Nothing has failed yet: go up, in growing steps once the first guess has been too low.
        if high not in self.runs:
            value = max(guess, low + 1 if is_first else _GROWTH * low)
            value = min(value, high - 1)
            return [value, min(value + 1, high - 1)]
        # Nothing fits and no peak is known, so there is no line to follow.
        if is_first and low not in self.runs and not self.peaks:
            return [max(high - 2, 1), high - 1]
        if inner <= AT_ONCE:
            return list(range(low + 1, high))
        if low < guess < high - 1 and not {guess, guess + 1} & self.runs.keys():
            return [guess, guess + 1]
        return [low + 1 + inner // 3, low + 1 + 2 * inner // 3]


_POWERS = {"batch": 1, "seq": 1, "prompt": 1, "image": 2}
"""Exponent of each size in the product of two sizes, such as batch * image ** 2.

Memory is assumed to grow linearly with this product, so that a line through the peaks of earlier
runs gives a first guess of the largest value.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Largest value of one size that fits a card, at several values of another size.

    name: size that was searched for, such as "batch".
    other: size whose values were given, such as "seq".
    rows: values of `other`, ascending, each with the largest value of `name`.
    """

    name: str
    other: str
    rows: tuple[tuple[int, Largest], ...]

    @property
    def fits(self) -> bool:
        """True if a value of `name` fits at any value of `other`."""
        return any(found.fitting is not None for _, found in self.rows)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for _, found in self.rows for note in found.notes))


def frontier(
    task: Task,
    name: str,
    other: str,
    gpu: Gpu,
    *,
    values: Sequence[int] = (),
    step: int = 1,
    watch: Watch = lambda _: None,
    **how: Unpack[RunOptions],
) -> Frontier:
    """Find the largest value of the size `name` that fits `gpu`, for each value of `other`.

    values: values of `other`; default: the task's, half of it, and twice it.

    The other arguments and errors are those of `largest`.
    """
    if name == other or not {name, other} <= set(SIZES):
        raise ConfigError(f"{name} and {other}: expected two of {', '.join(SIZES)}")
    rows: list[tuple[int, Largest]] = []
    for value in sorted(set(values or usual_values(task, other))):
        at = f"{other}={value}"
        found = largest(
            task.at(other, value),
            name,
            gpu,
            step=step,
            first=_first_guess(name, other, rows, value, gpu),
            watch=lambda what, at=at: watch(f"{what}, {at}"),  # type: ignore[misc]
            **how,
        )
        rows.append((value, found))
    return Frontier(name, other, tuple(rows))


def _first_guess(
    name: str, other: str, rows: Sequence[tuple[int, Largest]], value: int, gpu: Gpu
) -> int | None:
    if "batch" not in (name, other) or not {name, other} <= _POWERS.keys():
        return max(rows[-1][1].value, 1) if rows else None
    power, other_power = _POWERS[name], _POWERS[other]
    # Runs of all earlier rows are points on one line: peak over the product of both sizes.
    peaks = {
        each.value**power * at**other_power: each.peak_reserved_bytes
        for at, found in rows
        for each in found.tried
        if each.fits
    }
    near, far = min(peaks, default=0), max(peaks, default=0)
    if far == near or peaks[far] <= peaks[near]:
        return None
    room = (gpu.room - peaks[near]) / (peaks[far] - peaks[near]) * (far - near) + near
    return int(max(room / value**other_power, 1.0) ** (1 / power))
