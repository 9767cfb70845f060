"""Every command on files with requests only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim.errors import UnavailableError
from tests.pythons import NEEDS_TORCH, PYTHONS
from traces.profiled.record import profiled

Cli = Callable[..., Any]

PROFILED = Path(__file__).parents[2] / "traces" / "profiled"
TRACE = PROFILED / "trace-torch2.15.json.xz"
TIMELINE = PROFILED / "timeline-torch2.15.json.xz"
PEAK = json.loads((PROFILED / "stats-torch2.15.json").read_text())["reserved_bytes.all.peak"]

LINES = (
    "replay FILE",
    "replay FILE -v",
    "replay FILE --conf expandable_segments:True --device-memory 1GiB",
    "explain FILE",
    "risk FILE",
    "top FILE",
    "top FILE --at end --by module",
    "top FILE --by category",
    "step FILE --at 40 --count 2",
    "tune FILE --try max_split_size_mb:32",
    "gate FILE --max-reserved 1GiB",
    "compare FILE FILE",
    "compare FILE --conf expandable_segments:True",
    "plot memory FILE -o OUT.svg",
    "plot segments FILE -o OUT.svg",
    "plot flame FILE -o OUT.svg",
    "report FILE -o OUT.html",
)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize(
    "path", [TRACE, pytest.param(TIMELINE, marks=pytest.mark.slow)], ids=["trace", "timeline"]
)
def test_commands_answer_for_files_of_requests_only(
    path: Path, line: str, cli: Cli, tmp_path: Path
) -> None:
    words = line.replace("FILE", str(path)).replace("OUT", str(tmp_path / "out")).split()
    done = cli(*words)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_commands_answer_for_profiler_traces_of_every_release(
    python: str, cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        with capsys.disabled():  # a program writes to a real file
            out = profiled(python, tmp_path)
    except UnavailableError as error:
        pytest.skip(str(error))
    for trace in ("trace.json", "late.json"):
        for line in (*LINES, "lint FILE", "stats FILE", "convert FILE OUT.pickle"):
            words = line.replace("FILE", str(out / trace)).replace("OUT", str(tmp_path / "out"))
            done = cli(*words.split())
            # Lint warns of data that a profiler trace does not have.
            assert done.code == line.startswith("lint"), f"{line}: {done.err}"


def test_replay_screen_of_requests_alone_says_that_nothing_is_compared(cli: Cli) -> None:
    done = cli("replay", TRACE)
    assert "none: the file holds requests only" in done.out
    assert "Proved" not in done.out


def test_recommendation_for_requests_alone_is_likely_not_proved(cli: Cli) -> None:
    done = cli("replay", TRACE)
    assert "Likely, not proved" in done.out


def test_replay_json_of_requests_alone_has_no_fidelity(cli: Cli) -> None:
    (device,) = json.loads(cli("replay", TRACE, "--json").out)["devices"]
    assert device["fidelity"] is None
    assert device["parting"] is None
    assert device["peak_reserved_bytes"] == PEAK


def test_strict_has_nothing_to_hold_it_against(cli: Cli) -> None:
    done = cli("replay", TRACE, "--strict")
    assert done.code == 2
    assert "holds requests only" in done.err
    assert done.out == ""


@pytest.mark.slow
def test_ranks_and_watch_take_such_files_among_others(cli: Cli, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_bytes(TRACE.read_bytes())
    document = json.loads(cli("ranks", tmp_path, "--json").out)
    assert {row["peak_reserved_bytes"] for row in document["ranks"]} == {PEAK}
    done = cli("watch", "--once", tmp_path)
    assert done.code == 0
    assert "reserved" not in done.out


@pytest.mark.parametrize("entry", [0, 1, 100, 250, 300])
def test_gate_from_an_entry_on_keeps_what_was_requested_before(entry: int, cli: Cli) -> None:
    """The part from the first entry on is the whole run, and no later part needs more memory."""
    done = cli("gate", TRACE, "--from", "entry", str(entry), "--max-reserved", "1GiB", "--json")
    assert done.code == 0, done.err
    reserved = json.loads(done.out)["peak_reserved_bytes"]
    assert reserved == PEAK if entry == 0 else 0 < reserved <= PEAK


def test_rows_are_told_as_rows(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("action,addr,size\nalloc,0x200,512\n")
    assert "Written by  rows of requests; settings not recorded" in cli("stats", str(path)).out
