"""A word for stories of failed requests: `failed` gives the moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.questions.explain.state_at_error import StateAtError

Program = Callable[[CachingAllocator], object]


@dataclass(frozen=True, slots=True)
class Failure:
    """What is left after a request that failed.  error: PyTorch's own words."""

    allocator: CachingAllocator
    moment: StateAtError
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
        moment = StateAtError.of(allocator, caught.value.rounded_bytes, stream)
        return Failure(allocator, moment, caught.value)

    return play
