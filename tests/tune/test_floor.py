"""Lower bound of a peak during the replay: never too high, and high enough to be useful."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from allocsim import CachingAllocator, load
from allocsim.analysis.tune.lower_bound import Demand
from allocsim.core import Block, parse_conf
from allocsim.errors import AllocsimError
from allocsim.replaying import Prepared, prepare
from allocsim.simulation import Observer, Setting, SimulatedOom
from allocsim.units import KIB, MIB

Write = Callable[..., Path]
Program = Callable[[CachingAllocator], object]
TRACES = Path(__file__).parents[2] / "traces"


class BoundWatch(Observer):
    """Observer of the bound and the reserved bytes at the beginning and after each growth."""

    def __init__(self, prepared: Prepared, conf: str) -> None:
        self.floor = Demand(prepared).floor(parse_conf(conf, prepared.release))
        self.bounds: list[int] = []
        self.reserved: list[int] = []
        self.has_failed = False

    def began(self, allocator: CachingAllocator) -> None:
        assert self.floor is not None
        self.floor.began(allocator)
        self.bounds.append(self.floor.reserved)
        self.reserved.append(allocator.reserved_bytes)

    def grew(self, allocator: CachingAllocator, entry: int) -> None:
        assert self.floor is not None
        self.floor.grew(allocator, entry)
        self.bounds.append(self.floor.reserved)
        self.reserved.append(allocator.reserved_bytes)

    def out_of_memory(
        self, allocator: CachingAllocator, oom: SimulatedOom, blocks: Mapping[int, Block]
    ) -> None:
        del allocator, oom, blocks
        self.has_failed = True


def watched(path: Path, conf: str = "", memory: int | None = None) -> BoundWatch:
    prepared = prepare(load(path), 0)[0]
    observer = BoundWatch(prepared, conf)
    drive = prepared.drive(Setting(conf), memory, observers=(observer,))
    observer.reserved.append(drive.allocator.memory_stats()["reserved_bytes.all.peak"])
    return observer


# -- programs ----------------------------------------------------------------------------


def one_stream_after_the_other(gpu: CachingAllocator) -> None:
    gpu.free(gpu.malloc(100 * MIB, 0))
    gpu.free(gpu.malloc(60 * MIB, 7))


def test_bound_adds_the_peaks_of_all_streams(write: Write) -> None:
    assert watched(write(one_stream_after_the_other)).bounds == [160 * MIB] * 3


def a_pool_of_its_own(gpu: CachingAllocator) -> None:
    gpu.free(gpu.malloc(40 * MIB))
    gpu.begin_allocate_to_pool(1)
    gpu.free(gpu.malloc(30 * MIB))
    gpu.end_allocate_to_pool(1)
    gpu.free(gpu.malloc(KIB))


def test_bound_adds_the_peaks_of_private_pools_and_small_requests(write: Write) -> None:
    path = write(a_pool_of_its_own)
    assert watched(path).bounds[0] == 72 * MIB
    assert (
        watched(path, "expandable_segments:True").bounds[0] == (40 + 40 + 2) * MIB
    )  # whole handles


def a_short_one_then_a_long_one(gpu: CachingAllocator) -> None:
    gpu.free(gpu.malloc(50 * MIB))
    gpu.free(gpu.malloc(80 * MIB))
    gpu.free(gpu.malloc(50 * MIB))


def test_bound_adds_the_segments_that_are_too_small_for_a_request(write: Write) -> None:
    """80 MiB will be reserved beside the 50 MiB, unless an expandable segment grows."""
    path = write(a_short_one_then_a_long_one)
    assert watched(path).bounds == [80 * MIB, 130 * MIB, 130 * MIB]
    assert watched(path, "expandable_segments:True").bounds == [80 * MIB] * 3
    assert watched(path, "roundup_power2_divisions:2").bounds == [96 * MIB, 160 * MIB, 160 * MIB]


def a_long_one_then_two_short_ones(gpu: CachingAllocator) -> None:
    gpu.free(gpu.malloc(80 * MIB))
    for block in [gpu.malloc(25 * MIB), gpu.malloc(25 * MIB)]:
        gpu.free(block)


def test_bound_counts_blocks_above_the_split_limit_separately(write: Write) -> None:
    path = write(a_long_one_then_two_short_ones)
    assert watched(path).bounds[0] == 80 * MIB
    assert watched(path, "max_split_size_mb:60").bounds[0] == (80 + 26 + 26 - 2) * MIB
    assert watched(path, "max_split_size_mb:26").bounds[0] == 80 * MIB  # 25 MiB get a segment of 26


def test_bound_stays_a_segment_below_the_limit(write: Write) -> None:
    """On 150 MiB the request of the third stream releases the memory of the first."""

    def program(gpu: CachingAllocator) -> None:
        for stream in range(3):
            gpu.free(gpu.malloc(60 * MIB, stream))

    path = write(program)
    assert watched(path).bounds[0] == 180 * MIB
    tight = watched(path, memory=150 * MIB)
    assert tight.bounds[0] == 90 * MIB
    assert tight.reserved[-1] == 120 * MIB


def emptying(gpu: CachingAllocator) -> None:
    for size in (60, 80, 60):
        gpu.free(gpu.malloc(size * MIB))
        gpu.empty_cache()
    gpu.malloc(KIB)


@pytest.mark.parametrize(
    ("program", "conf"),
    [
        (emptying, ""),
        (one_stream_after_the_other, "garbage_collection_threshold:0.5"),
        (one_stream_after_the_other, "large_segment_size_mb:21"),
        (one_stream_after_the_other, "expandable_segments:True,expandable_segments_reserve:1G"),
    ],
    ids=["the cache is emptied", "garbage is collected", "odd segments", "a reserve"],
)
def test_no_bound_where_memory_may_return_to_the_driver(
    program: Program, conf: str, write: Write
) -> None:
    prepared = prepare(load(write(program)), 0)[0]
    try:
        config = parse_conf(conf, prepared.release)
    except AllocsimError:
        pytest.fail(f"{conf} is no setting of {prepared.release.version}")
    assert Demand(prepared).floor(config) is None


# -- upper limit ------------------------------------------------------------------------

CONFS = (
    "",
    "expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:64",
    "large_segment_size_mb:32",
    "roundup_power2_divisions:[4:8,>:2]",
    "max_split_size_mb:24",
    "max_split_size_mb:48,large_segment_size_mb:32",
    "max_split_size_mb:33,roundup_power2_divisions:4",
)


def anything(seed: int) -> Program:
    """Generate streams, pools and waiting frees with sizes of every class."""

    def program(gpu: CachingAllocator) -> None:
        rng = random.Random(seed)
        live: list[int | None] = []
        scopes = 0
        for _ in range(rng.choice((60, 300))):
            roll = rng.random()
            if roll < 0.04 and scopes < 3:
                scopes += 1
                gpu.begin_allocate_to_pool(scopes)
                live += [gpu.malloc(rng.randrange(1, 40 * MIB)) for _ in range(3)]
                gpu.end_allocate_to_pool(scopes)
            elif roll < 0.5 and live:
                block = live.pop(rng.randrange(len(live)))
                if rng.random() < 0.1 and block is not None:
                    gpu.record_stream(block, 9)
                gpu.free(block)
            elif roll < 0.55:
                gpu.synchronize()
            else:
                size = rng.choice((300 * KIB, 2 * MIB, 9 * MIB, 25 * MIB, 26 * MIB, 90 * MIB))
                live.append(gpu.malloc(rng.randrange(size // 2, size + 1), rng.choice((0, 0, 7))))

    return program


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", range(12))
def test_peak_is_never_below_the_bound(conf: str, seed: int, write: Write) -> None:
    path = write(anything(seed), memory="64GiB")
    free = watched(path, conf)
    assert free.bounds == sorted(free.bounds)
    assert free.bounds[-1] <= free.reserved[-1]
    for share in (0.95, 0.8, 0.6):
        memory = int(share * free.reserved[-1])
        tight = watched(path, conf, memory)
        assert tight.bounds == sorted(tight.bounds)
        assert tight.bounds[-1] <= tight.reserved[-1]


@pytest.mark.parametrize("name", ["two_streams-default", "resnet_training-default"])
@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:24"])
def test_bound_of_a_real_program_is_near_the_peak_early(name: str, conf: str) -> None:
    found = watched(TRACES / f"recordings/{name}-torch2.15.npz.gz", conf)
    assert found.bounds[-1] <= found.reserved[-1]
    half = len(found.bounds) // 2
    assert found.bounds[half] > max(found.reserved[half], 0.5 * found.reserved[-1])
