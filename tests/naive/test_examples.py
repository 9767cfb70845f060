"""Worked examples of the rules, and the exact order of the hash table."""

from __future__ import annotations

import random

import pytest

from allocsim.core import RELEASES
from allocsim.units import MIB
from tests.naive.model import NaiveAllocator
from tests.naive.table import Table, stream_hash


@pytest.mark.parametrize("release", RELEASES)
def test_worked_example_of_the_statistics(release: str) -> None:
    """The example at the end of semantics 3."""
    a = NaiveAllocator("1GiB", torch_version=release)
    for address in [a.malloc(100), a.malloc(3_000_000)]:
        a.free(address)
    a.malloc(1_048_576)
    a.malloc(1_048_577)
    a.malloc(10_485_759)
    ten = a.malloc(10_485_760)
    twelve = a.malloc(12_582_913)
    a.free(ten)
    a.malloc(9_437_184)
    a.free(twelve)
    a.malloc(11_534_336)
    a.malloc(13_631_489)
    stats = a.memory_stats()
    sizes = [segment["total_size"] // MIB for segment in a.snapshot()["segments"]]
    assert sizes == [2, 20, 10, 14, 14]
    figures = ("current", "peak", "allocated", "freed")
    assert [stats[f"inactive_split.all.{f}"] for f in figures] == [3, 3, 6, 3]
    expected = [49_283_584, 49_283_584, 75_353_600, 26_070_016]
    assert [stats[f"allocated_bytes.all.{f}"] for f in figures] == expected
    expected = [13_630_976, 20_971_008, 46_281_216, 32_650_240]
    assert [stats[f"inactive_split_bytes.all.{f}"] for f in figures] == expected


@pytest.mark.parametrize("release", RELEASES)
def test_worked_example_of_expandable_segments(release: str) -> None:
    """Semantics 4.7: holes are released, and the least expandable size that suffices is taken."""
    a = NaiveAllocator(
        200 * MIB, "expandable_segments:True", torch_version=release, record_history=True
    )
    first, _, third, fourth = [a.malloc(30_000_000) for _ in range(4)]
    a.free(first)
    a.free(third)
    a.empty_cache()
    assert [s["total_size"] // MIB for s in a.snapshot()["segments"]] == [40, 40]
    assert fourth is not None
    assert a.malloc(50_000_000) == fourth + 30_000_128
    a.malloc(28_000_000)
    moves = [e for e in a.snapshot()["device_traces"][0] if "map" in e["action"]]
    found = [(e["action"][8:], e["addr"] // MIB, e["size"] // MIB) for e in moves]
    maps = [("map", 0, 40), ("map", 40, 20), ("map", 60, 40), ("map", 100, 20)]
    unmaps = [("unmap", 0, 20), ("unmap", 60, 20)]
    assert found == [*maps, *unmaps, ("map", 120, 60), ("map", 0, 20)]


@pytest.mark.parametrize("release", ["2.4", "2.8", "2.11", "2.13"])
def test_a_stream_recorded_in_a_scope_outlives_the_tenant(release: str) -> None:
    """The script in semantics 12.3b."""
    a = NaiveAllocator("1GiB", torch_version=release, record_history=True)
    first = a.malloc(10 * MIB)
    assert first is not None
    a.begin_allocate_to_pool(1)
    a.record_stream(first, 4096)
    a.end_allocate_to_pool(1)
    a.free(first)
    a.synchronize()
    a.malloc(100)
    third = a.malloc(10 * MIB)
    assert third is not None
    a.record_stream(third, 4096)
    a.begin_allocate_to_pool(2)
    a.free(third)
    a.end_allocate_to_pool(2)
    a.malloc(100)
    actions = [entry["action"] for entry in a.snapshot()["device_traces"][0]]
    assert (actions[-2] == "free_completed") is (release != "2.13")


def test_the_table_is_a_map_whatever_is_done_to_it() -> None:
    draw = random.Random(1)
    table: Table[int] = Table(stream_hash(0))
    plain: dict[int, int] = {}
    for step in range(2000):
        key = 4096 * draw.randrange(60)
        if key in plain and draw.random() < 0.6:
            table.erase(key)
            del plain[key]
        elif key not in plain:
            table.insert(key, step)
            plain[key] = step
        assert {k: table[k] for k in table} == plain
