"""Wrong input gives one sentence on standard error, exit code 2, and no standard output."""

from __future__ import annotations

import gzip
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import allocsim.replaying
from allocsim.errors import InvariantError, OutOfMemoryError, UndefinedBehaviorError

Cli = Callable[..., Any]
NAME = "gpt2-ragged-oom-torch2.15.pickle.gz"
SHARED = Path(__file__).parents[3] / "shared" / "recordings"


def refused(outcome: Any, *words: str) -> None:
    """Assert that the error is one sentence with these words."""
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("allocsim: ")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    assert len(outcome.err) < 1100
    for word in words:
        assert word in outcome.err


class Hostile:
    """Pickle that would run a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def test_files_that_are_no_recordings(cli: Cli, traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "file.pickle"
    refused(cli("replay", path), "file.pickle", "does not exist")
    refused(cli("replay", tmp_path), "is a directory")
    path.write_bytes(b"")
    refused(cli("replay", path), "empty")
    path.write_text("hello world\n")
    refused(cli("replay", path), "text", "hello world")
    path.write_bytes(pickle.dumps([1, 2]))
    refused(cli("replay", path), "expected a dictionary")
    whole = gzip.decompress((traces / NAME).read_bytes())
    path.write_bytes(whole[: len(whole) // 2])
    refused(cli("replay", path), "cut short")
    path.write_bytes((traces / NAME).read_bytes()[:50_000])
    refused(cli("replay", path), "gzip")


def test_hostile_pickle_runs_no_code(cli: Cli, tmp_path: Path) -> None:
    path, proof = tmp_path / "evil.pickle", tmp_path / "proof"
    path.write_bytes(pickle.dumps({"segments": [Hostile(f"touch {proof}")]}))
    refused(cli("replay", path), "nothing in it was run")
    assert not proof.exists()


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs recordings of other people")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("not-a-recording", "contradicts itself"),
        ("attention-state-torch2.1", "holds the state only"),
        ("flexgen-oom-state-torch2.0", "holds the state only"),
        ("vllm-private-pools-state", "holds the state only"),
        ("one-event-torch2.1", "a single entry"),
    ],
)
def test_recordings_with_nothing_to_replay(cli: Cli, name: str, words: str) -> None:
    refused(cli("replay", SHARED / f"{name}.pickle"), words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--conf", "garbage!!"], "garbage!!"),
        (["--conf", "max_split_size_mb:5"], "max_split_size_mb"),
        (["--conf", "expandable_segments:\x1b[31m"], r"\x1b"),
        (["--conf", "x" * 10_000], "xxx"),
        (["--device-memory", "banana"], "banana"),
        (["--device-memory", "0"], "'0'"),
        (["--device-memory", "24"], "did you mean 24GiB?"),
        (["--device-memory", "9" * 30 + "TiB"], "9999"),
        (["--torch", "1.0"], "1.0"),
        (["--torch", "banana"], "banana"),
        (["--device", "7"], "device 7"),
        (["--device", "-1"], "-1"),
        (["--check-every", "often"], "often"),
        (["--strict", "--conf", "expandable_segments:True"], "--strict"),
        (["--what"], "--what"),
        (["--stri"], "--stri"),
    ],
)
def test_wrong_option_values_are_refused(
    cli: Cli, traces: Path, options: list[str], words: str
) -> None:
    refused(cli("replay", traces / NAME, *options), words)


def test_wrong_commands_are_refused(cli: Cli) -> None:
    refused(cli("replay"), "FILE")
    refused(cli("fly"), "fly")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs recordings of other people")
def test_replay_refuses_a_device_smaller_than_its_initial_memory(cli: Cli) -> None:
    path = SHARED / "lm-forward-full-card-torch2.6.pickle"
    refused(cli("replay", path, "--device-memory", "10GiB"), "10.00 GiB", "43.99 GiB")


@pytest.mark.parametrize(
    "error",
    [
        InvariantError("rule 3"),
        OutOfMemoryError("full", requested_bytes=1, rounded_bytes=512, tried_bytes=512),
        ZeroDivisionError("division by zero"),
    ],
)
def test_internal_error_is_called_an_error_of_allocsim(
    cli: Cli, traces: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    cli("replay", traces / NAME)  # so that no module keeps the patched function when it is imported
    monkeypatch.setattr(allocsim.replaying, "replay_prepared", fail)
    done = cli("replay", traces / NAME)
    assert (done.code, done.out) == (70, "")
    assert "an error of allocsim itself, please report it" in done.err
    assert "Traceback" not in done.err
    monkeypatch.setenv("ALLOCSIM_DEBUG", "1")
    assert "Traceback" in cli("replay", traces / NAME).err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UndefinedBehaviorError("beyond the rules"), 2),
        (MemoryError(), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_other_errors_end_a_command_with_their_code_and_one_line(
    cli: Cli,
    traces: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    cli("replay", traces / NAME)  # as above
    monkeypatch.setattr(allocsim.replaying, "replay_prepared", fail)
    done = cli("replay", traces / NAME)
    assert (done.code, done.out) == (code, "")
    assert done.err.count("\n") == 1
