"""First screens: verdict, cause, setting to paste and owners in at most 22 lines of 80 columns."""

from __future__ import annotations

import io
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.cli.output import write_screen
from allocsim.report import Answer, Tone
from allocsim.report.answer import HEIGHT, Part, answer_of
from allocsim.report.layout import WIDTH, shortened
from allocsim.units import MIB
from tests.recordings import phantom_recordings

Cli = Callable[..., Any]
TRACES = Path(__file__).parents[2] / "traces"
FULL = [
    f"{name}-tight-torch2.6"
    for name in ("cuda_graphs", "llama_checkpointing", "two_streams", "unet_diffusion_step")
]
FAILED = [
    path
    for path in phantom_recordings()
    if "oom" in path.name or path.name.removesuffix(".npz.gz") in FULL
]
"""Recordings that end out of memory."""
COMMANDS = ("explain", "replay", "tune", "risk")
MESSAGES = [
    json.loads(line)["text"]
    for line in (Path(__file__).parents[1] / "explain" / "oom_messages.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]


def fits(screen: str) -> bool:
    """Return True if the text fits one screen; a line to paste may be longer than 80 columns."""
    lines = screen.splitlines()
    wide = [line for line in lines if len(line) > WIDTH and "PYTORCH_CUDA_ALLOC_CONF=" not in line]
    return len(lines) <= HEIGHT and not wide


def label_of(line: str) -> str:
    return line[:16].strip()


def labels(screen: str) -> list[str]:
    return [label for line in screen.splitlines() if (label := label_of(line))]


def assert_whole(command: str, screen: str) -> None:
    assert fits(screen), screen
    printed = labels(screen)
    verdict = "It fails" if command == "risk" else "Verdict"
    assert printed.index(verdict) < printed.index("To paste")
    assert "Held by" in printed
    if command == "explain":
        assert printed.index("Verdict") < printed.index("Because") < printed.index("To paste")
    assert screen.splitlines()[-1].startswith("-v: ")


@pytest.mark.parametrize("command", ["explain", "replay"])
def test_first_screen_of_an_error_fits(cli: Cli, command: str) -> None:
    done = cli(command, TRACES / "recordings" / "gpt2_training-oom-torch2.6.npz.gz")
    assert (done.code, done.err) == (0, "")
    assert_whole(command, done.out)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("path", FAILED, ids=lambda path: path.name.split(".npz")[0])
def test_first_screen_of_every_recorded_error_fits(cli: Cli, path: Path, command: str) -> None:
    done = cli(command, path)
    assert (done.code, done.err) == (0, "")
    assert_whole(command, done.out)


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_first_screen_of_every_error_text_fits(cli: Cli, number: int) -> None:
    done = cli("explain", MESSAGES[number])
    assert done.code == 0
    assert fits(done.out), done.out
    assert "Verdict" in labels(done.out)
    assert "Advice" in labels(done.out)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Write a recording of eight devices; the last but one ends out of memory."""
    snapshots = []
    for number in range(8):
        gpu = CachingAllocator("1GiB", record_history=True, device=number)
        for _ in range(3):
            gpu.free(gpu.malloc(530 * MIB))
        if number == 6:
            gpu.malloc(270 * MIB)
            with pytest.raises(OutOfMemoryError):
                gpu.malloc(800 * MIB)
        snapshots.append(gpu.snapshot())
    whole = snapshots[0]
    whole["device_traces"] = [each["device_traces"][n] for n, each in enumerate(snapshots)]
    whole["segments"] = [segment for each in snapshots for segment in each["segments"]]
    path = tmp_path / "many.pickle"
    path.write_bytes(pickle.dumps(whole, protocol=4))
    return path


@pytest.mark.parametrize("command", ["explain", "replay", "tune"])
def test_first_screen_of_eight_devices_fits(cli: Cli, many: Path, command: str) -> None:
    done = cli(command, many)
    assert done.code == 0, done.err
    assert fits(done.out), done.out
    if command != "tune":
        assert "device 6: " in done.out
        assert "5 more devices: none failed" in " ".join(done.out.split())


def test_first_screen_of_a_full_device_lists_owners_first(cli: Cli) -> None:
    done = cli("explain", TRACES / "gpt2-expandable-oom-torch2.15.pickle.gz")
    printed = labels(done.out)
    assert printed.index("Held by") < printed.index("To paste")
    assert "optimizer state" in done.out


# -- omitted parts and styles -------------------------------------------------------------


def test_first_screen_leaves_out_the_least_needed_parts() -> None:
    parts = [Part(["a"] * 10), Part(["b"] * 6, rank=1), Part(["c"] * 8, rank=2), Part(["d"] * 4)]
    lines = [line for line in str(answer_of(parts, "more")).splitlines() if line]
    assert lines == ["a"] * 10 + ["b"] * 6 + ["d"] * 4 + ["more"]


def test_first_screen_has_empty_lines_only_with_room_for_all() -> None:
    parts = [Part(["a"] * 9), Part(["b"] * 9, starts=True)]
    assert str(answer_of(parts, "more")).splitlines().count("") == 2
    parts[0] = Part(["a"] * 11)
    assert str(answer_of(parts, "more")).splitlines().count("") == 0


def test_shortened_cuts_a_path_at_a_separator() -> None:
    path = "/home/me/project/models/attention.py:12 forward"
    assert shortened(path, 80) == path
    assert shortened(path, 36) == "…/models/attention.py:12 forward"
    assert len(shortened("x" * 50, 20)) == 20
    assert shortened("x" * 50, 20).startswith("…")


class Terminal(io.StringIO):
    """Standard output that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


SCREEN = Answer((("Verdict", Tone.FAILURE), ("[red]x[/red]", Tone.PASTE), ("y", Tone.PLAIN)))


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    out = Terminal()
    with monkeypatch.context() as patch:
        for name in ("NO_COLOR", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm-256color", **environment}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdout", out)
        write_screen(SCREEN)
    return out.getvalue()


def test_first_screen_on_a_terminal_has_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = on_a_terminal(monkeypatch)
    assert printed.count("\x1b[1;3") == 2
    assert "[red]x[/red]" in printed


def test_first_screen_has_no_colour_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1;3" not in on_a_terminal(monkeypatch, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(monkeypatch, TERM="dumb")


def test_first_screen_in_a_pipe_has_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    write_screen(SCREEN)
    assert capsys.readouterr().out == "Verdict\n[red]x[/red]\ny\n"
