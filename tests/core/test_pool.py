"""The free block that serves a request: order, streams and size classes (1.3, 1.5)."""

from __future__ import annotations

import pytest

from allocsim.core import RELEASES
from allocsim.core.block import Block
from allocsim.core.pool import RANK_MASK, BlockPool, KeyLayout
from allocsim.core.releases import FreeBlockOrder
from allocsim.units import KIB, MIB

from .conftest import Make

ORDERS = {torch: release.free_block_order for torch, release in RELEASES.items()}


@pytest.mark.parametrize(
    ("size", "conf", "is_small"),
    [
        (MIB - 1, "", True),
        (MIB, "", True),
        (MIB + 1, "", False),
        (2 * MIB, "", False),
        (MIB - 1, "roundup_power2_divisions:4", True),
        (MIB + 1, "roundup_power2_divisions:4", False),
    ],
)
def test_up_to_one_mib_is_small(make: Make, size: int, conf: str, is_small: bool) -> None:
    a = make(conf=conf)
    a.malloc(size)
    [segment] = a.memory_snapshot()
    assert segment["segment_type"] == ("small" if is_small else "large")


def test_rounding_to_a_power_of_two_comes_before_the_choice(make: Make) -> None:
    a = make(conf="roundup_power2_divisions:4")
    a.malloc(MIB + 1)
    assert a.memory_stats()["allocated_bytes.large_pool.current"] == 1280 * KIB


def test_the_smallest_block_that_fits_is_taken(make: Make) -> None:
    a = make()
    sizes = [30 * MIB, 12 * MIB, 20 * MIB]
    held = [a.malloc(size) for size in sizes]
    for ptr in held:
        a.free(ptr)
    assert a.malloc(11 * MIB) == held[1]
    assert a.malloc(13 * MIB) == held[2]


def test_a_block_of_another_stream_is_never_used(make: Make) -> None:
    a = make()
    a.free(a.malloc(12 * MIB, stream=1))
    assert a.malloc(12 * MIB, stream=2) == 12 * MIB
    assert a.malloc(12 * MIB, stream=1) == 0


@pytest.mark.parametrize("torch", RELEASES)
def test_ties_between_segments_follow_the_release(make: Make, torch: str) -> None:
    """The younger segment has the lower address: by address it comes first, by age last."""
    a = make("64MiB", torch_version=torch, address_policy="firstfit")
    gap = a.malloc(12 * MIB)
    old = a.malloc(12 * MIB)
    a.malloc(12 * MIB)
    a.free(gap)
    a.empty_cache()
    young = a.malloc(12 * MIB)
    a.free(young)
    a.free(old)
    assert (gap, young, old) == (0, 0, 12 * MIB)
    is_by_address = ORDERS[torch] is FreeBlockOrder.ADDRESS
    assert a.malloc(12 * MIB) == (young if is_by_address else old)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (FreeBlockOrder.ADDRESS, [10, 20, 30]),
        (FreeBlockOrder.SEGMENT, [20, 30, 10]),
        (FreeBlockOrder.CREATION, [20, 30, 10]),
    ],
)
def test_keys_order_by_stream_size_rank_and_address(
    order: FreeBlockOrder, expected: list[int]
) -> None:
    layout = KeyLayout(order)
    pool = BlockPool(False, layout)
    ages = {10: 3, 20: 1, 30: 2}
    for page in (30, 10, 20):
        rank = {
            FreeBlockOrder.ADDRESS: 0,
            FreeBlockOrder.SEGMENT: (ages[page] - page) * 512 & RANK_MASK,
            FreeBlockOrder.CREATION: ages[page],
        }[order]
        pool.insert(Block(page * 512, 512, 0, pool, rank))
    pool.insert(Block(5 * 512, 1024, 0, pool, 0))
    pool.insert(Block(1 * 512, 512, 7, pool, 0))
    assert [block.ptr // 512 for block in pool] == [*expected, 5, 1]
    found = pool.best_fit(0, 512)
    assert found is not None
    assert found.ptr == expected[0] * 512
    pool.remove(found)
    assert len(pool) == 4
    assert found not in list(pool)
    assert pool.best_fit(0, 1025) is None
    assert pool.best_fit(9, 1) is None


@pytest.mark.parametrize("torch", RELEASES)
def test_within_a_segment_only_2_12_prefers_the_older_object(make: Make, torch: str) -> None:
    """A split makes a new object for the front; the tail keeps the old one and its number."""
    a = make(torch_version=torch)
    ptrs = [a.malloc(512) for _ in range(5)]
    a.free(ptrs[0])
    a.free(ptrs[1])
    front, tail = a.malloc(512), a.malloc(512)
    assert (front, tail) == (0, 512)
    a.free(front)  # the newest object, at the lowest address
    a.free(ptrs[3])
    assert a.malloc(512) == (ptrs[3] if torch == "2.12" else front)
    a.check()
