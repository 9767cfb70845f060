"""Fixtures: `entries` builds a trace from rows, `recorded` records a program run by the model."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allocsim import CachingAllocator, load
from allocsim.recording import Action, Recording, Trace

Row = tuple[Action, int, int] | tuple[Action, int, int, int]
Program = Callable[[CachingAllocator], object]


@pytest.fixture
def entries() -> Callable[..., Trace]:
    """Return a function that builds a trace from rows (action, addr, size[, stream])."""

    def make(*rows: Row) -> Trace:
        full = [(*row, 0)[:4] for row in rows]
        action, addr, size, stream = zip(*full, strict=True) if full else ((), (), (), ())
        none = np.full(len(full), -1, dtype=np.int32)
        return Trace(
            device=0,
            action=np.array(action, dtype=np.uint8),
            addr=np.array(addr, dtype=np.uint64),
            size=np.array(size, dtype=np.int64),
            stream=np.array(stream, dtype=np.uint64),
            frames=none,
            pool_id=none.copy(),
        )

    return make


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Any], Recording]:
    """Return a function that writes a snapshot dict to a file and loads it again."""

    def write(snapshot: Any) -> Recording:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(snapshot, protocol=4))
        return load(path)

    return write


@pytest.fixture
def recorded(written: Callable[[Any], Recording]) -> Callable[..., Recording]:
    """Return a function that records a program on a new allocator.

    The model writes the history, so the recording tests the replay, not the model.
    """

    def record(program: Program, memory: str = "16GiB", conf: str = "") -> Recording:
        allocator = CachingAllocator(memory, conf, record_history=True)
        program(allocator)
        return written(allocator.snapshot())

    return record
