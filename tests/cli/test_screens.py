"""First screens on a terminal of 80x24, of every command that answers about a recording.

22 lines leave one for the command and one for the next prompt. `-v` prints more than that screen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim.report.answer import HEIGHT
from allocsim.report.layout import WIDTH
from tests.explain.test_report_forms import FORMS
from tests.reference import commands

Cli = Callable[..., Any]
TRACES = Path(__file__).parents[2] / "traces"
OTHER = "sized/batch2.npz.gz"
RECORDINGS = (
    pytest.param("gpt2-ragged-oom-torch2.15.pickle.gz", marks=pytest.mark.slow),
    pytest.param("gpt2-side-stream-torch2.15.pickle.gz", marks=pytest.mark.slow),
    "counted/bert-torch2.15.npz.gz",
    "counted/warm_start-torch2.15.npz.gz",
    "sized/layers3.npz.gz",
)
SCREENS = (
    "replay {file}",
    "explain {file}",
    "top {file}",
    "top {file} --by category",
    "compare {file} {other}",
    "gate {file} --max-reserved 60MiB",
    "ranks {file} {other} --mixed",
    "tune {file}",
    "risk {file}",
    "lint {file}",
    "stats {file}",
    "colocate {file} {other}",
    "step {file}",
    "step {file} --at 300",
)
IN_FULL = {
    "replay": "replay {file}",
    "explain": "explain {file}",
    "tune": "tune {file} --try expandable_segments:True --try max_split_size_mb:64",
    "risk": "risk {file}",
    "colocate": "colocate {file} {other} --no-smallest",
    "step": "step {file} --at 300",
    "fit": "fit Qwen2.5-7B --serve --server vllm --gpu 4090",
}
"""A line of each command that has -v."""


@pytest.fixture(autouse=True)
def in_the_folder_of_the_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with short paths: answers print them, and long ones take more lines."""
    monkeypatch.chdir(TRACES)


def words(line: str, recording: str) -> list[str]:
    return [word.format(file=recording, other=OTHER) for word in line.split()]


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("line", SCREENS)
def test_answer_fits_the_screen(cli: Cli, line: str, recording: str) -> None:
    done = cli(*words(line, recording))
    assert (done.code in (0, 1), done.err) == (True, "")
    lines = done.out.splitlines()
    assert 0 < len(lines) <= HEIGHT, done.out
    assert not [each for each in lines if len(each) > WIDTH and "ALLOC_CONF=" not in each]


def test_every_command_with_a_full_answer_is_listed() -> None:
    verbose = {
        name for name, parser in commands().items() if "--verbose" in parser._option_string_actions
    }
    assert verbose == set(IN_FULL)


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("name", IN_FULL)
def test_full_answer_prints_more_than_the_screen(cli: Cli, name: str, recording: str) -> None:
    line = words(IN_FULL[name], recording)
    screen, full = cli(*line), cli(*line, "-v")
    assert (full.code, full.err) == (screen.code, "")
    assert len(full.out.split()) > len(screen.out.split())
    assert "-v: " not in full.out


@pytest.mark.parametrize("name", FORMS)
def test_full_answer_on_a_text_prints_more_than_the_screen(
    cli: Cli, name: str, tmp_path: Path
) -> None:
    log = tmp_path / "job.log"
    log.write_text(FORMS[name][0], encoding="utf-8")
    screen, full = cli("explain", log), cli("explain", log, "-v")
    assert len(screen.out.splitlines()) <= HEIGHT
    assert len(full.out.split()) > len(screen.out.split()), screen.out + full.out
