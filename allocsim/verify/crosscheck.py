"""Cross-check of the model with real PyTorch on many random scripts.

Rule: the result depends only on seed, releases and settings, not on the number of processes.
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
from allocsim.verify.divergence import Divergence, minimised
from allocsim.verify.generator import make_script
from allocsim.verify.judge import Real, judge
from allocsim.verify.real import RealAllocator
from allocsim.verify.script import Script
from allocsim.verify.tally import Tally

__all__ = ["Check", "Report", "Source", "WheelSource", "crosscheck"]

_BATCH = 10
"""Scripts per job, about a second of work."""

Progress = Callable[[int, int], None]


class Source(Protocol):
    """Source of scripts and of the allocator that runs them; picklable, one per release."""

    @property
    def release(self) -> str:
        """Release, such as "2.15"."""

    def open(self) -> Real:
        """Return the real allocator for this process."""

    def script(self, real: Real, seed: int) -> Script:
        """Return the script of `seed`."""


@dataclass(frozen=True, slots=True)
class WheelSource:
    """The c10 libraries of a release's wheel, from the cache."""

    release: str

    def open(self) -> Real:
        return RealAllocator(self.release)

    def script(self, real: Real, seed: int) -> Script:  # noqa: ARG002
        return make_script(seed, find_release(self.release))


@dataclass(frozen=True, slots=True)
class Check:
    """Options of a cross-check.

    ops: minimum number of ops for each release.
    conf: option string of every script, which then never changes at run time; None for random ones.
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

    seeds: first and last seed, by release.
    divergence: the first divergence, minimised; None for none.
    """

    tally: Tally = field(default_factory=Tally)
    seeds: dict[str, tuple[int, int]] = field(default_factory=dict)
    divergence: Divergence | None = None


def crosscheck(check: Check, progress: Progress | None = None) -> Report:
    """Run scripts until each release has run its ops, or until one diverges."""
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


def _batches(check: Check, source: Source, executor: Executor | None) -> Iterator[_Batch]:
    """Yield the batches of one release in order of their seeds, endlessly."""
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


def _run_batch(check: Check, source: Source, first: int) -> _Batch:
    """Run a batch of scripts, up to the first divergence."""
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
