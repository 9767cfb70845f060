"""Steps of training that repeat are passed over, and nothing that is counted shows it."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable

import numpy as np
import pytest

from allocsim import CachingAllocator
from allocsim.engine import Setting, prepare
from allocsim.engine.drive import Drive
from allocsim.engine.repeats import find_period
from allocsim.trace import Recording
from allocsim.units import KIB, MIB

REPEATS = importlib.import_module("allocsim.engine.repeats")
Recorded = Callable[..., Recording]
Program = Callable[[CachingAllocator], object]
CONFS = ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"]


def training(seed: int, steps: int = 30) -> Program:
    """Steps that ask for the same; each frees the last step's loss, some the weights' copy."""

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
    """What a search counts, and every block as it is in the end."""
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
def test_a_regular_program_is_soon_over(seed: int, conf: str, recorded: Recorded) -> None:
    prepared = prepare(recorded(training(seed)), 0)[0]
    quick, slow = (
        prepared.drive(Setting(conf), None, skips=True),
        prepared.drive(Setting(conf), None),
    )
    assert figures(quick) == figures(slow)
    assert slow.skipped == 0
    assert quick.skipped > slow.n_entries / 2


def test_the_period_is_that_of_the_steps(recorded: Recorded) -> None:
    prepared = prepare(recorded(training(0, steps=30)), 0)[0]
    period = find_period(prepared.free_plan.steps)
    assert period is not None
    assert period.length == 2 * 26
    assert period.count >= 28


def test_steps_that_share_a_number_are_no_period_for_that(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one number for all steps every length looks like a period; the steps say it is none."""
    prepared = prepare(recorded(leaking), 0)[0]
    monkeypatch.setattr(REPEATS, "_FACTOR", np.uint64(0))
    assert find_period(prepared.free_plan.steps) is None


def carrying(seed: int, steps: int = 150) -> Program:
    """Each step frees what one, two and three steps before it asked for; the first ones free
    what was there before, in whose places the next requests come to lie."""

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
def test_on_a_tight_device_every_retry_is_counted(memory: int, recorded: Recorded) -> None:
    prepared = prepare(recorded(training(1)), 0)[0]
    for conf in CONFS:
        quick, slow = (
            prepared.drive(Setting(conf), memory, skips=True),
            prepared.drive(Setting(conf), memory),
        )
        assert figures(quick) == figures(slow)


def leaking(gpu: CachingAllocator) -> None:
    """Each step keeps a block: no two are alike to the allocator, though they ask for the same."""
    for _ in range(30):
        blocks = [gpu.malloc(size * MIB) for size in (3, 5, 40)]
        gpu.malloc(700 * KIB)
        for block in blocks:
            gpu.free(block)


def test_a_leak_is_no_repetition(recorded: Recorded) -> None:
    prepared = prepare(recorded(leaking), 0)[0]
    quick, slow = prepared.drive(Setting(""), None, skips=True), prepared.drive(Setting(""), None)
    assert quick.skipped == 0
    assert figures(quick) == figures(slow)


def ragged(gpu: CachingAllocator) -> None:
    rng = random.Random(3)
    for _ in range(300):
        gpu.free(gpu.malloc(rng.randrange(1, 50 * MIB)))


def test_where_no_step_is_like_another_none_is_passed_over(recorded: Recorded) -> None:
    prepared = prepare(recorded(ragged), 0)[0]
    assert find_period(prepared.free_plan.steps) is None
    assert prepared.drive(Setting(""), None, skips=True).skipped == 0


def test_where_objects_are_counted_no_step_is_like_another(recorded: Recorded) -> None:
    recording = recorded(training(0))
    assert prepare(recording, 0, "2.12")[0].drive(Setting(""), None, skips=True).skipped == 0
    assert prepare(recording, 0, "2.11")[0].drive(Setting(""), None, skips=True).skipped > 0


def test_a_program_that_goes_on_after_its_steps_finds_its_blocks(recorded: Recorded) -> None:
    """What is freed after the last step was handed out in a step that was passed over."""

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
