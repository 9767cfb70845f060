"""All commands that recommend a setting recommend the same one, on every recording of the tree."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest

from allocsim.cli import main

TRACES = Path(__file__).parents[2] / "traces"
EVERY = sorted(TRACES.rglob("*.gz"))
QUICK = ["accumulation-torch2.15", "cuda_graphs-tight-torch2.6", "warm_start-torch2.15"]
"""Of small segments; out of memory; starting mid-run."""

Told = Callable[..., str]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """What a command prints, whose exit code is 0."""

    def run(*argv: str) -> str:
        capsys.readouterr()
        assert main([*argv]) == 0
        return capsys.readouterr().out

    return run


def of_json(document: dict[str, dict[str, str | None]]) -> str | None:
    found = document["recommendation"]
    return None if found is None else found["conf"]


def lines_of(told: Told, path: Path, folder: Path) -> dict[str, str | None]:
    """The option string that each command recommends, None where it recommends nothing."""
    name = str(path)
    found = {
        "replay": of_json(json.loads(told("replay", name, "--cure", "--json"))),
        "explain": of_json(json.loads(told("explain", name, "--json"))),
        "risk": of_json(json.loads(told("risk", name, "--json"))),
    }
    tuning = json.loads(told("tune", name, "--json"))
    found["tune"] = of_json(tuning)
    assert tuning["helps"] is (found["tune"] is not None)
    if tuning["helps"]:
        assert tuning["best"]["conf"] == found["tune"]
    page = folder / "report.html"
    told("report", name, "-o", str(page), "--what-if")
    pasted = re.search(
        r"To paste:</strong> <code>(?:unset PYTORCH_CUDA_ALLOC_CONF"
        r"|export PYTORCH_CUDA_ALLOC_CONF=(.*?))</code>",
        page.read_text(),
    )
    found["report"] = None
    if pasted is not None:
        found["report"] = unescape(pasted[1] or "").strip("'")
    return found


@pytest.mark.parametrize("name", QUICK)
def test_the_same_line_to_paste_from_all_commands(told: Told, tmp_path: Path, name: str) -> None:
    (path,) = (each for each in EVERY if each.name.startswith(f"{name}."))
    found = lines_of(told, path, tmp_path)
    assert len(set(found.values())) == 1, found


@pytest.mark.slow
@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name.split(".npz")[0])
def test_on_every_recording(told: Told, tmp_path: Path, path: Path) -> None:
    found = lines_of(told, path, tmp_path)
    assert len(set(found.values())) == 1, found
