"""Two words for every story: `make` an allocator that tells all, `held` a block of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from allocsim.core import CachingAllocator

Make = Callable[..., CachingAllocator]


@pytest.fixture
def make() -> Make:
    """An allocator on 1 GiB with its history kept; arguments as of CachingAllocator."""

    def allocator(device_memory: int | str = "1GiB", **arguments: Any) -> CachingAllocator:
        return CachingAllocator(device_memory, **({"record_history": True} | arguments))

    return allocator


def held(a: CachingAllocator, size: int, stream: int = 0) -> int:
    """The address of a block that is known to be there."""
    ptr = a.malloc(size, stream)
    assert ptr is not None
    return ptr
