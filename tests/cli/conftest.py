"""Fixtures of the command line: `traces`, `cli`, and `state`, a snapshot without a history.

The output of every test with --json is checked against the schema of its command.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from allocsim import CachingAllocator
from allocsim.cli import main
from allocsim.units import MIB
from tests.schemas import wrong_with


@dataclass(frozen=True, slots=True)
class Done:
    """Outcome of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def traces() -> Path:
    """Return the folder of the recordings in the repository."""
    return Path(__file__).parents[2] / "traces"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Return a function that runs a command line in this process."""

    def run(*argv: object) -> Done:
        capsys.readouterr()
        words = [str(argument) for argument in argv]
        done = Done(main(words), *capsys.readouterr())
        if "--json" in words and done.out:
            _check_document(words, done.out)
        return done

    return run


def _check_document(words: list[str], out: str) -> None:
    """Check the printed document against its schema."""
    if words[0] == "watch":
        documents = [json.loads(line) for line in out.splitlines()]
    else:
        documents = [json.loads(out)]
    for document in documents:
        assert wrong_with(words[0], document) == "", " ".join(words)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return a snapshot taken after a crash: a cache and weights, without a history."""
    gpu = CachingAllocator("1GiB", record_history=True)
    gpu.malloc(300 * MIB)
    gpu.malloc(20 * MIB, stream=4096)
    gpu.free(gpu.malloc(64 * MIB))
    snapshot = gpu.snapshot()
    weights = [{"filename": "net.py", "name": "load_weights", "line": 7}]
    cache = [{"filename": "cache_engine.py", "name": "_allocate_kv_cache", "line": 83}]
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            block["frames"] = weights if block["size"] < 30 * MIB else cache
    snapshot["device_traces"] = [[]]
    path = tmp_path / "state.pickle"
    path.write_bytes(pickle.dumps(snapshot, protocol=4))
    return path
