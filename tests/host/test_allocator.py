"""Rules of pinned host memory, one after another, each with the releases that have it."""

from __future__ import annotations

import pytest

from allocsim.core import RELEASES
from allocsim.errors import ConfigError, OutOfMemoryError, UndefinedBehaviorError
from allocsim.host import CachingHostAllocator
from allocsim.units import GIB, KIB, MIB

MODELLED = [version for version, release in RELEASES.items() if release.models_host]
WITH_STATS = [version for version in MODELLED if RELEASES[version].host_stats]
STREAM = 4096
SLOW = 8192


def malloc(host: CachingHostAllocator, size: int) -> int:
    """Allocate `size` bytes, more than 0."""
    address = host.malloc(size)
    assert address is not None
    return address


def freed(host: CachingHostAllocator, size: int, *streams: int) -> int:
    """Allocate and free a block that `streams` use, and return its address."""
    address = malloc(host, size)
    for stream in streams:
        host.record_event(address, stream)
    host.free(address)
    return address


def held(host: CachingHostAllocator) -> list[int]:
    """Return the sizes of all blocks."""
    return [segment["total_size"] for segment in host.host_segments()]


# -- requests ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", MODELLED)
def test_request_is_rounded_up_to_a_power_of_two(version: str) -> None:
    host = CachingHostAllocator(torch_version=version)
    for size in (1, 1000, 4096, MIB + 1, 3 * GIB):
        malloc(host, size)
    assert held(host) == [1, 1024, 4096, 2 * MIB, 4 * GIB]
    assert host.malloc(0) is None


def test_request_above_a_limit_is_not_rounded() -> None:
    for option in ("pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"):
        host = CachingHostAllocator(f"{option}:1", "2.13")
        for size in (MIB - 1, MIB, MIB + 1):
            malloc(host, size)
        assert held(host) == [MIB, MIB, MIB + 1]


@pytest.mark.parametrize("version", MODELLED)
def test_block_freed_last_is_reused_first(version: str) -> None:
    host = CachingHostAllocator(torch_version=version)
    first, second, other = (malloc(host, size) for size in (1000, 1001, 1025))
    for block in (second, first, other):
        host.free(block)
    assert [malloc(host, 1024) for _ in range(2)] == [first, second]
    assert malloc(host, 1024) not in (first, second, other)


def test_too_small_block_is_taken_in_2_13() -> None:
    conf = "pinned_max_round_threshold_mb:1"
    for version, is_reused in (("2.13", True), ("2.14", False), ("2.15", False)):
        host = CachingHostAllocator(conf, version)
        small = freed(host, MIB + 1)
        assert (malloc(host, MIB + MIB // 2) == small) is is_reused, version
    # 2.14 takes an older block that is large enough.
    host = CachingHostAllocator(conf, "2.14")
    large, small = malloc(host, 2 * MIB - 1), malloc(host, MIB + 1)
    host.free(large)
    host.free(small)
    assert malloc(host, MIB + 2) == large


def test_reserve_segment_serves_until_it_is_used_up() -> None:
    host = CachingHostAllocator("pinned_reserve_segment_size_mb:1")
    a, b = malloc(host, 1), malloc(host, 512 * KIB)
    assert b - a == 4096
    c, d = malloc(host, 512 * KIB), malloc(host, 256 * KIB)
    assert not a <= c < a + MIB  # 508 KiB were left
    assert d == b + 512 * KIB
    # One call for the reserve segment and one for the block beside it.
    assert host.host_memory_stats()["host_alloc_time.count"] == 2
    assert host.host_memory_stats()["num_host_alloc"] == 4


def test_blocks_of_the_reserve_segment_are_gone_once_released() -> None:
    host = CachingHostAllocator("pinned_reserve_segment_size_mb:1")
    first = freed(host, MIB)
    assert malloc(host, MIB) == first
    host.free(first)
    host.empty_cache()
    assert held(host) == []
    assert malloc(host, 4096) > first + MIB - 1
    assert host.host_memory_stats()["host_free_time.count"] == 0


def test_driver_refusal_releases_nothing() -> None:
    host = CachingHostAllocator(host_memory=3 * MIB)
    cached = freed(host, 2 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"^CUDA error: out of memory$"):
        host.malloc(3 * MIB)
    assert malloc(host, 2 * MIB) == cached
    assert malloc(host, MIB)


# -- free and streams ----------------------------------------------------------------------


@pytest.mark.parametrize("version", MODELLED)
def test_free_waits_for_its_streams(version: str) -> None:
    host = CachingHostAllocator(torch_version=version)
    block = freed(host, 1024, STREAM, SLOW)
    assert malloc(host, 1024) != block
    host.synchronize(STREAM)
    assert malloc(host, 1024) != block
    host.synchronize(SLOW)
    assert malloc(host, 1024) == block


@pytest.mark.parametrize("version", MODELLED)
def test_slow_stream_delays_later_frees_of_others(version: str) -> None:
    host = CachingHostAllocator(torch_version=version)
    freed(host, 2048, SLOW)
    quick = freed(host, 1024, STREAM)
    host.synchronize(STREAM)
    assert malloc(host, 1024) != quick
    host.synchronize(SLOW)
    assert malloc(host, 1024) == quick


@pytest.mark.parametrize("version", MODELLED)
def test_empty_cache_releases_what_is_free(version: str) -> None:
    host = CachingHostAllocator(torch_version=version)
    kept = malloc(host, 1)
    freed(host, 2)
    freed(host, 4, STREAM)
    freed(host, 8, SLOW)
    host.synchronize(STREAM)
    host.empty_cache()
    assert held(host) == [1, 8]
    host.free(kept)


def test_block_above_the_cached_size_is_released() -> None:
    host = CachingHostAllocator("pinned_max_cached_size_mb:1", "2.13")
    freed(host, MIB)
    freed(host, MIB + 1)
    waiting = freed(host, 2 * MIB, STREAM)
    assert held(host) == [MIB, 2 * MIB]
    host.synchronize()
    assert malloc(host, 2 * MIB) != waiting
    assert held(host) == [MIB, 2 * MIB]


def test_background_thread_polls_between_calls() -> None:
    host = CachingHostAllocator("pinned_use_background_threads:True")
    block = freed(host, 1024, STREAM)  # the request started the thread
    assert host.host_segments()[0]["blocks"][0]["state"] == "active_pending_free"
    host.synchronize()
    assert host.host_segments()[0]["blocks"][0]["state"] == "inactive"
    assert malloc(host, 1024) == block


def test_request_polls_its_size_up_to_2_9() -> None:
    for version, is_found in (("2.9", True), ("2.10", False)):
        host = CachingHostAllocator(torch_version=version)
        freed(host, 2048, SLOW)
        block = freed(host, 1024, STREAM)
        host.synchronize(STREAM)
        host.set_allocator_settings("pinned_use_background_threads:True")
        assert (malloc(host, 1024) == block) is is_found, version


# -- statistics ----------------------------------------------------------------------------


def figures(host: CachingHostAllocator, name: str) -> list[int]:
    stats = host.host_memory_stats()
    return [stats[f"{name}.{column}"] for column in ("current", "peak", "allocated", "freed")]


def test_host_statistics_have_the_names_of_each_release() -> None:
    old = {"allocation", "allocated_bytes", "segment", "reserved_bytes"}
    new = {"active_requests", "active_bytes", "allocations", "allocated_bytes"}
    counts = {"host_alloc_time", "host_free_time", "num_host_alloc", "num_host_free"}
    for version in MODELLED:
        stats = CachingHostAllocator(torch_version=version).host_memory_stats()
        names = {key.split(".")[0] for key in stats}
        minor = int(version.split(".")[1])
        expected = set() if minor < 7 else (old if minor < 10 else new) | counts
        assert names == expected, version
        assert list(stats) == sorted(stats)


def test_plain_frees_are_not_counted_from_2_10_to_2_12() -> None:
    for version in WITH_STATS:
        host = CachingHostAllocator(torch_version=version)
        freed(host, 1024)
        freed(host, 1024)
        names = RELEASES[version].host_stats
        assert names is not None
        is_faulty = version in ("2.10", "2.11", "2.12")
        assert figures(host, names.active) == ([2, 2, 2, 0] if is_faulty else [0, 1, 2, 2])
        assert figures(host, names.owned) == [1, 1, 1, 0]


def test_completed_free_adds_a_byte_up_to_2_12() -> None:
    for version in WITH_STATS:
        host = CachingHostAllocator(torch_version=version)
        freed(host, 1024, STREAM)
        host.synchronize()
        malloc(host, 4096)
        names = RELEASES[version].host_stats
        assert names is not None
        is_faulty = int(version.split(".")[1]) <= 12
        expected = [5121, 5120, 5120, -1] if is_faulty else [4096, 5120, 5120, 1024]
        assert figures(host, names.active_bytes) == expected, version


def test_peaks_are_sums_over_the_sizes() -> None:
    host = CachingHostAllocator()
    freed(host, MIB)
    freed(host, 2 * MIB)
    assert figures(host, "active_bytes") == [0, 3 * MIB, 3 * MIB, 3 * MIB]


def test_resets_change_only_their_statistics() -> None:
    host = CachingHostAllocator()
    kept = malloc(host, 1024)
    freed(host, 2048)
    host.reset_peak_host_memory_stats()
    assert figures(host, "active_bytes") == [1024, 1024, 3072, 2048]
    host.reset_accumulated_host_memory_stats()
    assert figures(host, "active_bytes") == [1024, 1024, 0, 0]
    assert figures(host, "allocations") == [2, 2, 0, 0]
    assert host.host_memory_stats()["num_host_alloc"] == 0
    host.free(kept)


# -- captures, traces, limits --------------------------------------------------------------


def test_capture_has_separate_blocks_from_2_11_on() -> None:
    for version in MODELLED:
        host = CachingHostAllocator(torch_version=version)
        block = freed(host, 1024)
        host.begin_allocate_to_pool((0, 1), STREAM)
        inside = malloc(host, 1024)
        host.free(inside)
        assert malloc(host, 1024) == inside
        host.free(inside)
        host.end_allocate_to_pool((0, 1))
        has_pools = int(version.split(".")[1]) >= 11
        assert (inside == block) is not has_pools, version
        host.release_pool((0, 1))
        host.empty_cache()
        assert held(host) == []


def test_block_used_in_a_capture_is_never_reused() -> None:
    host = CachingHostAllocator()
    host.begin_allocate_to_pool((0, 1), STREAM)
    used = freed(host, 1024, STREAM)
    assert malloc(host, 1024) != used
    host.end_allocate_to_pool((0, 1))
    host.synchronize()
    host.release_pool((0, 1))
    host.empty_cache()
    assert used in [segment["address"] for segment in host.host_segments()]


def test_free_on_the_capturing_stream_is_refused() -> None:
    host = CachingHostAllocator()
    block = malloc(host, 1024)
    host.record_event(block, STREAM)
    host.begin_allocate_to_pool((0, 1), STREAM)
    with pytest.raises(UndefinedBehaviorError, match="during a capture on stream 4096"):
        host.free(block)
    host.end_allocate_to_pool((0, 1))
    host.free(block)


def test_host_history_and_segments_have_the_form_of_a_snapshot() -> None:
    host = CachingHostAllocator("pinned_max_cached_size_mb:0", record_history=True)
    kept = malloc(host, 1000)
    waiting = freed(host, 2000, STREAM)
    assert [(e.action, e.address, e.size) for e in host.history] == [
        ("segment_alloc", kept, 1000),
        ("alloc", kept, 1000),
        ("segment_alloc", waiting, 2000),
        ("alloc", waiting, 2000),
        ("free_requested", waiting, 2000),
    ]
    states = [segment["blocks"][0]["state"] for segment in host.host_segments()]
    assert states == ["active_allocated", "active_pending_free"]
    assert [s["active_size"] for s in host.host_segments()] == [1000, 2000]
    host.synchronize()
    host.empty_cache()
    assert [e.action for e in host.history[5:]] == ["free_completed", "segment_free"]


def test_host_allocator_errors_name_the_value() -> None:
    with pytest.raises(ConfigError, match=r"pinned memory of torch 2\.5 is not modelled"):
        CachingHostAllocator(torch_version="2.5")
    with pytest.raises(ConfigError, match="-1 is negative"):
        CachingHostAllocator(host_memory=-1)
    host = CachingHostAllocator()
    with pytest.raises(ValueError, match="size -1 is negative"):
        host.malloc(-1)
    block = malloc(host, 1)
    host.free(block)
    with pytest.raises(UndefinedBehaviorError, match="not allocated"):
        host.free(block)
    with pytest.raises(UndefinedBehaviorError, match="not allocated"):
        host.record_event(block, 0)
    with pytest.raises(ConfigError):
        host.set_allocator_settings("pinned_max_cached_size_mb:1,unknown:1")
