"""Moments at which a call of empty_cache would have left no entry, found in two ways."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allocsim import CachingAllocator, Hints, load, replay
from allocsim.errors import UndefinedBehaviorError
from allocsim.inference.calls_without_entry import Quiet, entries_suffice
from allocsim.recording import Action, Recording, trimmed
from allocsim.replaying import Prepared, parting_of, prepare
from allocsim.simulation import StepKind
from allocsim.simulation.plan import joined
from allocsim.units import MIB
from allocsim.workload import KINDS

Recorded = Callable[..., Recording]
Program = Callable[[CachingAllocator], None]
QUIET = import_module("allocsim.inference.calls_without_entry")


def by_drive(prepared: Prepared) -> Quiet:
    """Return the quiet moments that a replay finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QUIET, "entries_suffice", lambda *_: False)
        return replace(prepared).quiet


def on_streams(seed: int) -> Program:
    """Return a program with random requests on two streams, and frees that wait for a stream."""

    def program(gpu: CachingAllocator) -> None:
        rng = random.Random(seed)
        sizes = (512, 60_000, 300_000, *(3 * MIB, 30 * MIB)[: seed % 3])
        held: list[Any] = []
        for _ in range(300):
            if rng.random() < 0.45 and held:
                ptr = held.pop(rng.randrange(len(held)))
                if rng.random() < 0.3:
                    gpu.record_stream(ptr, 2)
                gpu.free(ptr)
            else:
                held.append(gpu.malloc(rng.choice(sizes), rng.choice((0, 0, 0, 1))))
            if rng.random() < 0.02:
                gpu.synchronize()
            if rng.random() < 0.02:  # few or no blocks are left
                n_kept = rng.randrange(2)
                for ptr in held[n_kept:]:
                    gpu.free(ptr)
                del held[n_kept:]

    return program


def test_entries_and_drive_find_the_same_moments(recorded: Recorded) -> None:
    """The recordings are complete or start mid-run."""
    n_quiet = n_examined = 0
    for seed in range(12):
        recording = recorded(on_streams(seed))
        (trace,) = recording.devices
        middle = len(trace) // 3
        for first in (0, middle, middle + 1, middle + 2):
            cut = replace(recording, devices=(trimmed(trace, first, len(trace)),))
            (prepared,) = prepare(cut)
            assert entries_suffice(prepared.trace, prepared.plan)
            assert prepared.quiet == by_drive(prepared)
            assert prepared.quiet.n_examined == len(prepared.free_plan.steps)
            n_quiet += len(prepared.quiet.after)
            n_examined += prepared.quiet.n_examined
    assert n_examined / 50 < n_quiet < n_examined / 2


@pytest.mark.parametrize("kind", ["streams", "fragments", "training"])
def test_entries_suffice_for_whole_programs(kind: str) -> None:
    (prepared,) = prepare(replace(KINDS[kind](), provenance=None))
    assert entries_suffice(prepared.trace, prepared.plan)
    assert prepared.quiet == by_drive(prepared)
    assert parting_of(prepared) is None
    assert not prepared.quiet_of_proof  # no drive was needed


def in_a_pool(gpu: CachingAllocator) -> None:
    gpu.begin_allocate_to_pool(1)
    gpu.free(gpu.malloc(30 * MIB))
    gpu.end_allocate_to_pool(1)
    gpu.malloc(MIB)


@pytest.mark.parametrize(
    ("program", "conf"),
    [(in_a_pool, ""), (on_streams(1), "expandable_segments:True")],
)
def test_proof_finds_the_moments_if_entries_do_not_suffice(
    program: Program, conf: str, recorded: Recorded
) -> None:
    """The recordings have private pools or expandable segments."""
    recording = recorded(program, conf=conf)
    (proved,), (prepared,) = prepare(recording), prepare(replace(recording))
    assert not entries_suffice(prepared.trace, prepared.plan)
    alone = prepared.quiet
    assert parting_of(proved) is None
    assert proved.quiet_of_proof == [alone]
    assert proved.quiet is proved.quiet_of_proof[0]


def test_entries_do_not_suffice_for_requests_only(tmp_path: Path) -> None:
    rows = "action,id,size\nalloc,1,1000000\nalloc,2,30000000\nfree,1,\nalloc,3,5000000\nfree,2,\n"
    path = tmp_path / "requests.csv"
    path.write_text(rows)
    recording = load(path)
    (prepared,) = prepare(recording)
    assert not entries_suffice(prepared.trace, prepared.plan)
    assert prepared.quiet == Quiet(after=(0, 1), n_examined=5)
    assert replay(recording, "max_split_size_mb:32").devices[0].parting is None


@pytest.mark.parametrize("moved", [-(1 << 30), 1 << 30])
def test_entries_do_not_suffice_for_a_block_outside_all_segments(
    moved: int, recorded: Recorded
) -> None:
    """The recording is consistent, but does not show the cached memory."""

    def program(gpu: CachingAllocator) -> None:
        gpu.malloc(30 * MIB)
        gpu.free(gpu.malloc(2 * MIB))

    (prepared,) = prepare(recorded(program))
    assert entries_suffice(prepared.trace, prepared.plan)
    trace = prepared.trace
    addr = trace.addr.astype(np.int64)
    addr[trace.size == 2 * MIB] += moved
    outside = replace(prepared, trace=replace(trace, addr=addr.astype(np.uint64)))
    assert not entries_suffice(outside.trace, outside.plan)
    assert outside.quiet.n_examined == 3


def test_entries_do_not_suffice_after_a_release(recorded: Recorded) -> None:
    """The moments after the free and after the call are not quiet."""

    def program(gpu: CachingAllocator) -> None:
        gpu.free(gpu.malloc(30 * MIB))
        gpu.empty_cache()
        gpu.malloc(30 * MIB)

    (prepared,) = prepare(recorded(program))
    assert not entries_suffice(prepared.trace, prepared.plan)
    assert prepared.quiet == Quiet(after=(0, 3), n_examined=4)


def test_long_recording_is_sampled(recorded: Recorded) -> None:
    """The first half is quiet; in the second half a whole segment is cached."""
    steps = 3000

    def halves(gpu: CachingAllocator) -> None:
        for _ in range(steps // 2):
            gpu.malloc(512)
        whole = gpu.malloc(40 * MIB)
        gpu.free(whole)
        for _ in range(steps // 2 - 2):
            gpu.malloc(512)

    recording = recorded(halves)
    quiet = prepare(recording)[0].quiet
    assert quiet == prepare(recording)[0].quiet
    assert quiet.n_examined < steps
    assert list(quiet.after) == sorted(set(quiet.after))
    assert quiet.after[-1] <= steps // 2
    assert quiet.share == pytest.approx(0.5, abs=0.03)


def test_failed_proof_gives_no_moments(recorded: Recorded) -> None:
    """After the first difference from the recording, the cache may differ too."""

    def program(gpu: CachingAllocator) -> None:
        gpu.malloc(2 * MIB)
        gpu.free(gpu.malloc(2 * MIB))

    recording = recorded(program)
    (trace,) = recording.devices
    size = np.where(trace.action == Action.SEGMENT_ALLOC, 2 * trace.size, trace.size)
    (prepared,) = prepare(recording)
    damaged = replace(prepared, trace=replace(trace, size=size))
    assert parting_of(damaged) is not None
    assert not damaged.quiet_of_proof
    assert damaged.quiet.n_examined == 3


def test_moments_before_undefined_behaviour_are_used(
    written: Callable[[Any], Recording],
) -> None:
    """With a limit from the start on a small device, a split block is freed."""
    gpu = CachingAllocator("200MiB", record_history=True)
    gpu.free(gpu.malloc(40 * MIB))
    gpu.malloc(8 * MIB)
    gpu.take_history()
    gpu.malloc(2 * MIB)
    gpu.free(gpu.malloc(62 * MIB))
    gpu.empty_cache()
    hints = Hints(settings=((0, "max_split_size_mb:25"),))
    (prepared,) = prepare(written(gpu.snapshot()), hints=hints)
    small = replace(prepared, assumed_memory=100 * MIB)
    assert not small.plan.is_whole
    with pytest.raises(UndefinedBehaviorError):
        small.drive(small.recorded, small.capacity)
    assert small.quiet == Quiet(after=(0,), n_examined=3)


@pytest.mark.parametrize("conf", ["expandable_segments:True", ""])
def test_moment_is_quiet_if_empty_cache_releases_nothing(conf: str) -> None:
    """empty_cache can return whole segments or whole mapped pages."""
    gpu = CachingAllocator("16GiB", conf)
    names: list[Any] = [gpu.malloc(size) for size in (512, 30 * MIB, MIB, 70 * MIB)]
    for ptr in names:
        assert not releases(gpu) or gpu.has_cached_memory
        gpu.free(ptr)
        before = gpu.has_cached_memory
        assert releases(gpu) == before


def releases(gpu: CachingAllocator) -> bool:
    reserved = gpu.reserved_bytes
    gpu.empty_cache()
    return gpu.reserved_bytes < reserved


def test_entries_do_not_suffice_if_the_plan_has_answers_of_the_driver(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of a what-if lack the answers, so the check needs the plan that has them."""
    (prepared,) = prepare(recorded(on_streams(0)))
    answer = [(0, [(int(StepKind.ROOM), 0, 0, 64 * MIB, 0)])]
    plan = replace(prepared.plan, steps=joined(prepared.plan.steps, answer))
    answered = replace(prepared)
    vars(answered)["plan"] = plan
    assert not entries_suffice(answered.trace, plan)
    assert entries_suffice(answered.trace, answered.free_plan)
    monkeypatch.setattr(QUIET, "_from_entries", lambda *_: pytest.fail("entries do not suffice"))
    assert answered.quiet.n_examined == len(answered.free_plan.steps)
