"""A snapshot without a history: supported commands answer, others refuse in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim.units import MIB

Cli = Callable[..., Any]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("kind", ["segments", "sizes", "flame"])
def test_plot_draws_a_state(cli: Cli, state: Path, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "figure.png"
    done = cli("plot", kind, state, "-o", file, "--at", "end")
    assert (done.code, done.out) == (0, "")
    assert file.read_bytes().startswith(PNG)


def test_plot_of_a_state_names_its_moment(cli: Cli, state: Path, tmp_path: Path) -> None:
    file = tmp_path / "figure.svg"
    assert cli("plot", "segments", state, "-o", file).code == 0
    assert "segments as the snapshot was taken" in file.read_text()
    assert "384.00 MiB reserved, 320.00 MiB allocated" in file.read_text()
    assert cli("plot", "sizes", state, "-o", file).code == 0
    assert "Above: 2 blocks in use." in file.read_text()
    assert "blocks in use (count)" in file.read_text()


def test_report_of_a_state_has_its_blocks_and_owners(cli: Cli, state: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    done = cli("report", state, "-o", file)
    assert (done.code, done.out, done.err) == (0, "", "")
    page = file.read_text()
    assert "384.00 MiB reserved in 3 segments, as the snapshot was taken" in page
    assert "cache_engine.py:83 _allocate_kv_cache" in page
    assert "64.00 MiB (67,108,864 bytes), if the driver has no free memory" in page
    assert "it does not show what was requested and when" in page


def test_report_of_a_state_uses_the_given_device_memory(
    cli: Cli, state: Path, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    assert cli("report", state, "-o", file, "--device-memory", "1GiB").code == 0
    page = file.read_text()
    assert "704.00 MiB (738,197,504 bytes)</dd>" in page, "1024 less 320 that are in use"
    assert "no more to give" not in page
    refused = cli("report", state, "-o", file, "--device-memory", "300MiB")
    assert refused.code == 2
    assert "300.00 MiB is less than the 384.00 MiB that the segments" in refused.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plot", "sizes", "-o", "x.png", "--at", "peak"], "there is no 'peak', only the end"),
        (["plot", "sizes", "-o", "x.png", "--conf", ""], "cannot be replayed under other settings"),
        (["plot", "memory", "-o", "x.png"], "there is nothing to replay"),
        (["report", "-o", "x.html", "--try", "max_split_size_mb:64"], "leave --conf, --try"),
        (["report", "-o", "x.html", "--memory-fraction", "0.5"], "--memory-fraction"),
        (["report", "-o", "x.html", "--device", "3"], "device 3 is not in the recording"),
    ],
)
def test_commands_that_need_a_history_refuse_a_state(
    cli: Cli, state: Path, arguments: list[str], sentence: str
) -> None:
    command, *rest = arguments
    kind = [rest.pop(0)] if command == "plot" else []
    done = cli(command, *kind, state, *rest)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1


def test_explain_reports_if_a_request_succeeds_in_a_state(cli: Cli, state: Path) -> None:
    done = cli("explain", state, "--request", "64MiB")
    assert (done.code, done.err) == (0, "")
    assert "Verdict         succeeds: a free block serves it, without the driver\n" in done.out
    done = cli("explain", state, "--request", "70MiB")
    assert "Verdict         full: the card is full\n" in done.out
    assert "Largest         a request of 64.00 MiB (67,108,864 bytes) succeeds\n" in done.out
    assert "In the way      1 live block, 20.00 MiB in all; without it" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_explain_json_of_a_request_in_a_state(cli: Cli, state: Path) -> None:
    refused = json.loads(cli("explain", state, "--request", "70MiB", "--json").out)
    assert refused["served"] is None
    assert refused["refusal"]["cause"] == "full"
    assert [each["size"] for each in refused["refusal"]["blockers"]] == [20 * MIB]
    answered = json.loads(cli("explain", state, "--request", "1KiB", "--json").out)
    assert (answered["served"], answered["refusal"]) == ("retry", None)


@pytest.mark.parametrize(
    ("subject", "sentence"),
    [
        (
            "gpt2-ragged-oom-torch2.15.pickle.gz",
            "holds a history, and --request needs a snapshot without one",
        ),
        ("CUDA out of memory.", "--request needs a snapshot; an error's text has none"),
    ],
)
def test_explain_refuses_a_request_for_a_history(
    cli: Cli, traces: Path, subject: str, sentence: str
) -> None:
    what = traces / subject if (traces / subject).exists() else subject
    done = cli("explain", what, "--request", "1GiB")
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err


def test_explain_of_a_state_has_the_largest_request_and_the_owners(cli: Cli, state: Path) -> None:
    done = cli("explain", state)
    assert (done.code, done.err) == (0, "")
    said = " ".join(done.out.split())
    assert said.startswith(
        "Verdict no error is recorded: the snapshot holds a state and no history"
    )
    assert (
        "Largest a request of 64.00 MiB (67,108,864 bytes) succeeds on the default stream" in said
    )
    assert "Held by " in done.out
    assert "net.py:7 load_weights: parameters\n" in done.out
    assert len(done.out.splitlines()) <= 24
    whole = cli("explain", state, "-v").out
    assert "     20.00 MiB         1  net.py:7 load_weights\n" in whole
    assert "Use of the device's memory after the failed request\n" in whole


@pytest.mark.parametrize("command", ["replay", "tune", "step"])
def test_error_about_a_state_names_commands_that_accept_it(
    cli: Cli, state: Path, command: str
) -> None:
    done = cli(command, state)
    assert (done.code, done.out) == (2, "")
    assert "holds the state only (3 segments)" in done.err
    assert "allocsim explain, top, report and plot segments, sizes or flame" in done.err
    assert len(done.err.splitlines()) == 1
