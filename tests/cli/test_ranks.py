"""Tests of `allocsim ranks`: one screen for a job, and JSON."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator
from allocsim.units import MIB

Cli = Callable[..., Any]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Write sixteen ranks with a long name, each 2 MiB larger, and a file of another kind."""
    folder = tmp_path / "a_folder_with_quite_a_long_name" / "and_another_one_below_it"
    folder.mkdir(parents=True)
    for rank in range(16):
        gpu = CachingAllocator("8GiB", record_history=True)
        gpu.malloc((20 + 2 * rank) * MIB)
        (folder / f"rank{rank}.pickle").write_bytes(pickle.dumps(gpu.snapshot(), protocol=4))
    (folder / "rank16.pickle").write_bytes(b"")
    return folder


def test_ranks_command_lists_the_largest_rank_first_on_one_screen(cli: Cli, job: Path) -> None:
    done = cli("ranks", job, "--jobs", "1")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == (
        "Verdict         rank 15 needs the most: 50.00 MiB reserved at the peak, 16.00"
    )
    assert "16 of 17 recordings" in done.out
    assert "6 more, 20.00 MiB to 30.00 MiB reserved (-n 0)" in done.out
    assert "not read: " in done.out
    assert "the ranks request different amounts" in done.out
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    assert len(cli("ranks", job, "--jobs", "1", "-n", "0").out.splitlines()) > 20


def test_ranks_json_has_every_rank(cli: Cli, job: Path) -> None:
    document = json.loads(cli("ranks", job, "--jobs", "1", "--json").out)
    assert document["decides"] == 15
    assert [each["rank"] for each in document["ranks"]] == list(range(16))
    assert document["ranks"][3]["peak_reserved_bytes"] == 26 * MIB
    assert [Path(each["path"]).name for each in document["refused"]] == ["rank16.pickle"]


def test_ranks_command_refuses_wrong_input_in_a_sentence(cli: Cli, tmp_path: Path) -> None:
    done = cli("ranks", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "the folder holds no recording" in done.err
    done = cli("ranks", tmp_path / "nowhere.pickle")
    assert done.code == 2
    assert "nowhere.pickle" in done.err


def test_ranks_writes_a_page_beside_the_answer(cli: Cli, job: Path, tmp_path: Path) -> None:
    page = tmp_path / "ranks.html"
    done = cli("ranks", job, "--jobs", "1", "--smallest", "-o", page)
    assert (done.code, done.err) == (0, "")
    assert "Smallest device 50.00 MiB for every rank" in done.out
    assert len(done.out.splitlines()) <= 24
    assert page.read_text().count("<figure") == 16
