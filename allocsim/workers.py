"""Run jobs in this process, in worker processes or on a caller's executor.

Every job gives one result.  When a worker dies, the pool's running jobs are run again one at a
time, and a job that kills its worker again is reported as lost.
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

_PROCESSES_A_CORE = 4  # most worker processes for each core; more would only take memory
_WIDEST = 4096  # largest number of jobs submitted at the same time to a caller's executor

_Job = TypeVar("_Job")
_Found = TypeVar("_Found")


class WorkerDiedError(Exception):
    """Error of a job whose worker process died while it ran no other job."""


class Crew:
    """Runner of jobs: this process, a pool of `jobs` processes, or the caller's `executor`.

    The pool is replaced if a process of it dies, and closed at the end.  A caller's executor is
    neither replaced nor closed.
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
        """True if jobs run in this process or its forks, which share the recordings it loaded."""
        self._waiting: deque[_BackgroundJob[Any]] = deque()
        self.width = self._jobs + 1 if executor is None else _WIDEST
        """Number of jobs to submit at the same time; one spare job keeps all processes busy."""

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None and self._given is None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, act: Callable[[_Job], _Found], job: _Job) -> Future[_Found]:
        # A pool whose worker died refuses jobs; a new pool replaces it.
        if self._pool is not None:
            try:
                return self._pool.submit(act, job)
            except BrokenExecutor:
                if self._given is not None:
                    raise
                self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = ProcessPoolExecutor(self._jobs, self._context)
        return self._pool.submit(act, job)

    def beside(self, act: Callable[[_Job], _Found], job: _Job) -> Callable[[], _Found]:
        """Run `act(job)` in the background; return a function that waits for its result.

        A worker process gets the job when the next `run_all` has handed out its own jobs, or when
        the returned function is called.  Without worker processes, or if the worker died, the
        returned function runs the job in this process.
        """
        each = _BackgroundJob(self, lambda: self.submit(act, job), lambda: act(job))
        self._waiting.append(each)
        return each.found

    def run_all(
        self,
        act: Callable[[_Job], _Found],
        jobs: Sequence[_Job],
        done: Callable[[_Job, _Found], object],
        lost: Callable[[_Job, BaseException], _Found],
    ) -> None:
        """Run `act(job)` for every job, and call `done` with each job and its result.

        lost: function from a job that failed, and its error, to a result of this job for `done`.
            The error is `WorkerDiedError` if the job killed its process.
        """
        if self.is_alone:
            for job in jobs:
                done(job, act(job))
            return
        running: dict[Future[_Found], _Job] = {}
        pending, suspects = deque(jobs), deque[_Job]()
        alone: _Job | None = None

        def submit(job: _Job) -> None:
            try:
                running[self.submit(act, job)] = job
            except BrokenExecutor as error:
                done(job, lost(job, error))

        has_room = True
        while pending or running or suspects:
            while pending and len(running) < self.width:
                submit(pending.popleft())
            if has_room and not pending:
                if self._waiting:
                    self._waiting.popleft().start()
                has_room = False
            if not running and suspects:
                alone = suspects.popleft()
                submit(alone)
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                job, error = running.pop(future), future.exception()
                # KilledWorker is Dask's exception for a dead worker; Dask is not imported here.
                is_death = isinstance(error, BrokenExecutor) or type(error).__name__ == (
                    "KilledWorker"
                )
                if error is None:
                    done(job, future.result())
                elif not is_death or job is alone:
                    done(job, lost(job, WorkerDiedError() if is_death else error))
                else:
                    suspects.append(job)


class _BackgroundJob(Generic[_Found]):
    def __init__(
        self, crew: Crew, submit: Callable[[], Future[_Found]], act: Callable[[], _Found]
    ) -> None:
        self._crew = crew
        self._submit = submit
        self._act = act
        self._running: Future[_Found] | None = None

    def start(self) -> None:
        if self._running is None and not self._crew.is_alone:
            with suppress(BrokenExecutor):
                self._running = self._submit()

    def found(self) -> _Found:
        self.start()
        if self._running is None or self._running.exception() is not None:
            return self._act()
        return self._running.result()
