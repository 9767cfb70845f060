"""Fixtures: `recorded` makes a recording of a program run by the model, `write` makes a file of it.

The model makes the history, so such a recording tests the code that reads it, not the model.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.recording import Recording, load

Program = Callable[[CachingAllocator], object]

# Tests do not use the user's cache; tests of the cache have a separate one.
os.environ["ALLOCSIM_NO_CACHE"] = "1"

# The time of an example depends on the load of the machine, not on the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_collection_finish() -> None:
    # Keep twelve thousand collected tests out of each later collection of garbage.
    gc.collect()
    gc.freeze()


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Recording]:
    """Return a function that records a program run by the model; its OOM error is caught."""

    def record(program: Program, memory: str, conf: str = "", **options: Any) -> Recording:
        allocator = CachingAllocator(memory, conf, record_history=True, **options)
        with contextlib.suppress(OutOfMemoryError):
            program(allocator)
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(allocator.snapshot(), protocol=4))
        return load(path)

    return record


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that runs a program on a new device, and returns its recording's path."""

    def make(
        program: Program, *, name: str = "run.pickle", memory: str = "16GiB", conf: str = ""
    ) -> Path:
        allocator = CachingAllocator(memory, conf, record_history=True)
        program(allocator)
        path = tmp_path / name
        path.write_bytes(pickle.dumps(allocator.snapshot(), protocol=4))
        return path

    return make
