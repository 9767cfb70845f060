"""Every job gives one trial, even if its worker dies, and no trial is computed twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from pathlib import Path
from typing import Any

import pytest

from allocsim import tune, workers
from allocsim.analysis.tune import target as part_module
from allocsim.analysis.tune import worker
from allocsim.analysis.tune.batches import lost_trial
from allocsim.analysis.tune.results import Results
from allocsim.analysis.tune.worker import MOST_KEPT, Job, run_job
from allocsim.errors import ConfigError
from allocsim.recording import Recording, load, write_npz
from allocsim.replaying import Trial
from allocsim.simulation import Setting
from allocsim.workers import Crew
from tests.tune.conftest import ragged

Write = Callable[..., Path]
POISON = "max_split_size_mb:66"


def jobs_on(path: Path | str, *confs: str) -> list[Job]:
    return [Job(f"0|0|{conf}", str(path), 0, "2.15", Setting(conf), None) for conf in confs]


def outcomes_of(
    jobs: list[Job], crew: Crew, act: Callable[[Job], Any] = run_job
) -> dict[str, Trial]:
    found: dict[str, Trial] = {}

    def done(job: Job, outcome: Trial) -> None:
        assert job.key not in found
        found[job.key] = outcome

    with crew:
        crew.run_all(act, jobs, done, lost_trial)
    return found


def deadly(job: Job) -> Trial:
    """Run a job, but kill the process for one setting."""
    if job.setting.conf == POISON:
        os.kill(os.getpid(), signal.SIGKILL)
    return run_job(job)


CONFS = ["", "expandable_segments:True", "max_split_size_mb:64", "large_segment_size_mb:64"]


@pytest.mark.parametrize("make", [lambda: ThreadPoolExecutor(3), lambda: ProcessPoolExecutor(2)])
def test_sweep_gives_equal_trials_on_any_executor(
    make: Callable[[], Executor], write: Write
) -> None:
    jobs = jobs_on(write(ragged(0)), *CONFS)
    alone = outcomes_of(jobs, Crew())
    with make() as executor:
        assert outcomes_of(jobs, Crew(executor=executor)) == alone
    assert outcomes_of(jobs, Crew(2)) == alone


def test_failed_job_gives_a_trial_with_its_error() -> None:
    found = outcomes_of(jobs_on("no/such/file.pickle", ""), Crew())
    assert "no/such/file.pickle" in (found["0|0|"].error or "")
    found = outcomes_of(jobs_on("no/such/file.pickle", ""), Crew(2))
    assert "no/such/file.pickle" in (found["0|0|"].error or "")


def test_job_that_kills_its_worker_loses_no_other_job(write: Write) -> None:
    """The pool breaks with all its jobs; all but the deadly one still give a trial."""
    jobs = jobs_on(write(ragged(0)), *CONFS[:2], POISON, *CONFS[2:])
    found = outcomes_of(jobs, Crew(2), deadly)
    assert len(found) == len(jobs)
    assert found[f"0|0|{POISON}"].error == "its worker process died twice"
    others = [job for job in jobs if job.setting.conf != POISON]
    assert {job.key: found[job.key] for job in others} == outcomes_of(others, Crew())


class Refusing(Executor):
    """Broken executor."""

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        raise BrokenExecutor("all workers are gone")


def test_sweep_reports_a_broken_executor_of_the_caller() -> None:
    found = outcomes_of(jobs_on("any", "", "x"), Crew(executor=Refusing()))
    assert {outcome.error for outcome in found.values()} == {
        "the executor broke: all workers are gone"
    }


def test_unexpected_error_of_a_job_becomes_a_trial() -> None:
    with ThreadPoolExecutor(1) as executor:
        found = outcomes_of(jobs_on("any", ""), Crew(executor=executor), unfit)
    assert found["0|0|"].error == "TypeError: no such job"


def unfit(_: Job) -> Trial:
    raise TypeError("no such job")


def where(_: Job) -> int:
    """Return the number of the process that runs the job."""
    return os.getpid()


def only_here(job: Job, here: int = os.getpid()) -> int:
    """Like `where`, but kill any process other than this one."""
    if os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return where(job)


def test_background_job_runs_in_another_process_if_possible() -> None:
    (job,) = jobs_on("any", "")
    with Crew(2) as crew:
        assert crew.beside(where, job)() != os.getpid()
    for crew in (Crew(), Crew(executor=Refusing())):
        with crew:
            assert crew.beside(where, job)() == os.getpid()


class AtOnce(Executor):
    """Executor that runs each submitted function at once; `acts` lists them."""

    def __init__(self) -> None:
        self.acts: list[str] = []

    def submit(self, act: Any, /, *args: Any, **_: Any) -> Future[Any]:
        self.acts.append(act.__name__)
        future: Future[Any] = Future()
        future.set_result(act(*args))
        return future


def test_background_job_is_submitted_after_the_jobs_of_a_sweep(write: Write) -> None:
    """Users wait for a sweep's jobs; one background job per sweep leaves room for the next."""
    executor = AtOnce()
    crew = Crew(executor=executor)
    first, second = jobs_on(write(ragged(0)), *CONFS[:2])
    found = [crew.beside(where, first) for _ in range(3)]
    for jobs in ([first, second], [first]):
        outcomes_of(jobs, crew)
    assert executor.acts == ["run_job", "run_job", "where", "run_job", "where"]
    assert [each() for each in found] == [os.getpid()] * 3
    assert executor.acts[5:] == ["where"]


@pytest.mark.skipif(sys.platform == "win32", reason="a process there is not killed by a signal")
def test_background_job_of_a_dead_worker_runs_in_this_process(write: Write) -> None:
    jobs = jobs_on(write(ragged(0)), *CONFS)
    with Crew(2) as crew:
        found = crew.beside(only_here, jobs[0])
        assert found() == os.getpid()
        # The pool broke, and the search continues with a new one.
        assert crew.beside(where, jobs[0])() != os.getpid()


# -- input of jobs ------------------------------------------------------------------------


def columns_written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    written: list[str] = []

    def noted(recording: Recording, path: Path) -> None:
        written.append(recording.path)
        write_npz(recording, path)

    monkeypatch.setattr(part_module, "write_npz", noted)
    return written


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_columns_are_written_for_processes_that_inherit_no_recording(
    method: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forked process inherits the recordings; other processes read columns, which is fast."""
    context = multiprocessing.get_context(method)
    monkeypatch.setattr(workers, "get_context", lambda: context)
    recording = load(write(ragged(0)))
    written = columns_written(monkeypatch)
    assert tune(recording, confs=CONFS, jobs=2).rows == tune(recording, confs=CONFS).rows
    assert written == [recording.path] * (method != "fork")


def test_columns_are_written_if_a_process_caches_fewer_recordings(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MOST_ENTRIES", 0)
    recordings = [load(write(ragged(0))) for _ in range(MOST_KEPT + 1)]
    written = columns_written(monkeypatch)
    tune(recordings[:-1], confs=[""])
    assert not written
    tune(recordings, confs=[""])
    assert len(written) == len(recordings)


# -- resuming ----------------------------------------------------------------------------


def figures(path: Path, results: Path, **options: Any) -> list[tuple[Any, ...]]:
    tuning = tune(path, "2GiB", results=results, **options)
    return [(row.setting, row.parts) for row in tuning.rows]


def test_a_killed_sweep_resumes_without_a_row_done_twice(write: Write, tmp_path: Path) -> None:
    path, results = write(ragged(1)), tmp_path / "results.jsonl"
    whole = figures(path, results)
    lines = results.read_bytes().splitlines(keepends=True)
    keys = [json.loads(line)["key"] for line in lines[1:]]
    assert len(keys) == len(set(keys))
    # Killed half-way, in the middle of a line.
    half = len(lines) // 2
    results.write_bytes(b"".join(lines[:half]) + lines[half][:20])
    tuning = tune(path, "2GiB", results=results)
    assert tuning.known == half - 1
    assert [(row.setting, row.parts) for row in tuning.rows] == whole
    assert sorted(results.read_bytes().splitlines(keepends=True)) == sorted(lines)
    assert tune(path, "2GiB", results=results).known == len(keys)


def test_results_are_the_same_with_more_processes(write: Write, tmp_path: Path) -> None:
    path = write(ragged(2))
    assert figures(path, tmp_path / "one.jsonl") == figures(path, tmp_path / "two.jsonl", jobs=2)


def test_stored_trial_that_ended_early_is_run_again_if_needed(write: Write, tmp_path: Path) -> None:
    path, results = write(ragged(1)), tmp_path / "results.jsonl"
    dropped = [row for row in tune(path, "2GiB", results=results).rows if row.dropped_at]
    conf = dropped[0].conf
    (row,) = [r for r in tune(path, "2GiB", results=results, confs=[conf]).rows if r.conf == conf]
    assert row.is_whole


def test_results_file_of_another_search_is_refused(write: Write, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    tune(write(ragged(1)), "2GiB", results=results, confs=[])
    with pytest.raises(ConfigError, match="results for device_memory"):
        tune(write(ragged(1)), "3GiB", results=results, confs=[])
    with pytest.raises(ConfigError, match="results for recordings"):
        tune(write(ragged(2), name="other.pickle"), "2GiB", results=results, confs=[])


def test_results_file_of_another_kind_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("years of work\nwithout a last newline")
    with pytest.raises(ConfigError, match="is not a results file"):
        Results(path, {})
    assert path.read_text() == "years of work\nwithout a last newline"


def test_results_error_names_the_invalid_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Results(path, {}) as results:
        results.add("a", Trial(conf="a", peak_reserved_bytes=5, at_min=(1, 2, 3)))
    with Results(path, {}) as results:
        assert results.known == {"a": Trial(conf="a", peak_reserved_bytes=5, at_min=(1, 2, 3))}
    path.write_text(path.read_text() + '{"key": "b", "peak": 1}\n')
    with pytest.raises(ConfigError, match="line 3 is not a trial"):
        Results(path, {})
