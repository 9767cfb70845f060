"""Two words that many stories use, each for what a program did that the model ran: `recorded` makes
a recording of it, `write` a file.

The history is the model's own: such a recording proves what is done with it, not the model.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.trace import Recording, load

Program = Callable[[CachingAllocator], object]

# Tests leave nothing in the user's cache and find nothing there; those of the cache have their own.
os.environ["ALLOCSIM_NO_CACHE"] = "1"

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Recording]:
    """The recording of a program that the model ran; an error of the program's is caught."""

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
    """Runs a program on a device of its own and writes its recording; the path."""

    def make(
        program: Program, *, name: str = "run.pickle", memory: str = "16GiB", conf: str = ""
    ) -> Path:
        allocator = CachingAllocator(memory, conf, record_history=True)
        program(allocator)
        path = tmp_path / name
        path.write_bytes(pickle.dumps(allocator.snapshot(), protocol=4))
        return path

    return make
