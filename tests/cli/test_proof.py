"""After a failed proof, every command says so first and recommends nothing."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.units import MIB

from .conftest import Done

Cli = Callable[..., Done]
PARTED = "device 0: the replay under the recorded settings differs from the recorded run from entry"


def _recorded(*, fails: bool) -> dict[str, Any]:
    """Return a snapshot where frees of 530 MiB leave 260 MiB unusable.

    fails: True to end with an out-of-memory error.
    """
    gpu = CachingAllocator("2GiB", record_history=True)
    for _ in range(3):
        gpu.free(gpu.malloc(530 * MIB))
        gpu.malloc(270 * MIB)
    gpu.malloc(700)
    if fails:
        with pytest.raises(OutOfMemoryError):
            gpu.malloc(1200 * MIB)
    return gpu.snapshot()


def _moved(snapshot: dict[str, Any], number: int) -> int:
    """Change the address in the entry of a block, against the rules; return the entry's number."""
    trace = snapshot["device_traces"][0]
    allocs = [i for i, entry in enumerate(trace) if entry["action"] == "alloc"]
    trace[allocs[number]]["addr"] += 512
    at = trace[allocs[number]]["addr"]
    for segment in snapshot["segments"]:
        for i, block in enumerate(segment["blocks"]):
            if block["address"] == at - 512:
                head = {**block, "size": 512, "state": "inactive", "requested_size": 0}
                block["address"] += 512
                block["size"] -= 512
                segment["blocks"].insert(i, head)
                return allocs[number]
    raise AssertionError("the block does not live to the end")


@pytest.fixture
def parted(tmp_path: Path) -> Callable[..., tuple[Path, int]]:
    """Return a function that writes a recording with a wrong entry; it returns path and entry."""

    def write(*, fails: bool = False, number: int = -1) -> tuple[Path, int]:
        snapshot = _recorded(fails=fails)
        entry = _moved(snapshot, number)
        path = tmp_path / "parted.pickle"
        path.write_bytes(pickle.dumps(snapshot, protocol=4))
        return path, entry

    return write


Parted = Callable[..., tuple[Path, int]]


@pytest.mark.parametrize("fails", [False, True], ids=["fits", "fails"])
@pytest.mark.parametrize(
    "options",
    [
        "replay",
        "replay --cure",
        "replay --conf max_split_size_mb:64",
        "replay --device-memory 1GiB",
        "explain",
        "risk --try max_split_size_mb:64",
        "tune --try expandable_segments:True",
        "tune --try expandable_segments:True --device-memory 1GiB",
        "step --at 0",
    ],
)
def test_commands_begin_with_the_missing_proof_and_recommend_nothing(
    cli: Cli, parted: Parted, options: str, *, fails: bool
) -> None:
    path, entry = parted(fails=fails)
    command, *more = options.split()
    sentence = f"{PARTED} {entry} on"
    done = cli(command, path, *more)
    assert done.code == 0, done.err
    warning = " ".join(done.out.partition("\n\n")[0].split())
    assert warning.startswith(f"Warning {sentence}")
    assert "export" not in done.out
    assert "Proved" not in done.out
    assert "answers every recorded request" not in done.out
    document = json.loads(cli(command, path, *more, "--json").out)
    first = document[0] if command == "step" else document
    assert first["notes"][0].startswith(sentence)
    output = json.dumps(document)
    assert "answers every recorded request" not in output
    assert '"best": {' not in output
    assert '"env":' not in output


def test_unchanged_recordings_are_proved(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "whole.pickle"
    path.write_bytes(pickle.dumps(_recorded(fails=True), protocol=4))
    for command in ("replay", "explain", "risk", "tune", "step"):
        document = json.loads(cli(command, path, "--json").out)
        assert "not the recorded run" not in json.dumps(document), command
    assert "Proved" in cli("replay", path).out


def test_verdict_after_the_parting_is_marked_unproved(cli: Cli, parted: Parted) -> None:
    late, _ = parted(fails=True, number=-1)
    assert "unproved: " in cli("replay", late).out.partition("Verdict")[2]
    assert "unproved: " in cli("explain", late).out.partition("Verdict")[2]
    assert not json.loads(cli("explain", late, "--json").out)["ooms"][0]["is_proved"]
    document = json.loads(cli("replay", late, "--json").out)
    assert document["devices"][0]["parting"]["entry"] is not None


def test_step_marks_entries_after_the_parting_unproved(cli: Cli, parted: Parted) -> None:
    path, entry = parted()
    output = cli("step", path, "--at", 0, "--count", 50).out
    marked = [line for line in output.splitlines() if ", unproved: " in line]
    titles = [line for line in output.splitlines() if line.startswith("entry ")]
    assert marked
    assert marked == [line for line in titles if int(line.split()[1].rstrip(",:")) >= entry]


@pytest.mark.parametrize(
    "kind",
    [
        "memory",
        pytest.param("address-map", marks=pytest.mark.slow),
        pytest.param("segments", marks=pytest.mark.slow),
        pytest.param("sizes", marks=pytest.mark.slow),
    ],
)
def test_figure_says_that_the_replay_is_unproved(
    cli: Cli, parted: Parted, tmp_path: Path, kind: str
) -> None:
    path, entry = parted(fails=True)
    figure = tmp_path / "figure.svg"
    done = cli("plot", kind, path, "-o", figure)
    assert f"{PARTED} {entry} on" in done.err
    text = " ".join(figure.read_text(encoding="utf-8").split())
    assert "(unproved)" in text
    assert f"{PARTED} {entry} on" in text


def test_page_says_that_the_replay_is_unproved(cli: Cli, parted: Parted, tmp_path: Path) -> None:
    path, entry = parted(fails=True)
    page = tmp_path / "page.html"
    done = cli("report", path, "-o", page)
    assert f"{PARTED} {entry} on" in done.err
    text = page.read_text(encoding="utf-8")
    assert text.index(f"{PARTED} {entry} on") < text.index("Verdict:</strong> unproved: ")
    assert "Unproved, because the replay differs from the recorded run" in text


def test_final_segments_alone_are_enough(cli: Cli, tmp_path: Path) -> None:
    """The history is complete, but the final segments have a free piece split in two."""
    snapshot = _recorded(fails=False)
    blocks = snapshot["segments"][-1]["blocks"]
    tail = blocks[-1]
    assert tail["state"] == "inactive"
    blocks.append({**tail, "address": tail["address"] + 512, "size": tail["size"] - 512})
    tail["size"] = 512
    path = tmp_path / "end.pickle"
    path.write_bytes(pickle.dumps(snapshot, protocol=4))
    for command in ("replay", "tune", "risk", "step"):
        output = cli(command, path).out.partition("\n\n")[0]
        assert "ends with other segments than the recording" in " ".join(output.split()), command


@pytest.mark.parametrize("command", ["replay", "tune"])
def test_another_release_is_a_what_if_and_no_failed_proof(
    cli: Cli, parted: Parted, command: str
) -> None:
    path, _ = parted()
    output = " ".join(cli(command, path, "--torch", "2.6").out.split())
    assert (
        "another release wrote the recording: the replay shows what the requested release" in output
    )
    assert "Warning" not in output
    assert "Warning" in cli(command, path, "--torch", "2.15").out
