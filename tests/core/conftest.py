"""Helpers for all tests: `make` creates an allocator, `held` allocates a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from allocsim.core import CachingAllocator

Make = Callable[..., CachingAllocator]


@pytest.fixture
def make() -> Make:
    """Return a factory of allocators on 1 GiB that keep their history."""

    def allocator(device_memory: int | str = "1GiB", **arguments: Any) -> CachingAllocator:
        return CachingAllocator(device_memory, **({"record_history": True} | arguments))

    return allocator


def held(a: CachingAllocator, size: int, stream: int = 0) -> int:
    """Allocate a block and return its address, which must not be None."""
    ptr = a.malloc(size, stream)
    assert ptr is not None
    return ptr
