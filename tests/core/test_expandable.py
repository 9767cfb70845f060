"""Expandable segments (semantics 4, 12.7 to 12.9)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim import OutOfMemoryError
from allocsim.core import (
    RELEASES,
    UNLIMITED_DEVICE,
    ReplayAllocator,
    finds_free_block,
    largest_request,
    mapped_for,
)
from allocsim.core.config import longest_reserve
from allocsim.core.device import Device
from allocsim.core.expandable import ExpandableSegment
from allocsim.errors import DriverRefusalError
from allocsim.units import GIB, MIB, TIB, round_up
from tests.core.planting import segment

from .conftest import Make, held

ON = "expandable_segments:True"
ORDER = list(RELEASES)


def maps(a: ReplayAllocator) -> list[tuple[str, int, int]]:
    """Return (map or unmap, address, size) in MiB since the last call."""
    return [
        (entry.action.removeprefix("segment_"), entry.address // MIB, entry.size // MIB)
        for entry in a.take_history()
        if entry.action.startswith("segment_")
    ]


@pytest.mark.parametrize("torch", ORDER)
def test_the_example_of_4_7(make: Make, torch: str) -> None:
    a = make("200MiB", torch_version=torch, conf=ON)
    ptrs = [a.malloc(30_000_000) for _ in range(4)]
    assert maps(a) == [("map", 0, 40), ("map", 40, 20), ("map", 60, 40), ("map", 100, 20)]
    a.free(ptrs[0])
    a.free(ptrs[2])
    a.empty_cache()
    assert maps(a) == [("unmap", 0, 20), ("unmap", 60, 20)]
    assert len(a.memory_snapshot()) == 2
    fifth = a.malloc(50_000_000)
    assert maps(a) == [("map", 120, 60)]
    assert fifth == 4 * 30_000_128  # inside the free tail of the fourth block
    sixth = a.malloc(28_000_000)
    assert sixth == 0
    assert maps(a) == [("map", 0, 20)]
    assert a.memory_stats().get("num_device_alloc", 6) == 6
    a.check()


@pytest.mark.parametrize(
    ("total", "handle", "reserve", "size"),
    [
        (200 * MIB, 20 * MIB, None, 240 * MIB),  # 225 in whole handles
        (200 * MIB, 2 * MIB, None, 226 * MIB),
        (160 * MIB, 20 * MIB, None, 180 * MIB),
        (7, 2 * MIB, None, 2 * MIB),
        (200 * MIB, 20 * MIB, 1, 20 * MIB),
    ],
)
def test_a_reservation_is_nine_eighths_in_whole_handles(
    total: int, handle: int, reserve: int | None, size: int
) -> None:
    reserve = longest_reserve(total) if reserve is None else reserve
    assert ExpandableSegment(Device(total), 0, handle, reserve).size == size


@pytest.mark.parametrize("total", [GIB, 24 * GIB, 448 * GIB, 2 * TIB, UNLIMITED_DEVICE - 1])
def test_a_device_that_ends_reserves_nine_eighths_of_it(total: int) -> None:
    assert longest_reserve(total) == total + total // 8


def test_a_segment_of_a_device_without_end_that_is_full_has_another_behind_it() -> None:
    a = ReplayAllocator(UNLIMITED_DEVICE, ON, torch_version="2.15")
    reserve = round_up(longest_reserve(UNLIMITED_DEVICE), 20 * MIB)
    half = reserve // 2 // GIB * GIB
    assert [a.malloc(half, 0) for _ in range(3)] == [0, half, reserve]
    a.check()


@pytest.mark.parametrize(
    ("ptr", "size", "start", "length"),
    [
        (0, 20, 0, 20),  # a handle at the very edge counts
        (0, 39, 0, 20),
        (1, 39, 20, 20),
        (1, 38, 20, 0),
        (5, 10, 20, 0),
        (20, 60, 20, 60),
    ],
)
def test_whole_handles_are_counted_from_the_base(
    ptr: int, size: int, start: int, length: int
) -> None:
    """12.9: the base is a multiple of 2 MiB, not of the handle."""
    segment = ExpandableSegment(Device(GIB, base_address=6 * MIB), 0, 20 * MIB, 9 * GIB // 8)
    found = segment.whole_handles(6 * MIB + ptr * MIB, size * MIB)
    assert found[1] == length * MIB
    assert found[0] == 6 * MIB + start * MIB


def test_handles_come_back_if_one_is_missing() -> None:
    device = Device(50 * MIB)
    segment = ExpandableSegment(device, 0, 20 * MIB, 60 * MIB)
    assert segment.map(60 * MIB) is None
    assert device.used == 0
    assert segment.map(21 * MIB) == 40 * MIB
    assert device.used == 40 * MIB


def test_large_and_small_have_handles_of_their_own(make: Make) -> None:
    a = make(conf=ON)
    a.malloc(100)
    a.malloc(3 * MIB)
    assert [size for _, _, size in maps(a)] == [2, 20]
    a = make(conf=f"{ON},large_segment_size_mb:64")
    a.malloc(3 * MIB)
    assert [size for _, _, size in maps(a)] == [64]


def test_what_is_not_counted(make: Make) -> None:
    """4.3, 4.5: no segments, no inactive split blocks, no oversize segments."""
    a = make(conf=f"{ON},max_split_size_mb:25")
    a.malloc(5 * MIB)
    a.free(a.malloc(30 * MIB))
    stats = a.memory_stats()
    for key in ("segment.all", "inactive_split.all", "inactive_split_bytes.all"):
        assert stats[f"{key}.allocated"] == 0
    assert stats["oversize_segments.allocated"] == 0
    assert stats["oversize_allocations.allocated"] == 1
    assert stats["reserved_bytes.all.current"] == 40 * MIB
    assert stats["num_device_alloc"] == 2


def test_blocks_split_down_to_512(make: Make) -> None:
    a = make(conf=ON)
    a.malloc(20 * MIB - 512)
    assert [b["size"] for b in a.memory_snapshot()[0]["blocks"]] == [20 * MIB - 512, 512]


def test_the_lowest_run_is_taken_free_and_unmapped_together(make: Make) -> None:
    a = make(conf=ON)
    ptrs = [a.malloc(20 * MIB) for _ in range(5)]
    a.free(ptrs[1])
    a.empty_cache()  # a hole without memory at 20
    a.free(ptrs[2])  # and free memory behind it
    maps(a)
    assert a.malloc(35 * MIB) == 20 * MIB
    assert maps(a) == [("map", 20, 20)]
    a.check()


def test_among_holes_the_one_with_least_room_is_preferred(make: Make) -> None:
    """4.4: the block at the end counts with all the unmapped space behind it."""
    a = make(conf=ON)
    a.malloc(12 * MIB)  # leaves 8 at the growing end
    hole = a.malloc(9 * MIB, stream=4096)
    a.malloc(11 * MIB, stream=4096)
    assert a.malloc(8 * MIB) == 12 * MIB
    a.free(hole)
    a.malloc(100, stream=4096)
    assert a.malloc(5 * MIB, stream=4096) == hole


def test_the_newly_mapped_block_survives_its_merge(make: Make) -> None:
    """12.8: the merged block shows the last request of the unmapped object, here none."""
    a = make("100MiB", conf=ON)
    a.malloc(15 * MIB)
    a.free(a.malloc(4 * MIB))
    with pytest.raises(OutOfMemoryError):
        a.malloc(90 * MIB)
    tail = a.memory_snapshot()[0]["blocks"][-1]
    assert (tail["state"], tail["requested_size"]) == ("inactive", 4 * MIB)
    a.malloc(24 * MIB)
    tail = a.memory_snapshot()[0]["blocks"][-1]
    assert (tail["state"], tail["requested_size"]) == ("inactive", 0)


def test_what_was_mapped_before_a_failure_is_given_back_by_the_retry(make: Make) -> None:
    """4.3: the hole at 20 is mapped, the end cannot be; the retry releases all free handles in
    vain.
    """
    a = make("70MiB", conf=ON)
    ptrs = [a.malloc(20 * MIB) for _ in range(3)]
    a.free(ptrs[1])
    a.empty_cache()
    a.free(ptrs[2])
    maps(a)
    with pytest.raises(OutOfMemoryError):
        a.malloc(60 * MIB)
    assert maps(a) == [("map", 20, 20), ("unmap", 20, 40)]
    assert a.reserved_bytes == 20 * MIB
    a.check()


@pytest.mark.parametrize("torch", ORDER)
def test_a_whole_unmapped_segment_gives_up_its_addresses(make: Make, torch: str) -> None:
    a = make("100MiB", torch_version=torch, conf=ON)
    a.free(a.malloc(30 * MIB))
    a.empty_cache()
    assert maps(a)[-1] == ("unmap", 0, 40)
    assert a.memory_snapshot() == []
    a.malloc(30 * MIB)
    assert maps(a) == [("map", 120, 40)]  # a new base, 9/8 of 100 in whole handles further


@pytest.mark.parametrize("policy", ["bump", "firstfit"])
def test_a_segment_too_short_for_the_request_is_destroyed_in_2_15(make: Make, policy: str) -> None:
    """12.7: "firstfit" reuses the addresses, "bump" does not."""
    a = make("10MiB", conf=f"{ON},expandable_segments_reserve:0.5", address_policy=policy)
    with pytest.raises(OutOfMemoryError):
        a.malloc(30 * MIB)
    a.set_allocator_settings("expandable_segments:False")
    assert a.malloc(2 * MIB - MIB) == (0 if policy == "firstfit" else 2 * 20 * MIB)
    a.check()


@pytest.mark.parametrize("torch", ORDER)
def test_a_request_beyond_the_reservation_runs_out_of_memory(make: Make, torch: str) -> None:
    a = make("10MiB", torch_version=torch, conf=ON)
    with pytest.raises(OutOfMemoryError):
        a.malloc(30 * MIB)
    assert a.reserved_bytes == 0
    a.check()


@pytest.mark.parametrize(
    ("reserve", "mib"),
    [("0.05", 160), ("0.5", 1540), ("1.125", 3460), ("5", 3460), ("1G", 1040), ("1.5g", 1540)],
)
def test_a_configured_reserve_replaces_the_rule(make: Make, reserve: str, mib: int) -> None:
    """4.8: in whole handles, at most 9/8; visible in the address of the next segment."""
    a = make("3GiB", conf=f"{ON},expandable_segments_reserve:{reserve}")
    a.malloc(3 * MIB)
    a.malloc(3 * MIB, stream=4096)
    assert maps(a)[1][1] == mib


def test_switched_off_their_blocks_are_passed_over(make: Make) -> None:
    a = make(conf=ON)
    a.free(a.malloc(30 * MIB))
    a.set_allocator_settings("expandable_segments:False")
    a.malloc(12 * MIB)
    assert [segment["is_expandable"] for segment in a.memory_snapshot()] == [True, False]
    a.empty_cache()
    assert [segment["is_expandable"] for segment in a.memory_snapshot()] == [False]


def test_ordinary_segments_are_released_before_anything_is_unmapped(make: Make) -> None:
    a = make()
    plain = [a.malloc(12 * MIB), a.malloc(100)]
    a.set_allocator_settings(ON)
    mapped = a.malloc(30 * MIB)
    for ptr in (*plain, mapped):
        a.free(ptr)
    a.take_history()
    a.empty_cache()
    released = [(kind, size) for kind, _, size in maps(a)]
    assert released == [("free", 12), ("unmap", 40), ("free", 2)]
    assert a.reserved_bytes == 0
    a.check()


def test_another_streams_hole_is_never_mapped(make: Make) -> None:
    """Stream 1 has an unmapped hole at address 0; stream 0 makes a separate segment."""
    a = make(conf="expandable_segments:True")
    first = held(a, 20 * MIB, 1)
    held(a, 20 * MIB, 1)
    a.free(first)
    a.empty_cache()
    assert first == 0
    assert held(a, 20 * MIB, 0) != 0
    a.check()


def test_a_larger_ordinary_block_behind_an_expandable_one_is_not_released(make: Make) -> None:
    """1.10: the search goes back from the first block that is large enough, never forward."""
    a = make("110MiB", conf="expandable_segments:True")
    expandable = held(a, 40 * MIB)
    a.set_allocator_settings("expandable_segments:False")
    ordinary = held(a, 60 * MIB)
    a.set_allocator_settings("max_split_size_mb:21")
    a.free(expandable)
    a.free(ordinary)
    held(a, 30 * MIB)
    assert a.memory_stats()["num_alloc_retries"] == 1


@pytest.mark.parametrize("torch", ["2.8", "2.10", "2.12"])
def test_unmapping_waits_for_the_stream_of_the_segment_and_no_other(make: Make, torch: str) -> None:
    """4.6, observed: visible only where a scope prevents the other waits."""
    a = make(torch_version=torch, conf=ON)
    a.begin_allocate_to_pool(1)
    a.free(held(a, 20 * MIB, 4096))
    a.end_allocate_to_pool(1)
    a.release_pool(1)
    waits = {stream: held(a, 512) for stream in (4096, 8192)}
    for stream, ptr in waits.items():
        a.record_stream(ptr, stream)
        a.free(ptr)
    a.begin_allocate_to_pool(2)
    a.empty_cache()
    a.end_allocate_to_pool(2)
    assert maps(a)[-1] == ("unmap", 0, 20)
    assert a.malloc(512) == waits[4096]
    assert a.malloc(512) not in waits.values()
    a.check()


UNROUNDED = f"{ON},roundup_power2_divisions:1"


@pytest.mark.parametrize("torch", ["2.1", "2.3"])
@pytest.mark.parametrize(("less", "is_hole"), [(1, True), (0, False)])
def test_room_is_told_apart_to_the_byte(make: Make, torch: str, less: int, is_hole: bool) -> None:
    """4.4, observed: 1.5 MiB with the last 20 MiB unmapped behind it, against an equal hole."""
    a = make("40MiB", torch_version=torch, conf=UNROUNDED)
    hole = held(a, 20 * MIB + 3 * MIB // 2 - less)
    kept = held(a, 17 * MIB + less)
    a.free(hole)
    assert a.malloc(1_258_291) == (hole if is_hole else kept + 17 * MIB)


@pytest.mark.parametrize("torch", ["2.1", "2.3"])
def test_a_run_that_is_one_byte_short_is_passed_over(make: Make, torch: str) -> None:
    """Observed."""
    a = make(torch_version=torch, conf=UNROUNDED)
    ptrs = [held(a, 20 * MIB) for _ in range(3)]
    a.free(ptrs[1])
    a.empty_cache()
    assert a.malloc(20 * MIB + 1) == 60 * MIB
    assert a.malloc(20 * MIB) == 20 * MIB
    a.check()


def test_a_request_may_fill_the_whole_reserve(make: Make) -> None:
    """Observed on 2.15.0."""
    a = make("200MiB", conf=f"{ON},expandable_segments_reserve:0.5")
    assert a.malloc(100 * MIB) == 0
    assert maps(a) == [("map", 0, 100)]


@pytest.mark.parametrize("torch", ["2.1", "2.15"])
def test_switched_off_the_next_ordinary_block_serves(make: Make, torch: str) -> None:
    """4.4, observed: better fits that are expandable are skipped, one after another."""
    a = make(torch_version=torch, conf=ON)
    first, _ = held(a, 40 * MIB), held(a, 20 * MIB)
    second, _ = held(a, 40 * MIB), held(a, 20 * MIB)
    a.set_allocator_settings("expandable_segments:False")
    ordinary = held(a, 60 * MIB)
    for ptr in (first, second, ordinary):
        a.free(ptr)
    assert a.malloc(30 * MIB) == ordinary
    a.check()


def test_a_recorded_range_has_its_handles_from_its_own_start(make: Make) -> None:
    """12.9: a base is a multiple of 2 MiB only; the lowest range is assumed to begin there."""
    block = (20 * MIB, 0, "inactive")
    a = make(conf=ON)
    a.seed([segment(6 * MIB, 20 * MIB, 0, False, (block,), is_expandable=True)])
    a.empty_cache()
    assert maps(a) == [("unmap", 6, 20)]
    assert (a.memory_snapshot(), a.reserved_bytes) == ([], 0)


@given(
    st.integers(0, 1 << 30),
    st.sampled_from(["", ",max_split_size_mb:22", ",large_segment_size_mb:24"]),
)
def test_what_would_be_mapped_is_told_before(seed: int, more: str) -> None:
    """Requests that no free block serves and that the device has room for."""
    rng = random.Random(seed)
    a = ReplayAllocator("4GiB", f"expandable_segments:True{more}")
    live = []
    sizes = (512, MIB, 3 * MIB, 10 * MIB + 1, 20 * MIB - 1, 41 * MIB)
    for _ in range(60):
        size, stream = rng.choice(sizes), rng.randrange(2)
        wants = None if finds_free_block(a, size, stream) else mapped_for(a, size, stream)
        before = a.reserved_bytes
        live.append(held(a, size, stream))
        assert a.reserved_bytes - before == (wants or 0)
        if rng.random() < 0.6:
            a.free(live.pop(rng.randrange(len(live))))
        if rng.random() < 0.05:
            a.empty_cache()
        if rng.random() < 0.05:  # segments keep their handle size
            a.set_allocator_settings(f"{ON},large_segment_size_mb:{rng.choice((20, 24, 64))}")


@pytest.mark.parametrize("seed", range(60))
def test_the_largest_request_is_told_where_segments_have_handles_of_several_sizes(
    seed: int,
) -> None:
    """A segment keeps the handle size of the settings that it was made under."""

    def after_an_error() -> ReplayAllocator:
        rng = random.Random(seed)
        a = ReplayAllocator(rng.randrange(200, 900) * MIB, ON, "2.15")
        live: list[int] = []
        for _ in range(30):
            what = rng.random()
            if what < 0.2:
                megabytes = rng.choice((20, 32, 33, 50, 64))
                a.set_allocator_settings(f"{ON},large_segment_size_mb:{megabytes}")
            elif what < 0.45 and live:
                a.free(live.pop(rng.randrange(len(live))))
            elif (ptr := answered(a, rng.randrange(1, 60 * MIB))) is not None:
                live.append(ptr)
        assert answered(a, 2 * GIB) is None
        a.empty_cache()  # a refused handle ends a request before cached memory is released
        return a

    most = largest_request(after_an_error(), 0)
    assert most > 0
    assert answered(after_an_error(), most) is not None
    assert answered(after_an_error(), most + 1) is None


def answered(a: ReplayAllocator, size: int) -> int | None:
    try:
        return a.malloc(size)
    except (OutOfMemoryError, DriverRefusalError):
        return None
