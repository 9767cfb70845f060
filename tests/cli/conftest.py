"""Three words for the tests of the command line: `traces`, where the recordings are, `cli`, and
`state`, a snapshot without a history."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from allocsim import CachingAllocator
from allocsim.cli import main
from allocsim.units import MIB


@dataclass(frozen=True, slots=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def traces() -> Path:
    """The folder of the recordings in the tree."""
    return Path(__file__).parents[2] / "traces"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs a command line in this process."""

    def run(*argv: object) -> Done:
        capsys.readouterr()
        code = main([str(argument) for argument in argv])
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A snapshot taken after a crash: a cache and a model's weights, and no history."""
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
