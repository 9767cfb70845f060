"""Jobs of `benchmarks.on_gpu`, their output, and a rehearsal on the phantom GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim.phantom import find_gpu, find_torch, phantom_environment
from allocsim.recording import load
from benchmarks.on_gpu.__main__ import outcome_of
from benchmarks.on_gpu.jobs import PARTS, Job, jobs
from benchmarks.on_gpu.machine import FailedError, Machine
from tests.pythons import NEEDS_TORCH, PYTHONS

ROOT = Path(__file__).parents[2]
CARD = ROOT / "traces" / "h200"
HERE = Machine(sys.executable)


def job(target: Path, make: Callable[[float], None], needs: tuple[str, ...] = ()) -> Job:
    return Job("driver", "a job", target, make, needs)


def soon() -> float:
    return time.monotonic() + 60


def test_job_whose_output_is_there_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "driver.json"
    done = outcome_of(job(target, lambda _: target.touch()), HERE, soon())
    again = outcome_of(job(target, lambda _: target.unlink()), HERE, soon())
    assert (done.status, again.status, target.exists()) == ("done", "kept", True)


def test_job_without_its_package_is_skipped_with_the_name(tmp_path: Path) -> None:
    wants = job(tmp_path / "x", lambda _: None, ("no_such_package",))
    outcome = outcome_of(wants, HERE, soon())
    assert outcome.status == "skipped"
    assert outcome.reason.endswith("has no no_such_package")


def test_job_after_the_deadline_is_skipped(tmp_path: Path) -> None:
    outcome = outcome_of(job(tmp_path / "x", lambda _: None), HERE, time.monotonic())
    assert (outcome.status, "no time left" in outcome.reason) == ("skipped", True)


def test_process_that_fails_is_reported_with_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "a.txt"
    text = "import sys; sys.exit('no card')"
    with pytest.raises(FailedError, match="exit code 1: no card"):
        HERE.run([sys.executable, "-c", text], 60, log=log)
    failing = job(
        tmp_path / "x", lambda limit: print(HERE.run([sys.executable, "-c", text], limit, log=log))
    )
    assert outcome_of(failing, HERE, soon()).status == "failed"


def test_process_is_killed_with_its_children_at_its_limit(tmp_path: Path) -> None:
    begin = time.monotonic()
    command = ["sh", "-c", "sleep 60 & echo $! > pid; wait"]
    with pytest.raises(FailedError, match="limit of 1 s"):
        HERE.run(["sh", "-c", f"cd {tmp_path}; {command[2]}"], 1, log=tmp_path / "log")
    assert time.monotonic() - begin < 30
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        if "Z" in Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[:1]:
            break
        time.sleep(0.05)
    assert time.monotonic() < deadline, "the child is still running"


def test_jobs_write_the_layout_of_the_recordings_in_the_tree(tmp_path: Path) -> None:
    found = list(jobs(HERE, tmp_path, ops=1))
    outputs = {str(each.output.relative_to(tmp_path)) for each in found}
    assert {each.part for each in found} == set(PARTS)
    assert len(outputs) == len(found)
    kept = {path for path in CARD.rglob("*") if path.is_file() and path.parent.name != "oom"}
    tables = {"programs/stats.json", "cases/cases.jsonl"}  # written beside each recording
    assert {str(path.relative_to(CARD)) for path in kept} - tables <= outputs


def on_gpu(*words: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.on_gpu", *words],
        cwd=ROOT, env=os.environ | (environment or {}), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_compare_prints_the_tables_of_the_parts_that_are_there(tmp_path: Path) -> None:
    """The comparison does not need PyTorch."""
    (tmp_path / "programs").mkdir()
    (tmp_path / "cases").mkdir()
    for name in ("driver.json", "kernels.json", "cases/cases.jsonl"):
        shutil.copy(CARD / name, tmp_path / name)
    for setting in ("default", "expandable"):
        name = f"programs/two_streams-{setting}.npz.gz"
        shutil.copy(CARD / name, tmp_path / name)
    shutil.copy(CARD / "programs" / "stats.json", tmp_path / "programs")
    text = on_gpu("--compare", str(tmp_path))
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles == [
        "## Programs under several settings",
        "## Training and serving over the phantom",
        "## Kernels over the phantom",
        "## Time in driver calls",
        "## Driver calls alone",
    ]
    assert "| programs/two_streams-default | 12,815 | yes |" in text
    assert "| two_streams | expandable | 4,743,757,824 | 4,743,757,824 | exact |" in text


@pytest.mark.slow
@NEEDS_TORCH
def test_rehearsal_over_the_phantom_runs_every_part_and_continues(tmp_path: Path) -> None:
    words = (str(tmp_path), "--python", PYTHONS[0], "--phantom", "H200", "--ops", "300")
    few = ("--minutes", "20", "--only")
    first = on_gpu(*words, *few, "a100-011")
    second = on_gpu(*words, *few, "two_streams")
    assert "failed" not in first + second
    assert "properties: 1 kept" in second
    driver = json.loads((tmp_path / "driver.json").read_text())
    real = json.loads((CARD / "driver.json").read_text())
    assert set(real) <= set(driver)
    assert [row["mib"] for row in driver["cuMemAlloc"]] == [
        row["mib"] for row in real["cuMemAlloc"]
    ]
    kernels = json.loads((tmp_path / "kernels.json").read_text())
    expected = json.loads((CARD / "kernels.json").read_text())
    for kind in ("attention", "conv"):
        assert len(kernels[kind]) == len(expected[kind])
        assert set(kernels[kind][0]) == set(expected[kind][0])
    [row] = [json.loads(line) for line in (tmp_path / "cases/cases.jsonl").read_text().splitlines()]
    assert row["id"] == "a100-011"
    assert len(row["steps"]) == 4
    recording = load(tmp_path / "programs" / "two_streams-gc.npz.gz")
    assert recording.devices[0].time_us is not None
    assert not [frame for frame in recording.frame_table.frames if "/" in frame.filename]
    assert "## Training and serving" in on_gpu(
        "--compare", str(tmp_path), "--against", str(tmp_path)
    )


@pytest.mark.slow
@NEEDS_TORCH
def test_programs_of_a_card_are_captured_with_times(tmp_path: Path) -> None:
    """The commands for a real GPU run on a phantom GPU."""
    environment = phantom_environment(find_torch(PYTHONS[0]), find_gpu("H200"))
    words = (str(tmp_path), "--python", PYTHONS[0], "--only", "two_streams-default")
    parts = ("--parts", "programs", "--minutes", "10")
    assert "programs: 1 done" in on_gpu(*words, *parts, environment=environment)
    recording = load(tmp_path / "programs" / "two_streams-default.npz.gz")
    assert recording.devices[0].time_us is not None
    stats = json.loads((tmp_path / "programs" / "stats.json").read_text())
    assert stats["two_streams-default"]["reserved_bytes.all.peak"] > 0
