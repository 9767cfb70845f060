"""Fixtures for programs whose last request fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.analysis.explain.state_at_error import StateAtError

Program = Callable[[CachingAllocator], object]


@dataclass(frozen=True, slots=True)
class Failure:
    """State after a failed request; `error` is PyTorch's text."""

    allocator: CachingAllocator
    moment: StateAtError
    error: OutOfMemoryError


@pytest.fixture
def failed() -> Callable[..., Failure]:
    """Run a program that runs out of memory; `stream` is that of its last request."""

    def play(
        program: Program, memory: str, conf: str = "", *, stream: int = 0, **options: Any
    ) -> Failure:
        allocator = CachingAllocator(memory, conf, record_history=True, **options)
        with pytest.raises(OutOfMemoryError) as caught:
            program(allocator)
        moment = StateAtError.of(allocator, caught.value.rounded_bytes, stream)
        return Failure(allocator, moment, caught.value)

    return play
