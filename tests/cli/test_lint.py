"""Tests of `allocsim lint` and `allocsim stats`: output and exit codes."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim import CachingAllocator
from allocsim.units import MIB
from tests.recording.history import training_step

from .conftest import Done

Cli = Callable[..., Done]
WHOLE = "gpt2-ragged-oom-torch2.15.pickle.gz"


@pytest.fixture
def late(tmp_path: Path) -> Path:
    """Write a recording without its first four entries."""
    snapshot = training_step().snapshot()
    snapshot["allocator_settings"] = CachingAllocator().snapshot()["allocator_settings"]
    del snapshot["device_traces"][0][:4]
    path = tmp_path / "late.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    return path


def test_lint_passes_a_sound_recording(cli: Cli, traces: Path) -> None:
    done = cli("lint", traces / WHOLE)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == "Verdict         passed: nothing found"


def test_lint_suggests_conf_for_an_option_string_without_it(cli: Cli) -> None:
    done = cli("lint", "expandable_segments:True")
    assert (done.code, done.out) == (2, "")
    assert "did you mean --conf expandable_segments:True?" in done.err


def test_lint_command_fails_with_entry_value_and_meaning(cli: Cli, late: Path) -> None:
    done = cli("lint", late)
    assert (done.code, done.err) == (1, "")
    text = " ".join(done.out.split())
    assert text.startswith("Verdict failed: 2 warnings")
    assert "Warning device 0, entry 0: 1 of 2 blocks (3.00 MiB) from before the first" in text
    assert "the entry: free_requested of 1000 bytes at 0x7f0000000000 on stream 0" in text
    assert "Meaning: no figure includes requests, peaks and errors of the lost entries" in text
    assert all(len(line) <= 80 for line in done.out.splitlines())


def test_lint_json_has_every_finding(cli: Cli, late: Path) -> None:
    done = cli("lint", late, "--json", "--torch", "2.6")
    document = json.loads(done.out)
    assert done.code == 1
    assert document["passed"] is False
    assert document["torch_version"] == "2.6"
    assert [each["check"] for each in document["findings"]][:2] == ["mid_run", "ring"]
    assert document["warnings"] == sum(
        each["severity"] == "warning" for each in document["findings"]
    )


def test_lint_page_quotes_the_output_of_the_command(
    cli: Cli, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests of the pages omit commands that end with exit code 1."""
    monkeypatch.chdir(traces.parent)
    page = (traces.parent / "docs" / "commands" / "lint.md").read_text()
    failing = re.findall(r"code 1 -->\n```sh\n(.*)\n```\n\n```text\n((?:.*\n)*?)```", page)
    assert len(failing) == 2
    for command, shown in failing:
        done = cli(*command.split()[1:])
        assert (done.code, done.out) == (1, shown)


def test_lint_command_checks_a_conf_without_a_file(cli: Cli) -> None:
    conf = "PYTORCH_ALLOC_CONF=expandable_segments:True"
    done = cli("lint", "--conf", conf, "--torch", "2.9.1")
    assert done.code == 1
    assert "PyTorch 2.9 does not read PYTORCH_ALLOC_CONF" in " ".join(done.out.split())
    done = cli("lint", "--conf", conf, "--json")
    assert (done.code, json.loads(done.out)["file"]) == (0, None)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("lint",), "nothing to check; expected FILE, or --conf CONF"),
        (("lint", "gone.pickle"), "gone.pickle: does not exist"),
        (("lint", "--conf", "", "--torch", "2.99"), "torch_version '2.99' is not modelled"),
        (("stats", "gone.pickle"), "gone.pickle: does not exist"),
    ],
)
def test_lint_command_refuses_an_unreadable_file_in_a_sentence(
    cli: Cli, arguments: tuple[str, ...], sentence: str
) -> None:
    done = cli(*arguments)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1


def test_stats_summarizes_a_file_in_ten_lines(cli: Cli, traces: Path) -> None:
    done = cli("stats", traces / WHOLE)
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert len(lines) <= 10
    assert all(len(line) <= 80 for line in lines)
    assert "Peak        5.46 GiB reserved, 4.66 GiB requested" in lines
    assert "History     from an empty device; 1.03 s from 2026-11-20 21:06:07 UTC" in lines


def test_stats_json_has_the_figures_of_a_file(cli: Cli, late: Path) -> None:
    document = json.loads(cli("stats", late, "--json").out)
    (device,) = document["devices"]
    assert (document["kind"], document["packing"]) == ("pickle", None)
    assert document["size_bytes"] == late.stat().st_size
    assert device["begins"] == "mid_run"
    assert device["start_bytes"] == 22 * MIB
    assert device["actions"] == {"alloc": 1, "free_requested": 2, "free_completed": 1}


def test_stats_summarizes_a_state_and_a_broken_history(
    cli: Cli, state: Path, tmp_path: Path
) -> None:
    assert "a state without a history" in cli("stats", state).out
    snapshot = training_step().snapshot()
    snapshot["device_traces"][0][4]["addr"] += 512
    path = tmp_path / "broken.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    done = cli("stats", path)
    assert done.code == 0
    assert "contradicts the state: see allocsim lint" in done.out


def test_text_of_a_file_cannot_command_the_terminal(cli: Cli, tmp_path: Path) -> None:
    snapshot = training_step().snapshot()
    snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "\x1b[2Jmax_split_size_mb:64"
    path = tmp_path / "x\x1b[31m.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    for command in ("lint", "stats"):
        done = cli(command, path)
        assert "\x1b" not in done.out
        assert r"\x1b[2J" in done.out
