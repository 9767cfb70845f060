"""Compare the model with real PyTorch on many random scripts.

Rule: the result depends on seed, releases and settings, and not on the number of processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Protocol

from allocsim.core import find_release
from allocsim.verify.comparison import Divergence, Real, judge, minimised
from allocsim.verify.generator import make_script
from allocsim.verify.real import RealAllocator
from allocsim.verify.script import Script
from allocsim.verify.tally import Tally

_BATCH = 10
"""Scripts that a process runs at once; they take about a second."""

Progress = Callable[[int, int], None]


class Source(Protocol):
    """Allocator of one release, and random scripts for it; must be picklable."""

    @property
    def release(self) -> str:
        """Release of PyTorch, such as "2.15"."""

    def open(self) -> Real:
        """Return the real allocator for this process."""

    def script(self, real: Real, seed: int) -> Script:
        """Return the script of `seed`."""


@dataclass(frozen=True, slots=True)
class WheelSource:
    """Source of real results: the allocator in a release's wheel.

    `python -m allocsim.phantom fetch` must have stored the wheel in allocsim's cache.
    """

    release: str

    def open(self) -> Real:
        return RealAllocator(self.release)

    def script(self, real: Real, seed: int) -> Script:  # noqa: ARG002
        return make_script(seed, find_release(self.release))


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """Options of a cross-check.

    sources: where real PyTorch is found, one for each release.
    seed: seed of the first script.
    ops: least number of ops to compare for each release.
    conf: conf of every script, which then has no op that changes settings; None for random confs.
    jobs: number of processes.
    """

    sources: tuple[Source, ...]
    seed: int = 0
    ops: int = 100_000
    conf: str | None = None
    jobs: int = 1


@dataclass(slots=True)
class Report:
    """Result of a cross-check.

    tally: counts of the compared ops.
    seeds: first and last seed, by release.
    divergence: first script on which the model differs, minimised; None if there is none.
    """

    tally: Tally = field(default_factory=Tally)
    seeds: dict[str, tuple[int, int]] = field(default_factory=dict)
    divergence: Divergence | None = None


def crosscheck(check: CrossCheck, progress: Progress | None = None) -> Report:
    """Run random scripts on the model and on real PyTorch, and compare the results.

    It ends when each release has run `check.ops` ops, or at the first difference.
    progress: called with the number of finished ops and of all ops.
    """
    report = Report()
    total = check.ops * len(check.sources)
    executor = ProcessPoolExecutor(check.jobs) if check.jobs > 1 else None
    with executor or nullcontext():
        for number, source in enumerate(check.sources, start=1):
            wanted = report.tally.ops + check.ops
            for batch in _batches(check, source, executor):
                report.tally += batch.tally
                report.seeds[source.release] = (check.seed, batch.last_seed)
                if progress is not None:
                    progress(min(report.tally.ops, number * check.ops), total)
                if batch.divergence is not None:
                    report.divergence = _made_short(source.open(), batch.divergence)
                    return report
                if report.tally.ops >= wanted:
                    break
    return report


@dataclass(frozen=True, slots=True)
class _Batch:
    tally: Tally
    last_seed: int
    divergence: Divergence | None


def _batches(check: CrossCheck, source: Source, executor: Executor | None) -> Iterator[_Batch]:
    """Yield the results of batches of scripts, in order of their seeds, without end."""
    seeds = count(check.seed, _BATCH)
    if executor is None:
        yield from (_run_batch(check, source, first) for first in seeds)
        return
    ahead: deque[Future[_Batch]] = deque()
    try:
        while True:
            # Batches are taken in order of their seeds, so the result does not depend on jobs.
            while len(ahead) < 2 * check.jobs:
                ahead.append(executor.submit(_run_batch, check, source, next(seeds)))
            yield ahead.popleft().result()
    finally:
        for future in ahead:
            future.cancel()


def _run_batch(check: CrossCheck, source: Source, first: int) -> _Batch:
    """Compare the scripts of `_BATCH` seeds from `first` on, up to the first that differs."""
    real, tally = source.open(), Tally()
    for seed in range(first, first + _BATCH):
        script = source.script(real, seed)
        if check.conf is not None:
            ops = [op for op in script.ops if op[0] != "c"]
            script = replace(script, ops=ops, conf=check.conf)
        verdict = judge(real, script)
        tally.add(verdict.script, source.release, verdict.addresses, verdict.end)
        if verdict.divergence is not None:
            return _Batch(tally, seed, verdict.divergence)
    return _Batch(tally, first + _BATCH - 1, None)


def _made_short(real: Real, found: Divergence) -> Divergence:
    return minimised(found, lambda script: judge(real, script).divergence)
