"""Two words for stories of failed requests: `failed` gives the moment, `recorded` the recording."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.analysis.moment import Moment
from allocsim.trace import Recording, load

Program = Callable[[CachingAllocator], object]


@dataclass(frozen=True, slots=True)
class Failure:
    """What is left after a request that failed.  error: PyTorch's own words."""

    allocator: CachingAllocator
    moment: Moment
    error: OutOfMemoryError


@pytest.fixture
def failed() -> Callable[..., Failure]:
    """Runs a program that ends out of memory; stream: that of its last request."""

    def play(
        program: Program, memory: str, conf: str = "", *, stream: int = 0, **options: Any
    ) -> Failure:
        allocator = CachingAllocator(memory, conf, record_history=True, **options)
        with pytest.raises(OutOfMemoryError) as caught:
            program(allocator)
        moment = Moment.of(allocator, caught.value.rounded_bytes, stream)
        return Failure(allocator, moment, caught.value)

    return play


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
