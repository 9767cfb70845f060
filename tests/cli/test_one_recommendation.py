"""All commands recommend the same setting, for every recording in the repository."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest

from allocsim import CachingAllocator
from allocsim.cli import main
from allocsim.units import MIB
from tests.recordings import phantom_recordings

TRACES = Path(__file__).parents[2] / "traces"
EVERY = phantom_recordings()
QUICK = ["accumulation-torch2.15", "warm_start-torch2.15"]
"""Recordings with small segments, and starting mid-run. The slow tests use every recording."""

Output = Callable[..., str]


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    """Return a function that runs a command successfully and returns its output."""

    def run(*argv: str) -> str:
        capsys.readouterr()
        assert main([*argv]) == 0
        return capsys.readouterr().out

    return run


def of_json(document: dict[str, dict[str, str | None]]) -> str | None:
    found = document["recommendation"]
    return None if found is None else found["conf"]


def lines_of(output: Output, path: Path, folder: Path) -> dict[str, str | None]:
    """Return the option string that each command recommends; None if it recommends nothing."""
    name = str(path)
    found = {
        "replay": of_json(json.loads(output("replay", name, "--cure", "--json"))),
        "explain": of_json(json.loads(output("explain", name, "--json"))),
        "risk": of_json(json.loads(output("risk", name, "--json"))),
    }
    tuning = json.loads(output("tune", name, "--json"))
    found["tune"] = of_json(tuning)
    assert tuning["helps"] is (found["tune"] is not None)
    if tuning["helps"]:
        assert tuning["best"]["conf"] == found["tune"]
    page = folder / "report.html"
    output("report", name, "-o", str(page), "--what-if")
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
def test_commands_recommend_the_same_line_to_paste(
    output: Output, tmp_path: Path, name: str
) -> None:
    (path,) = (each for each in EVERY if each.name.startswith(f"{name}."))
    found = lines_of(output, path, tmp_path)
    assert len(set(found.values())) == 1, found


def test_devices_of_one_program_share_a_line(output: Output, tmp_path: Path) -> None:
    """Expandable segments help the first device, and nothing helps the second."""
    gpus = [CachingAllocator("2GiB", record_history=True, device=number) for number in (0, 1)]
    for _ in range(3):
        gpus[0].free(gpus[0].malloc(530 * MIB))
        gpus[0].malloc(270 * MIB)
    for _ in range(20):
        gpus[1].malloc(64 * MIB)
    first, second = (gpu.snapshot() for gpu in gpus)
    first["device_traces"] = [first["device_traces"][0], second["device_traces"][1]]
    first["segments"] += second["segments"]
    path = tmp_path / "two.pickle"
    path.write_bytes(pickle.dumps(first, protocol=4))
    found = {
        command: of_json(json.loads(output(command, str(path), *options, "--json")))
        for command, *options in (("replay", "--cure"), ("explain",), ("tune",))
    }
    assert set(found.values()) == {"expandable_segments:True"}, found


def test_expandable_segments_are_not_tried_for_windows_programs(
    output: Output, tmp_path: Path
) -> None:
    gpu = CachingAllocator("2GiB", record_history=True)
    for _ in range(3):
        gpu.free(gpu.malloc(530 * MIB))
        gpu.malloc(270 * MIB)
    snapshot = gpu.snapshot()
    confs = []
    for filename in ("/home/me/train.py", r"C:\Users\me\train.py"):
        for entry in snapshot["device_traces"][0]:
            entry["frames"] = [{"filename": filename, "name": "main", "line": 3}]
        path = tmp_path / "run.pickle"
        path.write_bytes(pickle.dumps(snapshot, protocol=4))
        found = lines_of(output, path, tmp_path)
        assert len(set(found.values())) == 1, found
        confs.append(found["tune"])
    assert confs[0] == "expandable_segments:True"
    assert confs[1] not in (None, confs[0])
    for command in ("tune", "risk"):
        assert "expandable_segments:True" not in output(command, str(path), "--json")


@pytest.mark.slow
@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name.split(".npz")[0])
def test_commands_recommend_the_same_line_on_every_recording(
    output: Output, tmp_path: Path, path: Path
) -> None:
    found = lines_of(output, path, tmp_path)
    assert len(set(found.values())) == 1, found
