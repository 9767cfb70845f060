"""The final text of `allocsim record`: the file, the outcome, and the next command."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim.phantom import ProcessRecording, Recorded, RecordedProgram, find_gpu
from allocsim.report.record import text as record_text

PROGRAM = RecordedProgram(("python", "train.py"), Path("run.pickle"), find_gpu("RTX 4090"))


def said(exit_code: int, *, oom_text: str = "", stopped_by: str = "") -> list[str]:
    process = ProcessRecording(Path("run.pickle"), 1234, oom_text, stopped_by)
    return record_text(PROGRAM, Recorded(exit_code, (process,), None)).splitlines()


def test_text_suggests_replay_after_a_successful_program() -> None:
    assert said(0) == [
        "allocsim: recorded on a phantom NVIDIA GeForce RTX 4090, 23.65 GiB; the program's exit "
        "code: 0",
        "allocsim: wrote run.pickle: 1,234 entries",
        "allocsim: next: allocsim replay run.pickle",
    ]


def test_text_suggests_explain_after_an_out_of_memory_error() -> None:
    _, wrote, following = said(1, oom_text="CUDA out of memory. Tried to allocate")
    assert wrote.endswith("1,234 entries; ended out of memory")
    assert following == "allocsim: next: allocsim explain run.pickle"


@pytest.mark.parametrize("exit_code", [1, 134])
def test_text_says_that_a_failed_programs_recording_is_incomplete(exit_code: int) -> None:
    assert said(exit_code)[-1] == (
        f"allocsim: the program failed (exit code {exit_code}), so the recording ends there and "
        "does not show its full need: allocsim replay run.pickle"
    )


def test_text_does_not_call_a_program_failed_that_a_limit_ended() -> None:
    assert said(143, stopped_by="max-seconds")[-1] == "allocsim: next: allocsim replay run.pickle"
