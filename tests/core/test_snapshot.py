"""The dict of torch.cuda.memory._snapshot() by release (semantics 6), and memory_summary()."""

from __future__ import annotations

import pytest

from allocsim import OutOfMemoryError
from allocsim.core import RELEASES, CachingAllocator
from allocsim.core.snapshot import memory_summary
from allocsim.units import MIB

from .conftest import Make, held

ORDER = list(RELEASES)
SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": "2.3",
    "max_split_size": "2.3",
    "garbage_collection_threshold": "2.3",
    "expandable_segments": "2.3",
    "pinned_num_register_threads": "2.3",
    "release_lock_on_cudamalloc": "2.3",
    "pinned_use_cuda_host_register": "2.3",
    "graph_capture_record_stream_reuse": "2.9",
    "max_round_threshold": "2.13",
    "max_cached_size": "2.13",
    "roundup_power2_divisions": "2.3",
}
TOP = {
    "segments": "2.1",
    "device_traces": "2.1",
    "allocator_settings": "2.3",
    "external_annotations": "2.5",
    "host_segments": "2.14",
    "host_traces": "2.14",
}
ENTRY = {
    "action": "2.1",
    "addr": "2.1",
    "size": "2.1",
    "stream": "2.1",
    "time_us": "2.2",
    "compile_context": "2.8",
    "user_metadata": "2.10",
    "pool_id": "2.12",
}
COLUMNS = ("current", "peak", "allocated", "freed")
FIGURES = {
    "allocated_bytes": (786_431, 786_432, 805_306_367, 805_306_368),
    "active_bytes": (1023, 805_306_368, 3 << 40, 1 << 52),
    "requested_bytes": (0, 1, 1024, 1_000_000_000),
    "reserved_bytes": (62_914_560, 24_696_061_952, 1_319_413_953_331, 0),
    "inactive_split_bytes": (13_630_976, 20_971_008, 46_281_216, 32_650_240),
    "allocation": (749_999, 750_000, 749_999_999, 750_000_000),
    "active": (1, 22, 333, 4444),
    "segment": (5, 5, 5, 0),
    "inactive_split": (3, 3, 6_000_000_000, 3),
}
EXPECTED = """\
|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 1                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 3            |        cudaMalloc retries: 12        |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      | 786431 B   |    768 KiB | 786431 KiB |    768 MiB |
|       from large pool | 524288 B   |    512 KiB | 524288 KiB |    512 MiB |
|       from small pool | 262143 B   |    256 KiB | 262143 KiB |    256 MiB |
|---------------------------------------------------------------------------|
| Active memory         |   1023 B   |    768 MiB |   3072 GiB |   4096 TiB |
|       from large pool |    682 B   |    512 MiB |   2048 GiB |   2730 TiB |
|       from small pool |    341 B   |    256 MiB |   1024 GiB |   1365 TiB |
|---------------------------------------------------------------------------|
| Requested memory      |      0 B   |      1 B   |   1024 B   |    953 MiB |
|       from large pool |      0 B   |      1 B   |    683 B   |    635 MiB |
|       from small pool |      0 B   |      0 B   |    341 B   |    317 MiB |
|---------------------------------------------------------------------------|
| GPU reserved memory   |  61440 KiB |  23552 MiB |   1228 GiB |      0 B   |
|       from large pool |  40960 KiB |  15701 MiB |    819 GiB |      0 B   |
|       from small pool |  20480 KiB |   7850 MiB |    409 GiB |      0 B   |
|---------------------------------------------------------------------------|
| Non-releasable memory |  13311 KiB |  20479 KiB |  45196 KiB |  31885 KiB |
|       from large pool |   8874 KiB |  13653 KiB |  30131 KiB |  21256 KiB |
|       from small pool |   4437 KiB |   6826 KiB |  15065 KiB |  10628 KiB |
|---------------------------------------------------------------------------|
| Allocations           |  749999    |     750 K  |  749999 K  |     750 M  |
|       from large pool |  500000    |     500 K  |  500000 K  |     500 M  |
|       from small pool |  249999    |     250 K  |  249999 K  |     250 M  |
|---------------------------------------------------------------------------|
| Active allocs         |       1    |      22    |     333    |    4444    |
|       from large pool |       1    |      15    |     222    |    2963    |
|       from small pool |       0    |       7    |     111    |    1481    |
|---------------------------------------------------------------------------|
| GPU reserved segments |       5    |       5    |       5    |       0    |
|       from large pool |       4    |       4    |       4    |       0    |
|       from small pool |       1    |       1    |       1    |       0    |
|---------------------------------------------------------------------------|
| Non-releasable allocs |       3    |       3    |    6000 M  |       3    |
|       from large pool |       2    |       2    |    4000 M  |       2    |
|       from small pool |       1    |       1    |    2000 M  |       1    |
|---------------------------------------------------------------------------|
| Oversize allocations  |       0    |     900 K  |    1800 K  |    2700 K  |
|---------------------------------------------------------------------------|
| Oversize GPU segments |       0    |     900 K  |    1800 K  |    2700 K  |
|===========================================================================|
"""
"""Table of `torch.cuda.memory_summary` of PyTorch 2.13 for `FIGURES`."""


def since(table: dict[str, str], torch: str) -> list[str]:
    return [key for key, first in table.items() if ORDER.index(torch) >= ORDER.index(first)]


@pytest.mark.parametrize("torch", RELEASES)
def test_the_keys_of_each_release(make: Make, torch: str) -> None:
    a = make(torch_version=torch, conf="garbage_collection_threshold:0.5")
    a.malloc(100)
    snapshot = a.snapshot()
    assert list(snapshot) == since(TOP, torch)
    [entries] = snapshot["device_traces"]
    assert [list(entry) for entry in entries] == [since(ENTRY, torch)] * 2
    if "allocator_settings" in snapshot:
        settings = snapshot["allocator_settings"]
        assert sorted(settings) == sorted(since(SETTINGS, torch))
        assert settings["PYTORCH_CUDA_ALLOC_CONF"] == "garbage_collection_threshold:0.5"
        assert settings["max_split_size"] == -1
        assert settings["garbage_collection_threshold"] == 0.5
        assert settings["roundup_power2_divisions"] == {str(1 << i): 0 for i in range(16)}


def test_settings_show_what_is_in_force(make: Make) -> None:
    conf = (
        "max_split_size_mb:64,expandable_segments:True,roundup_power2_divisions:[1:2,2:4],"
        "pinned_num_register_threads:8,release_lock_on_cudamalloc:True,"
        "pinned_max_cached_size_mb:5"
    )
    settings = make(conf=conf).snapshot()["allocator_settings"]
    assert settings == {
        "PYTORCH_CUDA_ALLOC_CONF": conf,
        "max_split_size": 64 * MIB,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": True,
        "pinned_num_register_threads": 8,
        "release_lock_on_cudamalloc": True,
        "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "max_round_threshold": -1,
        "max_cached_size": 5 * MIB,  # bytes, as observed
        "roundup_power2_divisions": {"1": 2, "2": 4} | {str(1 << i): 0 for i in range(2, 16)},
    }


def test_segments_and_blocks(make: Make) -> None:
    a = make(device=1)
    a.begin_allocate_to_pool(3)
    a.malloc(12 * MIB, stream=4096)
    a.end_allocate_to_pool(3)
    pending = held(a, 700)
    a.malloc(5000)
    a.record_stream(pending, 4096)
    a.free(pending)
    snapshot = a.snapshot()
    assert snapshot["segments"] == [
        {
            "device": 1,
            "address": 0,
            "total_size": 12 * MIB,
            "allocated_size": 12 * MIB,
            "active_size": 12 * MIB,
            "requested_size": 12 * MIB,
            "stream": 4096,
            "segment_type": "large",
            "segment_pool_id": (0, 3),
            "is_expandable": False,
            "frames": [],
            "blocks": [
                {
                    "address": 0,
                    "size": 12 * MIB,
                    "requested_size": 12 * MIB,
                    "state": "active_allocated",
                    "frames": [],
                }
            ],
        },
        {
            "device": 1,
            "address": 12 * MIB,
            "total_size": 2 * MIB,
            "allocated_size": 5120,
            "active_size": 6144,
            "requested_size": 5700,
            "stream": 0,
            "segment_type": "small",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [
                {"address": 12 * MIB, "size": 1024, "requested_size": 700}
                | {"state": "active_pending_free", "frames": []},
                {"address": 12 * MIB + 1024, "size": 5120, "requested_size": 5000}
                | {"state": "active_allocated", "frames": []},
                {"address": 12 * MIB + 6144, "size": 2 * MIB - 6144, "requested_size": 0}
                | {"state": "inactive", "frames": []},
            ],
        },
    ]
    assert [len(trace) for trace in snapshot["device_traces"]] == [0, 6]
    pools = [entry["pool_id"] for entry in snapshot["device_traces"][1]]
    assert pools == [(0, 3)] * 2 + [(0, 0)] * 4


@pytest.mark.parametrize("torch", RELEASES)
def test_expandable_segments_appear_by_mapped_range(make: Make, torch: str) -> None:
    """Section 4.7: after the unmapping, one reservation has two ranges."""
    a = make("200MiB", torch_version=torch, conf="expandable_segments:True")
    ptrs = [a.malloc(30_000_000) for _ in range(4)]
    a.free(ptrs[0])
    a.free(ptrs[2])
    a.empty_cache()
    ranges = [(s["address"] // MIB, s["total_size"] // MIB) for s in a.memory_snapshot()]
    assert ranges == [(20, 40), (80, 40)]
    assert all(segment["is_expandable"] for segment in a.memory_snapshot())


def test_a_snapshots_own_entry_is_seen_by_the_next(make: Make) -> None:
    a = make()
    a.malloc(1000)
    assert [entry["action"] for entry in a.snapshot()["device_traces"][0]] == [
        *("segment_alloc", "alloc")
    ]
    entry = a.snapshot()["device_traces"][0][-1]
    assert (entry["action"], entry["addr"], entry["size"], entry["stream"]) == (
        *("snapshot", 0, 1024),
        0,
    )
    a.memory_snapshot()  # reads without an entry
    assert len(a.snapshot()["device_traces"][0]) == 4


def test_an_error_entry_has_the_free_bytes_and_the_rounded_size(make: Make) -> None:
    a = make("10MiB")
    with pytest.raises(OutOfMemoryError):
        a.malloc(11_000_001, stream=4096)
    [entry] = a.snapshot()["device_traces"][0]
    assert {key: entry[key] for key in ("action", "device_free", "size", "stream")} == {
        "action": "oom",
        "device_free": 10 * MIB,
        "size": 11_000_320,
        "stream": 4096,
    }
    assert "addr" not in entry


@pytest.mark.parametrize("torch", RELEASES)
def test_without_history_the_trace_is_empty(make: Make, torch: str) -> None:
    a = make(torch_version=torch, record_history=False)
    a.free(a.malloc(100))
    assert a.take_history() == []
    snapshot = a.snapshot()
    assert snapshot["device_traces"] == [[]]
    assert len(snapshot["segments"]) == 1


def test_entries_come_in_upstreams_order(make: Make) -> None:
    """6.2: the segment before its block, requested sizes, no entry for a split."""
    a = make("64MiB")
    first = a.malloc(3_000_001)
    a.malloc(5)
    a.free(first)
    a.malloc(2_000_001)
    entries = [(e.action, e.address // MIB, e.size) for e in a.take_history()]
    assert entries == [
        ("segment_alloc", 0, 20 * MIB),
        ("alloc", 0, 3_000_001),
        ("segment_alloc", 20, 2 * MIB),
        ("alloc", 20, 5),
        ("free_requested", 0, 3_000_001),
        ("free_completed", 0, 3_000_001),
        ("alloc", 0, 2_000_001),
    ]


def test_history_can_be_taken_piece_by_piece(make: Make) -> None:
    a = make()
    a.malloc(100)
    assert len(a.take_history()) == 2
    assert a.take_history() == []
    a.malloc(100)
    assert [entry.action for entry in a.take_history()] == ["alloc"]


def test_no_history_is_kept_unless_it_is_asked_for() -> None:
    a = CachingAllocator("1GiB")
    a.malloc(100)
    assert a.take_history() == []
    assert a.snapshot()["device_traces"] == [[]]


def test_the_bare_segments_name_their_device(make: Make) -> None:
    a = make(device=2)
    a.malloc(100)
    assert [segment["device"] for segment in a.memory_snapshot()] == [2]


def test_what_the_model_does_not_know_of_an_entry_is_neutral(make: Make) -> None:
    """6.3: a clock that counts entries, no compilation context, no user metadata."""
    a = make()
    a.malloc(100)
    a.malloc(100)
    [entries] = a.snapshot()["device_traces"]
    assert [entry["time_us"] for entry in entries] == [0, 1, 2]
    assert {entry["compile_context"] for entry in entries} == {"N/A"}
    assert {entry["user_metadata"] for entry in entries} == {""}


def figures() -> dict[str, int]:
    """Return figures with a third in the small pool; the two oversize rows count up."""
    stats = {"num_ooms": 3, "num_alloc_retries": 12}
    for name, values in FIGURES.items():
        for column, value in zip(COLUMNS, values, strict=True):
            stats[f"{name}.all.{column}"] = value
            stats[f"{name}.large_pool.{column}"] = value - value // 3
            stats[f"{name}.small_pool.{column}"] = value // 3
    for name in ("oversize_allocations", "oversize_segments"):
        for i, column in enumerate(COLUMNS):
            stats[f"{name}.{column}"] = i * 900_000
    return stats


def test_the_whole_table() -> None:
    assert memory_summary(figures(), 1) == EXPECTED


def test_an_allocator_prints_its_own() -> None:
    a = CachingAllocator("1GiB", device=5)
    a.malloc(3 * MIB)
    table = a.memory_summary()
    assert "|                  PyTorch CUDA memory summary, device ID 5  " in table
    assert "| GPU reserved memory   |  20480 KiB |  20480 KiB |  20480 KiB |      0 B   |" in table
    assert "| GPU reserved segments |       1    |       1    |       1    |       0    |" in table
    assert len({len(line) for line in table.splitlines()}) == 1


def test_the_largest_unit_keeps_growing() -> None:
    """There is no unit above PiB and M."""
    stats = figures()
    for i, column in enumerate(COLUMNS):
        stats[f"active_bytes.all.{column}"] = 1 << (59, 60, 69, 70)[i]
        stats[f"active.all.{column}"] = 10 ** (9 + i)
    rows = [line.rstrip("|").split("|")[2:] for line in memory_summary(stats, 0).splitlines()]
    assert ["524288 TiB", "1024 PiB", "524288 PiB", "1048576 PiB"] in [
        [cell.strip() for cell in row] for row in rows
    ]
    assert ["1000 M", "10000 M", "100000 M", "1000000 M"] in [
        [cell.strip() for cell in row] for row in rows
    ]
