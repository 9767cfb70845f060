"""Giving memory back: garbage collection, oversize blocks, the whole cache (1.8 to 1.10, 2.5)."""

from __future__ import annotations

import pytest

from allocsim import OutOfMemoryError, UndefinedBehaviorError, UpstreamAssertionError
from allocsim.core import RELEASES, CachingAllocator
from allocsim.units import MIB

from .conftest import Make


def released(a: CachingAllocator) -> list[int]:
    """Sizes in MiB of the segments given back since the last look, in order."""
    return [entry.size // MIB for entry in a.take_history() if entry.action == "segment_free"]


def test_empty_cache_releases_large_before_small_in_key_order(make: Make) -> None:
    a = make()
    held = [
        a.malloc(size, stream)
        for size, stream in (
            (512, 0),
            (14 * MIB, 4096),
            (30 * MIB, 0),
            (12 * MIB, 0),
            (16 * MIB, 4096),
        )
    ]
    kept = a.malloc(40 * MIB)
    for ptr in held:
        a.free(ptr)
    a.take_history()
    a.empty_cache()
    assert released(a) == [12, 30, 14, 16, 2]
    assert a.reserved_bytes == 40 * MIB
    assert a.memory_stats()["num_device_free"] == 5
    a.free(kept)
    a.check()


def test_a_segment_in_use_stays(make: Make) -> None:
    a = make()
    a.malloc(1000)
    a.empty_cache()
    assert a.reserved_bytes == 2 * MIB


def test_a_failed_request_releases_everything_and_counts_one_retry(make: Make) -> None:
    a = make("64MiB")
    a.free(a.malloc(30 * MIB))
    a.free(a.malloc(1000))
    a.take_history()
    a.malloc(60 * MIB)
    assert [entry.action for entry in a.take_history()] == [
        *("segment_free", "segment_free", "segment_alloc", "alloc")
    ]
    stats = a.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 0)
    with pytest.raises(OutOfMemoryError):
        a.malloc(60 * MIB)
    stats = a.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (2, 1)


def oversize(make: Make, torch: str = "2.15") -> CachingAllocator:
    """100 MiB full of free oversize segments of 30 and 40 MiB and a normal one of 20."""
    a = make("100MiB", torch_version=torch, conf="max_split_size_mb:25")
    held = [a.malloc(30 * MIB), a.malloc(40 * MIB), a.malloc(20 * MIB)]
    for ptr in held:
        a.free(ptr)
    a.take_history()
    return a


@pytest.mark.parametrize("torch", RELEASES)
def test_an_oversize_block_that_is_enough_is_released_alone(make: Make, torch: str) -> None:
    a = oversize(make, torch)
    a.malloc(12 * MIB)  # not from them: it is a normal request; the 20 MiB segment serves it
    a.malloc(24 * MIB)
    assert released(a) == [30]
    assert a.memory_stats()["num_alloc_retries"] == 0


def test_else_they_are_released_from_the_largest(make: Make) -> None:
    a = oversize(make)
    a.malloc(68 * MIB)
    assert released(a) == [40, 30]
    assert a.memory_stats()["num_alloc_retries"] == 0


def test_what_was_released_stays_so_when_it_was_not_enough(make: Make) -> None:
    a = oversize(make)
    with pytest.raises(OutOfMemoryError):
        a.malloc(110 * MIB)
    assert released(a) == [40, 30, 20]
    assert a.memory_stats()["num_alloc_retries"] == 1


def test_only_the_requests_own_stream_is_looked_at(make: Make) -> None:
    a = oversize(make)
    a.malloc(24 * MIB, stream=4096)
    assert released(a) == [20, 30, 40]  # nothing of that stream: the whole cache goes
    assert a.memory_stats()["num_alloc_retries"] == 1


@pytest.mark.parametrize("torch", ["2.1", "2.4"])
def test_meeting_an_expandable_block_asserts_before_2_5(make: Make, torch: str) -> None:
    a = make("100MiB", torch_version=torch, conf="expandable_segments:True")
    a.free(a.malloc(60 * MIB))
    a.set_allocator_settings("max_split_size_mb:25,expandable_segments:False")
    before = a.segments(), a.memory_stats()
    with pytest.raises(UpstreamAssertionError, match="oversize expandable block"):
        a.malloc(50 * MIB)
    assert (a.segments(), a.memory_stats()) == before


def test_freeing_part_of_a_segment_is_refused_by_name(make: Make) -> None:
    a = make("100MiB")
    a.malloc(10 * MIB)
    a.free(a.malloc(90 * MIB))
    a.malloc(30 * MIB)
    a.set_allocator_settings("max_split_size_mb:25")
    before = a.segments(), a.memory_stats()
    with pytest.raises(UndefinedBehaviorError, match="max_split_size_mb was lowered below a split"):
        a.malloc(30 * MIB)
    assert (a.segments(), a.memory_stats()) == before


# -- garbage collection --------------------------------------------------------------------


def collecting(make: Make, fraction: float | None, torch: str = "2.15") -> CachingAllocator:
    """1000 MiB with a threshold of a tenth; three free segments, the first the oldest."""
    a = make(1000 * MIB, torch_version=torch, conf="garbage_collection_threshold:0.1")
    if fraction is not None:
        a.set_per_process_memory_fraction(fraction)
    for size in (40, 50, 60):
        a.free(a.malloc(size * MIB))
    a.take_history()
    return a


def test_nothing_is_collected_without_a_limit(make: Make) -> None:
    a = collecting(make, None)
    a.malloc(100 * MIB)
    assert released(a) == []


@pytest.mark.parametrize("torch", RELEASES)
def test_a_full_fraction_is_a_limit_up_to_2_9(make: Make, torch: str) -> None:
    a = collecting(make, 1.0, torch)
    a.malloc(100 * MIB)
    is_limit = int(torch.split(".")[1]) < 10
    assert bool(released(a)) is is_limit


def test_blocks_at_or_above_the_average_age_go_pass_by_pass(make: Make) -> None:
    """150 MiB held, 90 allowed: 60 too many; ages 3, 2, 1 and their mean 2.

    The first pass takes 40 and 50 and is not cut short at 60.
    """
    a = collecting(make, 0.9)
    a.malloc(100 * MIB)
    assert released(a) == [40, 50]


def test_a_second_pass_follows_if_the_first_was_not_enough(make: Make) -> None:
    a = collecting(make, 0.9)
    a.set_per_process_memory_fraction(0.3)  # 120 too many now
    a.malloc(100 * MIB)
    assert released(a) == [40, 50, 60]


def test_a_hit_collects_nothing_but_ages_the_rest(make: Make) -> None:
    a = collecting(make, 0.9)
    a.free(a.malloc(60 * MIB))
    assert released(a) == []
    a.malloc(100 * MIB)  # ages 4, 3, 1 now; the mean is above 2
    assert released(a) == [40, 50]


def test_small_split_and_private_blocks_are_never_collected(make: Make) -> None:
    a = make(1000 * MIB, conf="garbage_collection_threshold:0.01")
    a.set_per_process_memory_fraction(0.5)
    a.free(a.malloc(100))
    a.malloc(2 * MIB)  # leaves a split rest of 18 MiB
    a.begin_allocate_to_pool(1)
    a.free(a.malloc(30 * MIB))
    a.end_allocate_to_pool(1)
    a.take_history()
    a.malloc(100 * MIB)
    assert released(a) == []
    a.check()


def test_at_or_below_the_threshold_nothing_goes(make: Make) -> None:
    a = make(1000 * MIB, conf="garbage_collection_threshold:0.5")
    a.set_per_process_memory_fraction(0.3)
    a.free(a.malloc(150 * MIB))  # exactly half of 300
    a.take_history()
    a.malloc(10 * MIB, stream=4096)
    assert released(a) == []
    a.malloc(10 * MIB, stream=4096)
    assert released(a) == [150]
