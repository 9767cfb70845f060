"""Text from a file reaches a terminal escaped: it cannot move the cursor or reorder letters."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from allocsim import CachingAllocator
from allocsim.units import MIB
from tests.recording.history import Plain

Cli = Callable[..., Any]

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31m\u202e\x9b5m\r\b\x00"
"""Sequences for a title, an empty screen, a colour, right-to-left letters, and overwriting."""


def hostile(text: str) -> Plain:
    """Return a snapshot of a program that ran out of memory, with `text` in every text field."""
    gpu = CachingAllocator("64MiB", record_history=True)
    live = [gpu.malloc((2 + i % 5) * MIB) for i in range(9)]
    for address in live[::2]:
        gpu.free(address)
    gpu.malloc(11 * MIB)
    with pytest.raises(RuntimeError):
        gpu.malloc(60 * MIB)
    snapshot: Plain = gpu.snapshot()
    frames = [{"filename": f"/a/{text}.py", "name": f"forward{text}", "line": 3}]
    for index, entry in enumerate(snapshot["device_traces"][0]):
        entry |= {"frames": frames, "time_us": index, "compile_context": text}
        entry["user_metadata"] = text
    for segment in snapshot["segments"]:
        segment["frames"] = frames
        for block in segment["blocks"]:
            block["frames"] = frames
    mark = {"name": f"Optimizer.step#{text}.step", "stage": "START", "device": 0, "time_us": 5}
    snapshot["external_annotations"] = [mark, mark | {"stage": "END", "time_us": 9}]
    snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = ""
    snapshot["allocsim"] = {
        name: f"{name}{text}"
        for name in ("torch_version", "device_name", "command", "rank", "oom_text", "captured")
    }
    return snapshot


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write the recording under a name with escapes."""
    path = tmp_path / "a\x1b[2J\u202e.pickle"
    path.write_bytes(pickle.dumps(hostile(ESCAPES), 4))
    return path


def assert_plain(text: str) -> None:
    for line in text.split("\n"):
        assert line.replace("\t", "").isprintable(), repr(line)


COMMANDS = [
    *("replay", "replay -v", "replay --conf=max_split_size_mb:21", "explain", "explain -v"),
    *("top", "top --by=line", "top --format=collapsed", "gate --max-reserved=1GiB"),
    *("gate --max-reserved=1MiB", "risk", "risk -v", "tune", "tune -v", "step --count=3"),
    *("watch --once", "scale --at=layers=2", "ranks", "compare", "lint", "lint -v", "stats"),
    *("colocate --no-smallest", "colocate --device-memory=4MiB -v"),
    *("top --format=speedscope", "compare --conf=max_split_size_mb:21"),
]
FIGURES = ("memory", "address-map", "segments", "sizes", "flame")
"""Kinds of `plot` that draw a recording."""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("form", ["", "--json"])
def test_commands_escape_hostile_names(command: str, form: str, file: Path, cli: Cli) -> None:
    name, *options = command.split()
    takes_two = name in {"scale", "ranks", "colocate"} or (name == "compare" and not options)
    form = "" if any(each.startswith("--format=") for each in options) else form
    files = [file] * 2 if takes_two else [file]
    done = cli(name, *files, *options, *([form] if form else []))
    assert done.code in (0, 1, 2)
    assert_plain(done.out)
    assert_plain(done.err)
    if form and done.out:
        json.loads(done.out)


@pytest.mark.parametrize("kind", FIGURES)
@pytest.mark.parametrize("text", [ESCAPES, "</svg><script>owned()</script><a href='x'>&amp;]]>"])
def test_figure_shows_hostile_names_as_text(kind: str, text: str, cli: Cli, tmp_path: Path) -> None:
    """An SVG is XML that a browser opens; names must not become tags or break it."""
    path, figure = tmp_path / "a<b>\x1b[2J.pickle", tmp_path / "a.svg"
    path.write_bytes(pickle.dumps(hostile(text), 4))
    done = cli("plot", kind, path, "-o", figure)
    assert done.code == 0, done.err
    assert_plain(done.out + done.err)
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(figure).iter()}  # noqa: S314
    assert not tags & {"script", "a", "foreignObject", "iframe"}
    assert_plain(figure.read_text())


@pytest.mark.parametrize(
    "ending",
    ["perfetto.json", "speedscope.json", "csv", "jsonl", "minimalloc.csv", "pickle", "npz"],
)
def test_convert_escapes_hostile_names(ending: str, file: Path, cli: Cli, tmp_path: Path) -> None:
    done = cli("convert", file, tmp_path / f"out\x1b[2J.{ending}")
    assert done.code == 0, done.err
    assert_plain(done.out + done.err)


def test_errors_about_a_file_escape_its_name(tmp_path: Path, cli: Cli) -> None:
    for name, value in [("size", -1), ("action", ESCAPES), ("addr", ESCAPES), ("frames", ESCAPES)]:
        snapshot = hostile("")
        snapshot["device_traces"][0][3][name] = value
        path = tmp_path / "a\x1b[2J\u202e.pickle"
        path.write_bytes(pickle.dumps(snapshot, 4))
        done = cli("replay", path)
        assert (done.code, done.out) == (2, "")
        assert_plain(done.err)
        assert "entry 3" in done.err


def test_errors_escape_option_values(cli: Cli, file: Path) -> None:
    for arguments in (
        ("replay", file, "--conf", ESCAPES),
        ("replay", file, f"--{ESCAPES}"),
        ("replay", ESCAPES),
        (ESCAPES,),
        ("top", file, "--by", ESCAPES),
    ):
        done = cli(*arguments)
        assert done.code == 2
        assert_plain(done.err)
