"""Splits, merges and their statistics (semantics 1.6, 1.7, 2.2, 3)."""

from __future__ import annotations

import pytest

from allocsim.core import RELEASES, CachingAllocator
from allocsim.units import MIB

from .conftest import Make, held


def blocks(a: CachingAllocator) -> list[tuple[int, int, str]]:
    """Return (size, requested_size, state) of every block, in address order."""
    return [
        (block["size"], block["requested_size"], block["state"])
        for segment in a.memory_snapshot()
        for block in segment["blocks"]
    ]


@pytest.mark.parametrize(
    ("held", "asked", "is_split"),
    [
        (2 * MIB, 2 * MIB - 512, None),  # 20 MiB segment: see below
        (10 * MIB, 9 * MIB, False),  # a remainder of exactly 1 MiB stays
        (10 * MIB, 9 * MIB - 512, True),
        (10 * MIB, 9 * MIB + 512, False),
        (12 * MIB, 10 * MIB, True),
        (12 * MIB, 12 * MIB - 512, False),
    ],
)
def test_large_blocks_split_above_one_mib(
    make: Make, held: int, asked: int, is_split: bool | None
) -> None:
    a = make()
    a.free(a.malloc(held))
    a.malloc(asked)
    [segment] = a.memory_snapshot()
    expected = segment["total_size"] - asked > MIB if is_split is None else is_split
    assert (len(segment["blocks"]) == 2) is expected
    assert segment["allocated_size"] == (asked if expected else segment["total_size"])


@pytest.mark.parametrize("rest", [0, 512, 1024])
def test_small_blocks_split_down_to_512(make: Make, rest: int) -> None:
    a = make()
    a.malloc(MIB)
    a.malloc(MIB - rest)
    [segment] = a.memory_snapshot()
    assert len(segment["blocks"]) == (3 if rest else 2)


@pytest.mark.parametrize("torch", ["2.1", "2.3"])
def test_an_unrounded_rest_below_512_is_not_split_off(make: Make, torch: str) -> None:
    a = make(torch_version=torch, conf="roundup_power2_divisions:1")
    a.malloc(MIB)
    a.malloc(MIB - 511)
    assert [size for size, _, _ in blocks(a)] == [MIB, MIB]


def test_with_expandable_segments_on_ordinary_large_blocks_split_fine(make: Make) -> None:
    a = make()
    a.free(a.malloc(10 * MIB))
    a.set_allocator_settings("expandable_segments:True")
    a.malloc(10 * MIB - 512)
    assert [size for size, _, _ in blocks(a)] == [10 * MIB - 512, 512]


@pytest.mark.parametrize(
    ("conf", "free", "asked", "is_hit"),
    [
        ("max_split_size_mb:21", 21 * MIB, 20 * MIB, False),  # oversize, for a normal request
        ("max_split_size_mb:21", 20 * MIB, 18 * MIB, True),
        ("max_split_size_mb:21", 40 * MIB, 21 * MIB, True),  # waste of 19 MiB
        ("max_split_size_mb:21", 42 * MIB, 22 * MIB, False),  # waste of exactly 20 MiB
        ("max_split_size_mb:21,max_non_split_rounding_mb:30", 42 * MIB, 22 * MIB, True),
    ],
)
def test_max_split_size_refuses_candidates(
    make: Make, conf: str, free: int, asked: int, is_hit: bool
) -> None:
    a = make(conf=conf)
    a.free(a.malloc(free))
    a.malloc(asked)
    assert len(a.memory_snapshot()) == (1 if is_hit else 2)


def test_a_refused_candidate_ends_the_search(make: Make) -> None:
    a = make(conf="max_split_size_mb:21")
    a.free(a.malloc(21 * MIB))
    a.free(a.malloc(30 * MIB))
    a.malloc(20 * MIB + 512)  # a larger one would be refused as well, and none is tried
    assert a.memory_stats()["segment.all.current"] == 3


def test_oversize_blocks_are_handed_out_whole(make: Make) -> None:
    a = make(conf="max_split_size_mb:21")
    a.free(a.malloc(40 * MIB))
    a.malloc(21 * MIB)
    assert blocks(a) == [(40 * MIB, 21 * MIB, "active_allocated")]


def test_the_tail_keeps_the_old_object_and_its_stale_request(make: Make) -> None:
    a = make()
    a.malloc(100)
    assert blocks(a)[-1] == (2 * MIB - 512, 0, "inactive")  # new segment without a request
    held = a.malloc(5000)
    a.free(held)
    a.malloc(600)
    assert blocks(a)[-1] == (2 * MIB - 512 - 1024, 5000, "inactive")


def test_the_freed_object_survives_a_merge(make: Make) -> None:
    a = make()
    ptrs = [a.malloc(size) for size in (100, 200, 300)]
    a.malloc(400)
    a.free(ptrs[0])
    a.free(ptrs[2])
    a.free(ptrs[1])  # absorbs both neighbours and keeps its own request
    assert blocks(a)[0] == (1536, 200, "inactive")
    assert a.malloc(1500) == 0


@pytest.mark.parametrize("torch", RELEASES)
def test_the_worked_example(make: Make, torch: str) -> None:
    """The example of section 3, the same in every release."""
    a = make(torch_version=torch)
    for ptr in (a.malloc(100), a.malloc(3_000_000)):
        a.free(ptr)
    a.malloc(1_048_576)
    a.malloc(1_048_577)
    a.malloc(10_485_759)
    ten = a.malloc(10_485_760)
    twelve = a.malloc(12_582_913)
    a.free(ten)
    assert a.malloc(9_437_184) == ten
    a.free(twelve)
    assert a.malloc(11_534_336) == twelve
    a.malloc(13_631_489)
    sizes = [segment["total_size"] // MIB for segment in a.memory_snapshot()]
    assert sizes == [2, 20, 10, 14, 14]
    assert (10_485_760, 9_437_184, "active_allocated") in blocks(a)
    stats = a.memory_stats()
    assert [stats[f"inactive_split.all.{c}"] for c in COLUMNS] == [3, 3, 6, 3]
    expected = [13_630_976, 20_971_008, 46_281_216, 32_650_240]
    assert [stats[f"inactive_split_bytes.all.{c}"] for c in COLUMNS] == expected
    expected = [49_283_584, 49_283_584, 75_353_600, 26_070_016]
    assert [stats[f"allocated_bytes.all.{c}"] for c in COLUMNS] == expected
    assert stats["reserved_bytes.all.current"] == 62_914_560
    a.check()


COLUMNS = ("current", "peak", "allocated", "freed")


@pytest.mark.parametrize("size", [0, -1])
def test_requests_of_nothing_leave_no_trace(make: Make, size: int) -> None:
    a = make()
    if size:
        with pytest.raises(ValueError, match="malloc of -1 bytes; expected 0 or more"):
            a.malloc(size)
    else:
        assert a.malloc(size) is None
    a.free(None)
    assert a.take_history() == []
    assert a.memory_stats() == make().memory_stats()


def test_an_unknown_address_is_refused_and_changes_nothing(make: Make) -> None:
    a = make()
    ptr = a.malloc(1000)
    before = a.memory_snapshot(), a.memory_stats(), a.take_history()
    with pytest.raises(ValueError, match="invalid device pointer: 0x200 is not allocated"):
        a.free(512)
    with pytest.raises(ValueError, match="record_stream of 0x200, which is not allocated"):
        a.record_stream(512, 1)
    assert (a.memory_snapshot(), a.memory_stats()) == before[:2]
    assert a.take_history() == []
    a.free(ptr)
    with pytest.raises(ValueError, match="invalid device pointer"):
        a.free(ptr)


@pytest.mark.parametrize("torch", RELEASES)
def test_a_block_of_exactly_max_split_size_is_oversize(make: Make, torch: str) -> None:
    """1.6 and 3; observed on 2.1.2 and 2.15.0."""
    a = make(torch_version=torch, conf="max_split_size_mb:22")
    first = held(a, 22 * MIB)
    a.free(first)
    stats = a.memory_stats()
    assert [stats[f"oversize_allocations.{c}"] for c in COLUMNS] == [0, 1, 1, 1]
    assert a.malloc(20 * MIB) == 22 * MIB  # not for a normal request
    second = held(a, 42 * MIB)
    a.free(second)
    assert a.malloc(22 * MIB) == first
    assert a.malloc(22 * MIB) == second + 44 * MIB - 2 * MIB  # it would waste all of 20 MiB
    a.check()
