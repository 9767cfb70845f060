"""Pools of entries that do not store them, with reused addresses (semantics 6.6)."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from allocsim import CachingAllocator, load
from allocsim.recording import Action, Trace, pools_of
from allocsim.state import PoolId, SegmentState
from allocsim.units import MIB

MAP, UNMAP = Action.SEGMENT_MAP, Action.SEGMENT_UNMAP
POOL: PoolId = (0, 1)
BASE = 1 << 40


def trace_of(*rows: tuple[Action, int, int], segments: tuple[SegmentState, ...]) -> Trace:
    action, addr, size = zip(*rows, strict=True)
    none = np.full(len(rows), -1, dtype=np.int32)
    return Trace(
        device=0,
        action=np.array(action, dtype=np.uint8),
        addr=np.array(addr, dtype=np.uint64),
        size=np.array(size, dtype=np.int64),
        stream=np.zeros(len(rows), dtype=np.uint64),
        frames=none,
        pool_id=none.copy(),
        segments=segments,
    )


def private(mib: int, *, at: int = BASE, is_expandable: bool = False) -> SegmentState:
    return SegmentState(at, mib * MIB, 0, False, POOL, is_expandable, ())


def test_pool_of_an_address_is_that_of_its_final_segment() -> None:
    trace = trace_of(
        (Action.SEGMENT_ALLOC, BASE, 30 * MIB),
        (Action.ALLOC, BASE, 30 * MIB),
        (Action.FREE_REQUESTED, BASE, 30 * MIB),
        (Action.FREE_COMPLETED, BASE, 30 * MIB),
        (Action.SEGMENT_FREE, BASE, 30 * MIB),
        (Action.SEGMENT_ALLOC, BASE, 30 * MIB),
        (Action.ALLOC, BASE, 30 * MIB),
        segments=(private(30),),
    )
    pools = pools_of(trace)
    assert pools.ids == (POOL,)
    assert pools.number.tolist() == [-1, -1, -1, -1, -1, 0, 0]


def test_segment_from_before_the_first_entry_keeps_its_pool() -> None:
    trace = trace_of(
        (Action.FREE_REQUESTED, BASE, 512),
        (Action.ALLOC, BASE + 512, 512),
        (Action.ALLOC, BASE + 30 * MIB, 512),
        segments=(private(30),),
    )
    assert pools_of(trace).number.tolist() == [0, 0, -1]


def test_pools_ignore_the_free_bytes_of_an_oom() -> None:
    trace = trace_of((Action.OOM, BASE, 512), segments=(private(30),))
    assert pools_of(trace).number.tolist() == [-1]


def test_destroyed_expandable_segment_is_not_in_the_pool_of_its_successor() -> None:
    trace = trace_of(
        (MAP, BASE, 20 * MIB),
        (Action.ALLOC, BASE, 20 * MIB),
        (UNMAP, BASE, 20 * MIB),
        (MAP, BASE, 20 * MIB),
        (Action.ALLOC, BASE, 20 * MIB),
        segments=(private(20, is_expandable=True),),
    )
    assert pools_of(trace).number.tolist() == [-1, -1, -1, 0, 0]


def test_unmapped_range_keeps_its_pool_while_its_segment_exists() -> None:
    trace = trace_of(
        (MAP, BASE, 40 * MIB),
        (Action.ALLOC, BASE, 20 * MIB),
        (Action.ALLOC, BASE + 20 * MIB, 20 * MIB),
        (UNMAP, BASE + 20 * MIB, 20 * MIB),
        segments=(private(20, is_expandable=True),),
    )
    assert pools_of(trace).number.tolist() == [0, 0, 0, 0]


def test_ranges_mapped_before_the_first_entry_may_have_holes() -> None:
    trace = trace_of(
        (Action.ALLOC, BASE, 512),
        (UNMAP, BASE, 20 * MIB),
        (MAP, BASE, 20 * MIB),
        segments=(private(20, is_expandable=True),),
    )
    assert pools_of(trace).number.tolist() == [0, 0, 0]


Program = Callable[[CachingAllocator, random.Random], None]


def some(gpu: CachingAllocator, rng: random.Random) -> list[int | None]:
    sizes = (700, 300_000, 3 * MIB, 11 * MIB, 40 * MIB)
    return [gpu.malloc(rng.choice(sizes)) for _ in range(rng.randint(1, 12))]


def drop(gpu: CachingAllocator, held: list[int | None]) -> None:
    for ptr in held:
        gpu.free(ptr)


def graphs_between_emptied_caches(gpu: CachingAllocator, rng: random.Random) -> None:
    """Repeatedly allocate and release outside a pool, then in a pool that keeps its memory."""
    for number in range(1, 6):
        drop(gpu, some(gpu, rng))
        kept = some(gpu, rng)
        gpu.empty_cache()
        gpu.begin_allocate_to_pool((0, number))
        drop(gpu, some(gpu, rng))
        some(gpu, rng)
        gpu.end_allocate_to_pool((0, number))
        drop(gpu, kept)
        gpu.empty_cache()


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("seed", range(12))
def test_pools_equal_recorded_ones_where_the_driver_reuses_addresses(
    tmp_path: Path, conf: str, seed: int
) -> None:
    gpu = CachingAllocator("16GiB", conf, record_history=True, address_policy="firstfit")
    graphs_between_emptied_caches(gpu, random.Random(seed))
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(gpu.snapshot(), protocol=4))
    [trace] = load(path).devices
    said = pools_of(trace)
    none = np.full(len(trace), -1, dtype=np.int32)
    found = pools_of(replace(trace, pool_ids=(), pool_id=none))
    names = [[(*pools.ids, (0, 0))[n] for n in pools.number] for pools in (said, found)]
    assert len(said.ids) >= 5
    assert names[0] == names[1]
