"""Pools marked use_on_oom (semantics 5.6), as observed on the compiled allocators."""

from __future__ import annotations

import pytest

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.errors import UpstreamAssertionError
from allocsim.units import MIB

LATER = ("2.11", "2.13", "2.15")
ALL = ("2.8", "2.10", *LATER)


def with_cached_pool(release: str, conf: str = "", memory: str = "64MiB") -> CachingAllocator:
    """Return a device where pool 1 has 30 MiB free and the default pool uses 30 MiB."""
    a = CachingAllocator(memory, conf, release, record_history=True)
    a.begin_allocate_to_pool(1, use_on_oom=True)
    held = a.malloc(30 * MIB)
    a.end_allocate_to_pool(1)
    a.free(held)
    a.malloc(30 * MIB)
    return a


@pytest.mark.parametrize("release", ALL)
def test_a_request_that_fails_is_served_by_the_overflow_pool(release: str) -> None:
    a = with_cached_pool(release)
    assert a.malloc(30 * MIB) == 0
    a.check()


@pytest.mark.parametrize(
    ("release", "retries"), [("2.8", 1), ("2.10", 1), ("2.11", 0), ("2.15", 0)]
)
def test_caches_are_released_first_up_to_2_10_only(release: str, retries: int) -> None:
    a = with_cached_pool(release)
    a.malloc(30 * MIB)
    assert a.memory_stats()["num_alloc_retries"] == retries


@pytest.mark.parametrize("release", ["2.10", *LATER])
def test_expandable_blocks_of_an_overflow_pool_are_passed_over(release: str) -> None:
    """From 2.10 on the request searches as if expandable segments were off."""
    a = with_cached_pool(release, "expandable_segments:True", "84MiB")
    with pytest.raises(OutOfMemoryError):
        a.malloc(30 * MIB)
    a.check()


@pytest.mark.parametrize("release", LATER)
def test_the_mark_outlives_the_last_release_and_then_asserts(release: str) -> None:
    a = with_cached_pool(release)
    a.release_pool(1)
    before = a.memory_snapshot(), a.memory_stats()
    with pytest.raises(UpstreamAssertionError, match="used again after its last release"):
        a.malloc(60 * MIB)
    assert (a.memory_snapshot(), a.memory_stats()) == before
    a.check()


@pytest.mark.parametrize("release", ["2.8", "2.10"])
def test_up_to_2_10_the_released_pool_is_gone_before_it_is_asked(release: str) -> None:
    a = with_cached_pool(release)
    a.release_pool(1)
    with pytest.raises(OutOfMemoryError):
        a.malloc(60 * MIB)
    assert a.reserved_bytes == 30 * MIB
    a.check()
