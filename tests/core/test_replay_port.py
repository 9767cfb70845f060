"""Simulations that start from the state of a recording (semantics 6.6)."""

from __future__ import annotations

import pytest

from allocsim.core import MALLOC, RELEASES
from allocsim.state import SegmentState
from allocsim.units import MIB
from tests.core.planting import segment

from .conftest import Make, held

BASE = 512 * MIB
SMALL = segment(
    address=BASE,
    total_size=2 * MIB,
    stream=0,
    is_small=True,
    blocks=(
        (1024, 1000, "active_allocated"),
        (512, 300, "active_pending_free"),
        (2 * MIB - 1536, 77, "inactive"),
    ),
)
LARGE = segment(
    address=BASE + 100 * MIB,
    total_size=20 * MIB,
    stream=4096,
    is_small=False,
    blocks=((20 * MIB, 0, "inactive"),),
    pool_id=(0, 9),
)
ROOMY = segment(
    address=BASE + 200 * MIB,
    total_size=12 * MIB,
    stream=0,
    is_small=False,
    blocks=((12 * MIB, 11 * MIB + 5, "active_allocated"),),
)


@pytest.mark.parametrize("torch", RELEASES)
def test_planted_segments_are_shown_as_they_were(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    a.seed([ROOMY, SMALL, LARGE])
    a.check()
    shown = a.memory_snapshot()
    assert [each["address"] for each in shown] == [each.address for each in (SMALL, LARGE, ROOMY)]
    assert [(b["size"], b["requested_size"], b["state"]) for b in shown[0]["blocks"]] == [
        (block.size, block.requested_size, block.state) for block in SMALL.blocks
    ]
    assert shown[1]["segment_pool_id"] == (0, 9)
    assert a.take_history() == []


def test_they_count_as_allocated_just_now(make: Make) -> None:
    a = make()
    a.seed([SMALL, LARGE, ROOMY])
    stats = a.memory_stats()
    expected = {
        "allocation.all": 2,
        "allocated_bytes.all": 12 * MIB + 1024,
        "active.all": 3,
        "active_bytes.all": 12 * MIB + 1536,
        "requested_bytes.all": 11 * MIB + 5 + 1300,
        "inactive_split.all": 1,
        "inactive_split_bytes.all": 2 * MIB - 1536,
        "segment.all": 3,
        "reserved_bytes.all": 34 * MIB,
    }
    for key, value in expected.items():
        assert stats[f"{key}.current"] == stats[f"{key}.allocated"] == value, key
    assert a.device.used == a.reserved_bytes == 34 * MIB


def test_they_serve_and_merge_like_any_other(make: Make) -> None:
    a = make()
    a.seed([SMALL, LARGE, ROOMY])
    assert a.malloc(100) == BASE + 1536
    a.free(BASE)
    (pending,) = a.requested_frees
    assert pending.block is a.heap.pending[BASE + 1024]
    assert a.complete_free(pending)
    a.free(BASE + 1536)
    assert [block["size"] for block in a.memory_snapshot()[0]["blocks"]] == [2 * MIB]
    a.free(ROOMY.address)
    a.empty_cache()
    assert a.reserved_bytes == 20 * MIB  # the private pool is still in use
    a.release_pool(9)
    a.empty_cache()
    assert a.reserved_bytes == 0
    a.check()


def test_new_addresses_come_after_them(make: Make) -> None:
    a = make()
    a.seed([SMALL, ROOMY])
    assert a.malloc(30 * MIB) == ROOMY.address + 12 * MIB


def test_ties_are_decided_by_their_addresses(make: Make) -> None:
    twins = [
        segment(address, 12 * MIB, 0, False, ((12 * MIB, 0, "inactive"),))
        for address in (300 * MIB, 100 * MIB, 200 * MIB)
    ]
    a = make()
    a.seed(twins)
    assert [a.malloc(12 * MIB) for _ in twins] == [100 * MIB, 200 * MIB, 300 * MIB]


def test_mapped_ranges_of_one_reservation_grow_together(make: Make) -> None:
    ranges = [
        segment(address, 20 * MIB, 0, False, ((20 * MIB, 20 * MIB, state),), is_expandable=True)
        for address, state in ((BASE, "active_allocated"), (BASE + 40 * MIB, "inactive"))
    ]
    a = make("200MiB", conf="expandable_segments:True")
    a.seed(ranges)
    a.check()
    assert a.memory_stats()["segment.all.current"] == 0
    assert a.malloc(40 * MIB) == BASE + 20 * MIB  # the hole is mapped, the free range joins it
    mapped = [(e.address, e.size) for e in a.take_history() if e.action == "segment_map"]
    assert mapped == [(BASE + 20 * MIB, 20 * MIB)]
    assert [(s["address"], s["total_size"]) for s in a.memory_snapshot()] == [(BASE, 60 * MIB)]
    a.check()


def test_planted_blocks_count_as_oversize_where_they_are(make: Make) -> None:
    a = make(conf="max_split_size_mb:21")
    whole = segment(0, 42 * MIB, 0, False, ((42 * MIB, 42 * MIB, "active_allocated"),))
    edge = segment(64 * MIB, 21 * MIB, 0, False, ((21 * MIB, 21 * MIB, "active_allocated"),))
    idle = segment(128 * MIB, 30 * MIB, 0, False, ((30 * MIB, 0, "inactive"),))
    a.seed([whole, edge, idle])
    stats = a.memory_stats()
    assert stats["oversize_allocations.current"] == 2
    assert stats["oversize_segments.current"] == 3
    a.check()


def test_a_planted_private_pool_goes_when_its_last_segment_goes(make: Make) -> None:
    """Each created segment counts for the pool."""
    a = make()
    a.seed(
        segment(at * MIB, 2 * MIB, 0, True, ((2 * MIB, 0, "inactive"),), (0, 5)) for at in (0, 2)
    )
    a.release_pool(5)
    assert (0, 5) in a.private_pools.pools
    a.empty_cache()
    assert (0, 5) not in a.private_pools.pools
    assert a.reserved_bytes == 0


def mapped_range(
    mib: int, state: str = "inactive", stream: int = 0, pool_id: tuple[int, int] = (0, 0)
) -> SegmentState:
    """Return 20 MiB of an expandable segment, one block, `mib` MiB behind BASE."""
    return segment(
        address=BASE + mib * MIB,
        total_size=20 * MIB,
        stream=stream,
        is_small=False,
        blocks=((20 * MIB, 15 * MIB, state),),
        pool_id=pool_id,
        is_expandable=True,
    )


def test_both_halves_of_a_planted_private_pool_serve_their_sizes(make: Make) -> None:
    a = make()
    a.seed(
        [
            segment(0, 2 * MIB, 0, True, ((2 * MIB, 0, "inactive"),), (0, 5)),
            segment(20 * MIB, 20 * MIB, 0, False, ((20 * MIB, 0, "inactive"),), (0, 5)),
        ]
    )
    assert [segment["segment_type"] for segment in a.memory_snapshot()] == ["small", "large"]
    stats = a.memory_stats()
    assert stats["reserved_bytes.small_pool.current"] == 2 * MIB
    assert stats["reserved_bytes.large_pool.current"] == 20 * MIB
    a.begin_allocate_to_pool(5)
    assert (a.malloc(100), a.malloc(12 * MIB)) == (0, 20 * MIB)
    a.check()


def test_the_lowest_mapped_address_is_the_base_from_which_handles_count(make: Make) -> None:
    """BASE is not a multiple of 20 MiB: from another base there would be no whole handle."""
    a = make(conf="expandable_segments:True")
    a.seed([mapped_range(0)])
    a.check()
    a.empty_cache()
    [unmap] = a.take_history()
    assert (unmap.action, unmap.address, unmap.size) == ("segment_unmap", BASE, 20 * MIB)
    assert a.reserved_bytes == a.device.used == 0


def test_a_planted_range_grows_up_to_the_next_one_of_another(make: Make) -> None:
    a = make(conf="expandable_segments:True")
    used = "active_allocated"
    a.seed([mapped_range(0, used), mapped_range(40, used, stream=4096), mapped_range(80, used)])
    assert a.malloc(20 * MIB) == BASE + 20 * MIB
    assert a.malloc(20 * MIB) == BASE + 100 * MIB
    assert a.malloc(20 * MIB, 4096) == BASE + 60 * MIB
    other = a.malloc(20 * MIB, 4096)
    assert other is not None
    assert other > BASE + 1024 * MIB
    a.check()


@pytest.mark.parametrize("policy", ["bump", "firstfit"])
@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_new_segments_come_after_all_that_a_planted_range_reserves(
    make: Make, conf: str, policy: str
) -> None:
    """A device of 1 GiB reserves 1160 MiB (9/8 in whole handles) from BASE on."""
    a = make(conf=conf, address_policy=policy, base_address=BASE)
    a.seed([mapped_range(0, "active_allocated")])
    assert held(a, 30 * MIB, 4096) == BASE + 1160 * MIB
    grown = BASE + 20 * MIB if conf else BASE + (1160 + 30) * MIB
    assert held(a, 30 * MIB) == grown
    a.check()


def test_planted_ranges_side_by_side_cannot_grow_into_each_other(make: Make) -> None:
    a = make(conf="expandable_segments:True")
    used = "active_allocated"
    a.seed([mapped_range(0, used), mapped_range(20, used, stream=4096)])
    assert held(a, 20 * MIB, 4096) == BASE + 40 * MIB
    assert held(a, 20 * MIB) == BASE + (20 + 1160) * MIB
    a.check()


def test_a_planted_range_stays_out_of_an_ordinary_segment_behind_it(make: Make) -> None:
    a = make(conf="expandable_segments:True")
    a.seed([mapped_range(0, "active_allocated"), LARGE])
    grown = [held(a, 20 * MIB) - BASE for _ in range(5)]
    assert grown[:4] == [20 * MIB, 40 * MIB, 60 * MIB, 80 * MIB]
    assert grown[4] >= 120 * MIB
    a.check()


def test_a_range_longer_than_a_reservation_is_there_all_the_same(make: Make) -> None:
    """A reserve of 0.001 of 1 GiB is one handle of 20 MiB."""
    a = make(conf="expandable_segments:True,expandable_segments_reserve:0.001")
    whole = (60 * MIB, 60 * MIB, "active_allocated")
    a.seed([segment(BASE, 60 * MIB, 0, False, (whole,), is_expandable=True)])
    assert [(s["address"], s["total_size"]) for s in a.memory_snapshot()] == [(BASE, 60 * MIB)]
    assert held(a, 20 * MIB) >= BASE + 60 * MIB
    a.check()


def test_ranges_beyond_one_reservation_are_another_segment(make: Make) -> None:
    """A device of 200 MiB reserves 240 MiB: one range ends there, and the next begins there."""
    a = make("200MiB", conf="expandable_segments:True")
    a.seed(
        [
            mapped_range(0, "active_allocated"),
            mapped_range(220),
            mapped_range(240),
            mapped_range(260, "active_pending_free"),
        ]
    )
    a.check()
    assert [(s["address"] - BASE) // MIB for s in a.memory_snapshot()] == [0, 220, 240]
    assert list(a.heap.pending) == [BASE + 260 * MIB]
    (pending,) = a.requested_frees
    assert a.complete_free(pending)
    assert [s["total_size"] // MIB for s in a.memory_snapshot()] == [20, 20, 40]
    assert a.malloc(120 * MIB) == BASE + 20 * MIB
    assert a.reserved_bytes == 200 * MIB
    a.check()


def test_a_planted_expandable_pool_goes_when_its_last_range_goes(make: Make) -> None:
    a = make(conf="expandable_segments:True")
    a.seed([mapped_range(0, pool_id=(0, 5)), mapped_range(40, pool_id=(0, 5))])
    a.release_pool(5)
    assert (0, 5) in a.private_pools.pools
    a.empty_cache()
    assert (0, 5) not in a.private_pools.pools
    assert a.reserved_bytes == 0


@pytest.mark.parametrize(("waited_for", "n_pending"), [(4096, 0), (8192, 1)])
def test_unmapping_a_planted_range_waits_for_its_own_stream_only(
    make: Make, waited_for: int, n_pending: int
) -> None:
    """Inside a scope of 2.8 to 2.12 there is no other wait (4.6)."""
    a = make(torch_version="2.10", conf="expandable_segments:True")
    a.seed([mapped_range(0, stream=4096, pool_id=(0, 5))])
    a.release_pool(5)
    waits = held(a, 100)
    a.record_stream(waits, waited_for)
    a.free(waits)
    a.begin_allocate_to_pool(1)
    a.empty_cache()
    assert [e.action for e in a.take_history()][-1] == "segment_unmap"
    a.end_allocate_to_pool(1)
    a.malloc(100)
    assert len(a.heap.pending) == n_pending


def test_without_the_option_expandable_blocks_that_were_there_are_passed_by(make: Make) -> None:
    """A search skips them, however well they fit (semantics 4.4)."""
    expandable = segment(
        64 * MIB, 20 * MIB, 0, False, ((20 * MIB, 0, "inactive"),), is_expandable=True
    )
    ordinary = segment(512 * MIB, 22 * MIB, 0, False, ((22 * MIB, 0, "inactive"),))
    a = make("1GiB", conf="")
    a.seed([expandable, ordinary])
    request = (MALLOC, 1, 19 * MIB, 0)
    assert a.play([request], {}, []) == request
    assert a.malloc(19 * MIB) == ordinary.address


def test_cached_memory_of_a_segment_below_2_mib_is_found(make: Make) -> None:
    """No segment of PyTorch is so small, but a file may contain one."""
    a = make()
    a.seed([segment(BASE, MIB, 0, True, [(MIB, 0, "inactive")])])
    assert a.has_cached_memory
    a.empty_cache()
    assert a.reserved_bytes == 0
