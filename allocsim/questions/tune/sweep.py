"""Jobs through an executor, their trials as they come.

Rules: every job ends in exactly one trial, whatever happens to its worker.  A pool that breaks
takes down every job under way in it, so those are run again, one at a time, on a new one: only the
job that kills its worker while alone has that for its trial.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import suppress
from multiprocessing import get_context
from typing import Any, Generic, TypeVar

from allocsim.engine import Trial
from allocsim.questions.tune.worker import Job, run_job

__all__ = ["Crew", "sweep"]

_PROCESSES_A_CORE = 4  # at most, of a pool of our own: more would only take memory
_WIDEST = 4096  # jobs handed to a caller's executor at once

_Found = TypeVar("_Found")

Done = Callable[[Job, Trial], None]
"""Called with each job and its trial, in the order in which they come."""


class Crew:
    """What runs the jobs: this process, a pool of `jobs` processes, or the caller's executor.

    A pool of our own is replaced when it breaks; a caller's executor stays the caller's.
    """

    def __init__(self, jobs: int = 1, executor: Executor | None = None) -> None:
        self._jobs = min(jobs, _PROCESSES_A_CORE * (os.cpu_count() or 1))
        self._given = executor
        self._context = get_context()
        self._pool: Executor | None = executor
        self.is_alone = executor is None and self._jobs <= 1
        """Whether jobs run in this process, one after the other."""
        self.inherits = self.is_alone or (
            executor is None and self._context.get_start_method() == "fork"
        )
        """Whether what this process keeps is there where the jobs run."""
        self._waiting: deque[_Beside[Any]] = deque()
        self.width = self._jobs + 1 if executor is None else _WIDEST
        """How many jobs to hand over at once: in a pool of our own one more than processes."""

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None and self._given is None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, act: Callable[[Job], _Found], job: Job) -> Future[_Found]:
        """Hand a job over, to be carried out by `act`."""
        if self._pool is not None:
            try:
                return self._pool.submit(act, job)
            except BrokenExecutor:
                if self._given is not None:
                    raise
                self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = ProcessPoolExecutor(self._jobs, self._context)
        return self._pool.submit(act, job)

    def beside(self, act: Callable[[Job], _Found], job: Job) -> Callable[[], _Found]:
        """Have a job carried out beside those of sweeps, one a sweep, whose own jobs go first.

        A call of what comes back gives what it found.  In this process, and only then, where there
        is no other, and where that one has died.
        """
        each = _Beside(self, act, job)
        self._waiting.append(each)
        return each.found

    def start_waiting(self) -> None:
        """Hand over one of those that are to be carried out beside other jobs."""
        if self._waiting:
            self._waiting.popleft().start()


class _Beside(Generic[_Found]):
    """A job beside the others."""

    def __init__(self, crew: Crew, act: Callable[[Job], _Found], job: Job) -> None:
        self._crew = crew
        self._act = act
        self._job = job
        self._under_way: Future[_Found] | None = None

    def start(self) -> None:
        if self._under_way is None and not self._crew.is_alone:
            with suppress(BrokenExecutor):
                self._under_way = self._crew.submit(self._act, self._job)

    def found(self) -> _Found:
        self.start()
        if self._under_way is None or self._under_way.exception() is not None:
            return self._act(self._job)
        return self._under_way.result()


def sweep(jobs: Sequence[Job], crew: Crew, done: Done) -> None:
    """Run every job and call `done` with each trial."""
    if crew.is_alone:
        for job in jobs:
            done(job, run_job(job))
        return
    _Sweep(crew, done).run(jobs)


class _Sweep:
    """Jobs under way, and the suspects: those that were under way when a worker died."""

    def __init__(self, crew: Crew, done: Done) -> None:
        self._crew = crew
        self._done = done
        self._under_way: dict[Future[Trial], Job] = {}
        self._suspects: deque[Job] = deque()
        self._alone: Job | None = None

    def run(self, jobs: Sequence[Job]) -> None:
        pending = deque(jobs)
        has_room = True
        while pending or self._under_way or self._suspects:
            while pending and len(self._under_way) < self._crew.width:
                self._submit(pending.popleft())
            if has_room and not pending:
                self._crew.start_waiting()
                has_room = False
            if not self._under_way and self._suspects:
                self._alone = self._suspects.popleft()
                self._submit(self._alone)
            finished, _ = wait(self._under_way, return_when=FIRST_COMPLETED)
            for future in finished:
                self._take(self._under_way.pop(future), future)

    def _submit(self, job: Job) -> None:
        try:
            self._under_way[self._crew.submit(run_job, job)] = job
        except BrokenExecutor as error:
            self._done(job, Trial(conf=job.setting.conf, error=f"the executor broke: {error}"))

    def _take(self, job: Job, future: Future[Trial]) -> None:
        error = future.exception()
        # The worker died, as the standard library's pools and Dask say it.
        is_death = isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"
        if error is None:
            self._done(job, future.result())
        elif not is_death:
            self._done(job, Trial(conf=job.setting.conf, error=f"{type(error).__name__}: {error}"))
        elif job is self._alone:
            self._done(job, Trial(conf=job.setting.conf, error="the worker died with it, twice"))
        else:
            self._suspects.append(job)
