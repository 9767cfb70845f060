"""Skipping repeated training steps does not change any number."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable

import numpy as np
import pytest

from allocsim import CachingAllocator
from allocsim.recording import Recording
from allocsim.replaying import prepare
from allocsim.simulation import Setting
from allocsim.simulation.drive import Drive
from allocsim.simulation.plan import find_period
from allocsim.units import KIB, MIB

REPEATS = importlib.import_module("allocsim.simulation.plan")
Recorded = Callable[..., Recording]
Program = Callable[[CachingAllocator], object]
CONFS = ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"]


def training(seed: int, steps: int = 30) -> Program:
    """Repeat steps; each frees the loss of the last one, some a copy of the weights."""

    def program(gpu: CachingAllocator) -> None:
        rng = random.Random(seed)
        for _ in range(10):
            gpu.malloc(rng.randrange(100 * KIB, 30 * MIB))
        sizes = [rng.randrange(1 * KIB, 60 * MIB) for _ in range(25)]
        order = rng.sample(range(25), 25)
        loss = gpu.malloc(4)
        for _ in range(steps):
            blocks = [gpu.malloc(size) for size in sizes]
            for i in order[:10]:
                gpu.free(blocks[i])
            fresh = gpu.malloc(4)
            for i in order[10:]:
                gpu.free(blocks[i])
            gpu.free(loss)
            loss = fresh
        gpu.malloc(70 * MIB)

    return program


def figures(drive: Drive) -> tuple[object, ...]:
    """Return the numbers that a search compares, and the final blocks."""
    allocator = drive.allocator
    stats = allocator.memory_stats()
    counted = [f"{key}.all.peak" for key in ("reserved_bytes", "allocated_bytes", "segment")]
    return (
        [stats[key] for key in counted],
        [stats[key] for key in ("num_alloc_retries", "num_device_alloc", "num_device_free")],
        [(oom.entry, oom.message) for oom in drive.ooms],
        allocator.segments(),
    )


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", range(4))
def test_regular_program_is_mostly_skipped(seed: int, conf: str, recorded: Recorded) -> None:
    prepared = prepare(recorded(training(seed)), 0)[0]
    quick, slow = (
        prepared.drive(Setting(conf), None, skips=True),
        prepared.drive(Setting(conf), None),
    )
    assert figures(quick) == figures(slow)
    assert slow.skipped == 0
    assert quick.skipped > slow.n_entries / 2


def test_period_is_a_training_step(recorded: Recorded) -> None:
    prepared = prepare(recorded(training(0, steps=30)), 0)[0]
    period = find_period(prepared.free_plan.steps)
    assert period is not None
    assert period.length == 2 * 26
    assert period.count >= 28


def test_repetition_in_a_small_part_is_not_a_period(recorded: Recorded) -> None:
    def program(allocator: CachingAllocator) -> None:
        for _ in range(30):
            allocator.free(allocator.malloc(1 << 20))
        for size in range(400):
            allocator.free(allocator.malloc(4096 + 512 * (size % 30) * (size % 13)))

    prepared = prepare(recorded(program), 0)[0]
    assert find_period(prepared.free_plan.steps) is None


def test_hash_collision_is_not_a_period(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one hash for all steps, every length looks like a period, but the columns differ."""
    prepared = prepare(recorded(leaking), 0)[0]
    monkeypatch.setattr(REPEATS, "_FACTOR", np.uint64(0))
    assert find_period(prepared.free_plan.steps) is None


def carrying(seed: int, steps: int = 150) -> Program:
    """Free blocks one, two and three steps after their request.

    The first steps free initial blocks, whose places the next requests use.
    """

    def program(gpu: CachingAllocator) -> None:
        rng = random.Random(seed)
        sizes = [rng.randrange(1 * KIB, 40 * MIB) for _ in range(12)]
        carried = [[gpu.malloc(size) for size in sizes[:3]] for _ in range(3)]
        for _ in range(steps):
            passing = [gpu.malloc(size) for size in sizes]
            carried.append([gpu.malloc(size) for size in sizes[:3]])
            for age, blocks in enumerate(carried[-4:-1]):
                gpu.free(blocks[age])
            for block in rng.sample(passing, len(passing)) if seed % 2 else passing:
                gpu.free(block)

    return program


@pytest.mark.parametrize(
    "conf", [*CONFS[:2], *(pytest.param(conf, marks=pytest.mark.slow) for conf in CONFS[2:])]
)
def test_blocks_may_outlive_several_steps(conf: str, recorded: Recorded) -> None:
    skipped = []
    for seed in range(6):
        prepared = prepare(recorded(carrying(seed)), 0)[0]
        quick, slow = (
            prepared.drive(Setting(conf), None, skips=True),
            prepared.drive(Setting(conf), None),
        )
        assert figures(quick) == figures(slow)
        skipped.append(quick.skipped)
    assert any(skipped)


@pytest.mark.parametrize("memory", [700 * MIB, 500 * MIB])
def test_retries_on_a_small_device_are_counted(memory: int, recorded: Recorded) -> None:
    prepared = prepare(recorded(training(1)), 0)[0]
    for conf in CONFS:
        quick, slow = (
            prepared.drive(Setting(conf), memory, skips=True),
            prepared.drive(Setting(conf), memory),
        )
        assert figures(quick) == figures(slow)


def leaking(gpu: CachingAllocator) -> None:
    """Keep a block in each step, so that no state recurs though the requests do."""
    for _ in range(30):
        blocks = [gpu.malloc(size * MIB) for size in (3, 5, 40)]
        gpu.malloc(700 * KIB)
        for block in blocks:
            gpu.free(block)


def test_leaking_program_is_not_skipped(recorded: Recorded) -> None:
    prepared = prepare(recorded(leaking), 0)[0]
    quick, slow = prepared.drive(Setting(""), None, skips=True), prepared.drive(Setting(""), None)
    assert quick.skipped == 0
    assert figures(quick) == figures(slow)


def ragged(gpu: CachingAllocator) -> None:
    rng = random.Random(3)
    for _ in range(300):
        gpu.free(gpu.malloc(rng.randrange(1, 50 * MIB)))


def test_program_without_period_is_not_skipped(recorded: Recorded) -> None:
    prepared = prepare(recorded(ragged), 0)[0]
    assert find_period(prepared.free_plan.steps) is None
    assert prepared.drive(Setting(""), None, skips=True).skipped == 0


def test_release_with_tie_break_by_creation_is_not_skipped(recorded: Recorded) -> None:
    recording = recorded(training(0))
    assert prepare(recording, 0, "2.12")[0].drive(Setting(""), None, skips=True).skipped == 0
    assert prepare(recording, 0, "2.11")[0].drive(Setting(""), None, skips=True).skipped > 0


def test_steps_after_the_period_free_blocks_of_skipped_steps(recorded: Recorded) -> None:
    """The last free frees a block from a skipped step."""

    def program(gpu: CachingAllocator) -> None:
        kept = None
        for _ in range(20):
            fresh = gpu.malloc(30 * MIB)
            gpu.free(gpu.malloc(50 * MIB))
            if kept is not None:
                gpu.free(kept)
            kept = fresh
        gpu.free(kept)
        gpu.malloc(60 * MIB)

    prepared = prepare(recorded(program), 0)[0]
    quick, slow = prepared.drive(Setting(""), None, skips=True), prepared.drive(Setting(""), None)
    assert quick.skipped > 0
    assert figures(quick) == figures(slow)
