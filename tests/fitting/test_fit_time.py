"""Measurement of an answer's duration: it includes the children of a command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.fit_time import QUESTIONS, spent

BUSY = "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass"


def test_spent_counts_the_work_of_a_child_but_not_its_sleep() -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}], check=True)"
    at_work = spent([sys.executable, "-c", child])
    asleep = spent([sys.executable, "-c", "import time; time.sleep(0.8)"])
    assert at_work > 0.4 > asleep


def test_spent_refuses_a_command_that_fails() -> None:
    spent([sys.executable, "-c", "raise SystemExit(3)"])  # the task does not fit
    with pytest.raises(subprocess.CalledProcessError):
        spent([sys.executable, "-c", "raise SystemExit(2)"])


def test_questions_include_the_largest_model() -> None:
    assert any("70B" in question and "--lora" in question for question in QUESTIONS)
