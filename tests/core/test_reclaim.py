"""Release of memory: garbage collection, oversize blocks, the whole cache (1.8 to 1.10, 2.5)."""

from __future__ import annotations

import pytest

from allocsim import OutOfMemoryError
from allocsim.core import RELEASES, CachingAllocator
from allocsim.errors import UndefinedBehaviorError, UpstreamAssertionError
from allocsim.units import MIB

from .conftest import Make


def released(a: CachingAllocator) -> list[int]:
    """Return the MiB of the segments released since the last call, in order."""
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
    """Return 100 MiB full of free segments: oversize ones of 30 and 40 MiB, a normal one of 20."""
    a = make("100MiB", torch_version=torch, conf="max_split_size_mb:25")
    held = [a.malloc(30 * MIB), a.malloc(40 * MIB), a.malloc(20 * MIB)]
    for ptr in held:
        a.free(ptr)
    a.take_history()
    return a


@pytest.mark.parametrize("torch", RELEASES)
def test_an_oversize_block_that_is_enough_is_released_alone(make: Make, torch: str) -> None:
    a = oversize(make, torch)
    a.malloc(12 * MIB)  # a normal request: the segment of 20 MiB serves it, not the oversize ones
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


@pytest.mark.parametrize("torch", RELEASES)
@pytest.mark.parametrize(
    ("request_mib", "sizes"), [(70, [40, 30]), (72, [40, 30, 26]), (96, [40, 30, 26])]
)
def test_releasing_ends_as_soon_as_it_is_enough(
    make: Make, request_mib: int, sizes: list[int], torch: str
) -> None:
    """A sum equal to the request is enough; a block of exactly max_split_size is oversize."""
    a = make("96MiB", torch_version=torch, conf="max_split_size_mb:26")
    for ptr in [a.malloc(size * MIB) for size in (26, 30, 40)]:
        a.free(ptr)
    a.take_history()
    a.malloc(request_mib * MIB)
    assert released(a) == sizes
    assert a.memory_stats()["num_alloc_retries"] == 0


@pytest.mark.parametrize("torch", RELEASES)
def test_one_byte_short_is_not_enough(make: Make, torch: str) -> None:
    """The request is rounded to 512 bytes more than the sum; up to 2.3 it is not rounded."""
    a = make("74MiB", torch_version=torch, conf="max_split_size_mb:25,roundup_power2_divisions:1")
    for ptr in [a.malloc(size * MIB) for size in (30, 40)]:
        a.free(ptr)
    a.take_history()
    a.malloc(70 * MIB + 1)
    assert released(a) == [40, 30]
    assert a.memory_stats()["num_alloc_retries"] == 1


def test_only_the_requests_own_stream_is_looked_at(make: Make) -> None:
    a = oversize(make)
    a.malloc(24 * MIB, stream=4096)
    assert released(a) == [20, 30, 40]  # nothing on that stream: the whole cache is released
    assert a.memory_stats()["num_alloc_retries"] == 1


@pytest.mark.parametrize("torch", ["2.1", "2.4"])
def test_meeting_an_expandable_block_asserts_before_2_5(make: Make, torch: str) -> None:
    a = make("100MiB", torch_version=torch, conf="expandable_segments:True")
    a.free(a.malloc(60 * MIB))
    a.set_allocator_settings("max_split_size_mb:25,expandable_segments:False")
    before = a.memory_snapshot(), a.memory_stats()
    with pytest.raises(UpstreamAssertionError, match="oversize expandable block"):
        a.malloc(50 * MIB)
    assert (a.memory_snapshot(), a.memory_stats()) == before


def test_freeing_part_of_a_segment_is_refused_by_name(make: Make) -> None:
    a = make("100MiB")
    a.malloc(10 * MIB)
    a.free(a.malloc(90 * MIB))
    a.malloc(30 * MIB)
    a.set_allocator_settings("max_split_size_mb:25")
    before = a.memory_snapshot(), a.memory_stats()
    with pytest.raises(UndefinedBehaviorError, match="max_split_size_mb was lowered below a split"):
        a.malloc(30 * MIB)
    assert (a.memory_snapshot(), a.memory_stats()) == before


# -- garbage collection --------------------------------------------------------------------


def collecting(make: Make, fraction: float | None, torch: str = "2.15") -> CachingAllocator:
    """Return 1000 MiB with a threshold of a tenth and three free segments, the first the oldest."""
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
    """150 MiB reserved, 90 allowed: 60 too many; ages 3, 2, 1 and their mean 2.

    The first pass takes 40 and 50 and does not stop at 60.
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


def test_one_byte_above_the_threshold_is_too_much(make: Make) -> None:
    a = make(600 * MIB - 4, conf="garbage_collection_threshold:0.5")
    a.set_per_process_memory_fraction(0.5)  # half of it is 150 MiB less one byte
    a.free(a.malloc(150 * MIB))
    a.take_history()
    a.malloc(10 * MIB, stream=4096)
    assert released(a) == [150]


@pytest.mark.parametrize(("spare", "sizes"), [(0, [40, 50]), (5, [40, 50, 60])])
def test_a_pass_that_reaches_the_target_to_the_byte_is_the_last(
    make: Make, spare: int, sizes: list[int]
) -> None:
    """60 of 150 MiB reserved are allowed, or a byte less: the first pass releases 90."""
    a = collecting(make, 0.9)
    a.set_per_process_memory_fraction((600 * MIB - spare) / (1000 * MIB))
    a.malloc(100 * MIB)
    assert released(a) == sizes


def test_the_average_of_a_second_pass_is_that_of_the_blocks_left(make: Make) -> None:
    """Ages 5, 2 and 1: the first exceeds the mean of 2.7, the second that of the rest, 1.5."""
    a = make(1000 * MIB, conf="garbage_collection_threshold:0.5")
    a.set_per_process_memory_fraction(0.9)
    a.free(a.malloc(40 * MIB))
    second, third, _ = (a.malloc(size * MIB) for size in (50, 60, 70))
    a.free(second)
    a.malloc(80 * MIB)
    a.free(third)
    a.take_history()
    a.set_per_process_memory_fraction(0.48)  # 300 MiB are held, 240 allowed
    a.malloc(100 * MIB)
    assert released(a) == [40, 50]


def test_a_split_rest_is_passed_over_however_old(make: Make) -> None:
    a = make(1000 * MIB, conf="garbage_collection_threshold:0.1")
    a.malloc(2 * MIB)  # leaves a split rest of 18 MiB
    a.set_per_process_memory_fraction(0.9)
    for size in (40, 50):
        a.free(a.malloc(size * MIB))
    a.take_history()
    a.malloc(100 * MIB)  # 110 MiB are held, 90 allowed; the average age of 2 and 1 is 1.5
    assert released(a) == [40]


def test_an_expandable_segment_that_is_mapped_as_a_whole_ends_the_passes(make: Make) -> None:
    """It is unsplit and counts, but a pass cannot release it."""
    options = "expandable_segments:True,expandable_segments_reserve:0.04"
    a = make(1000 * MIB, conf=f"garbage_collection_threshold:0.01,{options}")
    a.set_per_process_memory_fraction(0.9)
    a.free(a.malloc(40 * MIB))
    a.take_history()
    a.malloc(30 * MIB, stream=4096)
    assert [entry.action for entry in a.take_history()] == ["segment_map", "alloc"]
    assert a.reserved_bytes == 80 * MIB


def test_the_words_for_a_split_block_that_would_be_freed(make: Make) -> None:
    a = make("100MiB", conf="max_split_size_mb:64")
    front = a.malloc(40 * MIB)
    a.free(front)
    a.malloc(8 * MIB)
    a.set_allocator_settings("max_split_size_mb:25")
    with pytest.raises(UndefinedBehaviorError) as caught:
        a.malloc(62 * MIB)
    assert str(caught.value) == (
        "max_split_size_mb was lowered below a split block of 32.00 MiB; PyTorch would free part "
        "of a segment here"
    )
