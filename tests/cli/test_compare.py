"""Tests of `allocsim compare`: two recordings, one under two settings, and refused arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_compare_prints_the_difference_of_two_recordings(cli: Cli, traces: Path) -> None:
    files = traces / "sized" / "layers2.npz.gz", traces / "sized" / "layers3.npz.gz"
    done = cli("compare", *files, "--by", "category", "--json")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["peak_reserved_change"] > 0
    assert {"owner", "status", "bytes", "a_bytes", "b_bytes"} <= set(document["changes"][0])
    assert [document[side]["path"] for side in "ab"] == list(map(str, files))


def test_compare_prints_the_difference_of_two_settings(cli: Cli, traces: Path) -> None:
    file = traces / "sized" / "layers2.npz.gz"
    confs = "expandable_segments:True", "max_split_size_mb:128"
    document = json.loads(cli("compare", file, "--conf", confs[0], "--json").out)
    assert [document[side]["conf"] for side in "ab"] == ["", confs[0]]
    document = json.loads(
        cli("compare", file, "--conf", confs[0], "--conf", confs[1], "--json").out
    )
    assert [document[side]["conf"] for side in "ab"] == list(confs)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ([], "--conf is missing; expected it once or twice with one FILE, or two FILEs"),
        (["a", "b"], "3 recordings were given; expected two, or one with --conf"),
        (["a", "--conf", "x"], "--conf compares one recording under two settings; name one FILE"),
        (["--conf", "x:1"], "x"),
        (["nowhere.pickle"], "nowhere.pickle"),
    ],
)
def test_compare_refuses_wrong_input_in_a_sentence(
    cli: Cli, traces: Path, more: list[str], sentence: str
) -> None:
    done = cli("compare", traces / "sized" / "layers2.npz.gz", *more)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(("name", "start"), [("c.html", b"<!DOCTYPE"), ("c.svg", b"<?xml")])
def test_compare_writes_a_page_or_a_figure_beside_the_answer(
    cli: Cli, traces: Path, tmp_path: Path, name: str, start: bytes
) -> None:
    out, sized = tmp_path / name, traces / "sized"
    done = cli("compare", sized / "layers2.npz.gz", sized / "layers3.npz.gz", "-o", out)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Recordings")
    assert out.read_bytes().startswith(start)
