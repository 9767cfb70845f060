"""Run jobs (replays of one setting) on an executor and report each trial when it is finished.

Every job gives exactly one trial, even if its worker process dies.  When a worker dies, all running
jobs of the pool are lost.  They are run again one at a time on a new pool, and a job that kills its
worker again gets a trial with an error.
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

from allocsim.analysis.tune.worker import Job, run_job
from allocsim.replaying import Trial

_PROCESSES_A_CORE = 4  # largest number of processes in our own pool; more would only take memory
_WIDEST = 4096  # largest number of jobs submitted at the same time to a caller's executor

_Found = TypeVar("_Found")

Done = Callable[[Job, Trial], None]
"""Callback that receives each job with its trial, in order of completion."""


class Crew:
    """Runner of jobs: this process, a pool of `jobs` processes, or the caller's `executor`.

    Our own pool is replaced when it breaks, and closed at the end.  A caller's executor is neither
    replaced nor closed.
    """

    def __init__(self, jobs: int = 1, executor: Executor | None = None) -> None:
        self._jobs = min(jobs, _PROCESSES_A_CORE * (os.cpu_count() or 1))
        self._given = executor
        self._context = get_context()
        self._pool: Executor | None = executor
        self.is_alone = executor is None and self._jobs <= 1
        """True if jobs run in this process, one after the other."""
        self.inherits = self.is_alone or (
            executor is None and self._context.get_start_method() == "fork"
        )
        """True if jobs can use the recordings that this process has loaded."""
        self._waiting: deque[_Beside[Any]] = deque()
        self.width = self._jobs + 1 if executor is None else _WIDEST
        """Number of jobs to submit at the same time; one spare job keeps all processes busy."""

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None and self._given is None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, act: Callable[[Job], _Found], job: Job) -> Future[_Found]:
        """Submit `act(job)`, to a new pool if our own pool is broken."""
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
        """Queue `act(job)` in the background and return a function that waits for its result.

        Each call of `sweep` starts one queued job after its own jobs.  If there are no other
        processes, or the worker died, the returned function runs the job in this process.
        """
        each = _Beside(self, act, job)
        self._waiting.append(each)
        return each.found

    def start_waiting(self) -> None:
        """Submit the next queued background job."""
        if self._waiting:
            self._waiting.popleft().start()


class _Beside(Generic[_Found]):
    """Background job with a function that starts it; it is started at most once."""

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
    """Run every job and call `done` with the job and its trial."""
    if crew.is_alone:
        for job in jobs:
            done(job, run_job(job))
        return
    _Sweep(crew, done).run(jobs)


class _Sweep:
    """Jobs of one call of `sweep`, running in worker processes.

    Jobs that were running when a worker died are run again one at a time.
    """

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
        # KilledWorker is Dask's exception for a dead worker; Dask is not imported here.
        is_death = isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"
        if error is None:
            self._done(job, future.result())
        elif not is_death:
            self._done(job, Trial(conf=job.setting.conf, error=f"{type(error).__name__}: {error}"))
        elif job is self._alone:
            self._done(job, Trial(conf=job.setting.conf, error="its worker process died twice"))
        else:
            self._suspects.append(job)
