"""Statistics of memory_stats(), key by key (semantics 3)."""

from __future__ import annotations

import random

import pytest

from allocsim import OutOfMemoryError
from allocsim.core import RELEASES, ReplayAllocator, RequestedFree, SavedBytes
from allocsim.core.journal import FOLD_AT
from allocsim.core.stats import DeviceStats, Stat
from allocsim.units import MIB

from .conftest import Make

COLUMNS = ("current", "peak", "allocated", "freed")
ARRAYS = (
    "active",
    "active_bytes",
    "allocated_bytes",
    "allocation",
    "inactive_split",
    "inactive_split_bytes",
    "requested_bytes",
    "reserved_bytes",
    "segment",
)
POOLS = ("all", "large_pool", "small_pool")
SINCE = {
    "num_sync_all_streams": "2.3",
    "num_device_alloc": "2.3",
    "num_device_free": "2.3",
    "num_oom_rejections": "2.12",
}
ORDER = list(RELEASES)


def expected_keys(torch: str) -> list[str]:
    keys = [f"{name}.{pool}.{column}" for name in ARRAYS for pool in POOLS for column in COLUMNS]
    keys += [
        f"oversize_{what}.{column}" for what in ("allocations", "segments") for column in COLUMNS
    ]
    keys += ["max_split_size", "num_alloc_retries", "num_ooms"]
    keys += [key for key, since in SINCE.items() if ORDER.index(torch) >= ORDER.index(since)]
    return sorted(keys)


@pytest.mark.parametrize("torch", RELEASES)
def test_the_keys_of_each_release_in_order(make: Make, torch: str) -> None:
    stats = make(torch_version=torch).memory_stats()
    assert list(stats) == expected_keys(torch)
    assert stats.pop("max_split_size") == -1
    assert set(stats.values()) == {0}


@pytest.mark.parametrize("torch", RELEASES)
def test_private_pools_have_their_own_figures_since_2_13(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    a.begin_allocate_to_pool(7)
    ptr = a.malloc(3 * MIB)
    a.end_allocate_to_pool(7)
    a.free(ptr)
    a.release_pool(7)
    a.empty_cache()
    own = {key: value for key, value in a.memory_stats().items() if "private" in key}
    if ORDER.index(torch) < ORDER.index("2.13"):
        assert own == {}
        return
    prefix = "reserved_bytes_by_private_pools.0_7"
    assert set(own) == {f"{prefix}.{pool}.{column}" for pool in POOLS for column in COLUMNS}
    for pool in ("all", "large_pool"):  # it outlives the pool
        assert [own[f"{prefix}.{pool}.{column}"] for column in COLUMNS] == [
            *(0, 20 * MIB, 20 * MIB, 20 * MIB)
        ]
    assert own[f"{prefix}.small_pool.allocated"] == 0


def test_a_stat_counts_increases_decreases_and_changes() -> None:
    stat = Stat()
    stat.increase(5)
    stat.decrease(2)
    stat.change_by(1)
    stat.change_by(0)
    stat.change_by(-4)
    assert (stat.current, stat.peak, stat.allocated, stat.freed) == (0, 5, 6, 6)
    stat.increase(3)
    stat.reset_peak()
    stat.reset_accumulated()
    assert (stat.current, stat.peak, stat.allocated, stat.freed) == (3, 3, 0, 0)


def test_bytes_count_blocks_and_requests_count_requests(make: Make) -> None:
    a = make()
    a.free(a.malloc(12 * MIB))
    a.malloc(11 * MIB + 100)
    stats = a.memory_stats()
    assert stats["allocated_bytes.all.current"] == 12 * MIB
    assert stats["active_bytes.large_pool.current"] == 12 * MIB
    assert stats["requested_bytes.all.current"] == 11 * MIB + 100


def test_inactive_split_at_malloc(make: Make) -> None:
    """The four cases of section 3, one after another."""
    a = make()

    def moved() -> tuple[int, ...]:
        stats = a.memory_stats()
        names = ("inactive_split.all", "inactive_split_bytes.all")
        return tuple(stats[f"{name}.{c}"] for name in names for c in ("allocated", "freed"))

    whole = a.malloc(12 * MIB)
    assert moved() == (0, 0, 0, 0)  # no split, and was none
    a.free(whole)
    a.malloc(4 * MIB)
    assert moved() == (1, 0, 8 * MIB, 0)  # a split of a whole segment
    a.malloc(4 * MIB)
    assert moved() == (1, 0, 8 * MIB, 4 * MIB)  # a split of a piece: the count stays
    a.malloc(4 * MIB)
    assert moved() == (1, 1, 8 * MIB, 8 * MIB)  # the last piece, whole


def test_a_free_that_merges_twice_is_one_net_number(make: Make) -> None:
    a = make()
    ptrs = [a.malloc(512) for _ in range(4)]
    a.free(ptrs[0])
    a.free(ptrs[2])
    before = a.memory_stats()
    a.free(ptrs[1])  # two pieces become one: minus one, and 512 more bytes
    after = a.memory_stats()
    changed = {
        key: after[key] - before[key]
        for key in after
        if key.startswith("inactive_split") and ".all." in key and after[key] != before[key]
    }
    assert changed == {
        "inactive_split.all.current": -1,
        "inactive_split.all.freed": 1,
        "inactive_split_bytes.all.current": 512,
        "inactive_split_bytes.all.allocated": 512,
    }


def test_oversize_counts_use_the_option_in_force(make: Make) -> None:
    a = make(conf="max_split_size_mb:21")
    a.malloc(21 * MIB)
    a.malloc(20 * MIB)
    stats = a.memory_stats()
    assert stats["oversize_allocations.current"] == stats["oversize_segments.current"] == 1
    a.set_allocator_settings("max_split_size_mb:100")
    assert a.memory_stats()["max_split_size"] == 21 * MIB  # frozen at creation
    a.malloc(30 * MIB)
    assert a.memory_stats()["oversize_allocations.current"] == 1


def test_reserved_peaks_before_allocated_does(make: Make) -> None:
    a = make("20MiB")
    a.free(a.malloc(6 * MIB))
    a.malloc(20 * MIB)
    stats = a.memory_stats()
    assert stats["reserved_bytes.all.peak"] == stats["allocated_bytes.all.peak"] == 20 * MIB
    assert stats["num_device_alloc"] == 1
    with pytest.raises(OutOfMemoryError):
        a.malloc(512)
    stats = a.memory_stats()
    assert stats["num_ooms"] == stats["num_alloc_retries"] == 1


def test_resets(make: Make) -> None:
    a = make()
    ptr = a.malloc(3 * MIB)
    a.malloc(1000)
    a.free(ptr)
    a.empty_cache()
    a.reset_peak_memory_stats()
    stats = a.memory_stats()
    assert stats["reserved_bytes.all.peak"] == 2 * MIB
    assert stats["allocated_bytes.all.peak"] == 1024
    assert stats["allocation.all.allocated"] == 2
    a.reset_accumulated_memory_stats()
    stats = a.memory_stats()
    ended = ("allocated", "freed")
    assert not any(value for key, value in stats.items() if key.rpartition(".")[2] in ended)
    assert not any(value for key, value in stats.items() if key.startswith("num_"))
    assert stats["allocation.all.current"] == stats["segment.all.current"] == 1
    a.check()


def test_resets_of_what_only_oversize_blocks_and_pools_have(make: Make) -> None:
    a = make(conf="max_split_size_mb:21")
    a.begin_allocate_to_pool(1)
    ptr = a.malloc(30 * MIB)
    a.end_allocate_to_pool(1)
    a.free(ptr)
    a.release_pool(1)
    a.empty_cache()
    pool = "reserved_bytes_by_private_pools.0_1.all"
    names = ("oversize_allocations", "oversize_segments", pool)
    assert all(a.memory_stats()[f"{name}.peak"] > 0 for name in names)
    a.reset_peak_memory_stats()
    a.reset_accumulated_memory_stats()
    stats = a.memory_stats()
    assert not any(stats[key] for key in stats if key.startswith(names))


def malloc_in_both(one: ReplayAllocator, other: ReplayAllocator, size: int) -> int:
    """Allocate in both and return the common address."""
    address = one.malloc(size)
    assert address is not None
    assert other.malloc(size) == address
    return address


@pytest.mark.parametrize("seed", range(3))
def test_folding_counts_as_each_call_would(make: Make, seed: int) -> None:
    """Read after every call, or only at the end of more records than a fold: equal."""
    rng = random.Random(seed)
    lazy, eager = (make("64GiB", record_history=False) for _ in range(2))
    live: list[int] = []
    for step in range(2 * FOLD_AT if seed == 0 else 500):
        if live and rng.random() < 0.5:
            ptr = live.pop(rng.randrange(len(live)))
            lazy.free(ptr)
            eager.free(ptr)
        else:
            size = rng.choice((100, 5000, 2 * MIB, 11 * MIB))
            live.append(malloc_in_both(lazy, eager, size))
        if step % 7 == 0:
            eager.memory_stats()
    assert lazy.memory_stats() == eager.memory_stats()
    lazy.check()


@pytest.mark.parametrize("seed", range(12))
def test_saved_bytes_are_those_of_the_last_save(make: Make, seed: int) -> None:
    """Equal to an allocator that counts after every call, with waiting frees among the calls."""
    rng = random.Random(seed)
    lazy, eager = (make("64GiB", record_history=False) for _ in range(2))
    live: list[int] = []
    waiting: list[tuple[RequestedFree, RequestedFree]] = []
    assert lazy.saved_bytes() == SavedBytes(0, 0, 0)
    expected = SavedBytes()
    for _ in range(3 * FOLD_AT if seed == 0 else 300):
        what = rng.random()
        if live and what < 0.3:
            ptr = live.pop(rng.randrange(len(live)))
            lazy.free(ptr)
            eager.free(ptr)
        elif live and what < 0.45:
            ptr = live.pop(rng.randrange(len(live)))
            waiting.append((lazy.request_free(ptr), eager.request_free(ptr)))
        elif waiting and what < 0.6:
            of_lazy, of_eager = waiting.pop(rng.randrange(len(waiting)))
            assert lazy.complete_free(of_lazy)
            assert eager.complete_free(of_eager)
        else:
            size = rng.choice((100, 5000, 2 * MIB, 11 * MIB))
            live.append(malloc_in_both(lazy, eager, size))
        stats = eager.memory_stats()
        if rng.random() < 0.05:
            lazy.save_bytes()
            expected = SavedBytes(
                allocated=stats["allocated_bytes.all.current"],
                active=stats["active_bytes.all.current"],
                inactive_split=stats["inactive_split_bytes.all.current"],
            )
        if rng.random() < 0.02:
            assert lazy.saved_bytes() == expected
    assert lazy.saved_bytes() == expected
    assert lazy.memory_stats() == eager.memory_stats()


def test_a_fresh_device_has_no_private_pools() -> None:
    stats = DeviceStats(RELEASES["2.15"], -1)
    assert not any("private" in key for key in stats.as_dict())


def test_memory_queries_equal_the_statistics_of_torch_cuda() -> None:
    gpu = ReplayAllocator("1GiB", context_memory=100 * MIB)
    kept = gpu.malloc(30 * MIB)
    gpu.free(gpu.malloc(50 * MIB))
    gpu.empty_cache()
    stats = gpu.memory_stats()
    assert gpu.memory_allocated() == stats["allocated_bytes.all.current"] == 30 * MIB
    assert gpu.max_memory_allocated() == stats["allocated_bytes.all.peak"] == 80 * MIB
    assert gpu.memory_reserved() == stats["reserved_bytes.all.current"] == 30 * MIB
    assert gpu.max_memory_reserved() == stats["reserved_bytes.all.peak"] == 80 * MIB
    assert gpu.mem_get_info() == ((1024 - 100 - 30) * MIB, 1024 * MIB)
    gpu.free(kept)
    assert gpu.memory_allocated() == 0
