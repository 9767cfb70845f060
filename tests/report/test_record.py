"""The final text of `allocsim record`: the file, the outcome, and the next command."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim.phantom import ProcessRecording, Recorded, RecordedProgram, find_gpu
from allocsim.report import record_text

PROGRAM = RecordedProgram(("python", "train.py"), Path("run.pickle"), find_gpu("RTX 4090"))


def said(exit_code: int, *, oom_text: str = "", stopped_by: str = "") -> list[str]:
    process = ProcessRecording(Path("run.pickle"), 1234, oom_text, stopped_by)
    return record_text(PROGRAM, Recorded(exit_code, (process,), None)).splitlines()


def test_a_program_that_ended_well_is_to_be_replayed() -> None:
    assert said(0) == [
        "allocsim: recorded on a phantom NVIDIA GeForce RTX 4090, 23.65 GiB; the program's exit "
        "code: 0",
        "allocsim: wrote run.pickle: 1,234 entries",
        "allocsim: next: allocsim replay run.pickle",
    ]


def test_one_that_ran_out_of_memory_is_to_be_explained() -> None:
    _, wrote, following = said(1, oom_text="CUDA out of memory. Tried to allocate")
    assert wrote.endswith("1,234 entries; ended out of memory")
    assert following == "allocsim: next: allocsim explain run.pickle"


@pytest.mark.parametrize("exit_code", [1, 134])
def test_one_that_failed_says_so_before_anything_is_concluded_from_it(exit_code: int) -> None:
    assert said(exit_code)[-1] == (
        f"allocsim: the program failed (exit code {exit_code}), so the recording ends there and "
        "does not show its full need: allocsim replay run.pickle"
    )


def test_one_that_a_guard_ended_did_not_fail() -> None:
    assert said(143, stopped_by="max-seconds")[-1] == "allocsim: next: allocsim replay run.pickle"
