"""A word that many stories use: `recorded` makes a recording of a program that the model runs."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.trace import Recording, load

Program = Callable[[CachingAllocator], object]


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
