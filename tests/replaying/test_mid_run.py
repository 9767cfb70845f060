"""Recordings that start mid-run."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator, load, replay
from allocsim.recording import Recording
from allocsim.recording.start_state import trimmed
from allocsim.replaying import prepare
from allocsim.simulation import Setting
from allocsim.units import KIB, MIB
from allocsim.workload import fragments

Written = Callable[[Any], Recording]
OOM = Path(__file__).parents[2] / "traces" / "gpt2-expandable-oom-torch2.15.pickle.gz"


@pytest.fixture
def recording(written: Written) -> Recording:
    """Record seven entries: two of three blocks are from before the entries, and all are freed."""
    gpu = CachingAllocator("1GiB", "expandable_segments:True", record_history=True)
    first, second, third = (gpu.malloc(20 * MIB) for _ in range(3))
    gpu.free(second)
    gpu.take_history()  # overwritten in the ring buffer
    fourth = gpu.malloc(20 * MIB)
    for block in (first, fourth, third):
        gpu.free(block)
    return written(pickle.loads(pickle.dumps(gpu.snapshot())))


@pytest.mark.parametrize("conf", [None, "", "expandable_segments:True", "max_split_size_mb:32"])
@pytest.mark.parametrize("memory", [None, "1GiB", "100MiB"])
def test_replay_frees_old_and_new_blocks(
    conf: str | None, memory: str | None, recording: Recording
) -> None:
    run = replay(recording, conf, device_memory=memory, check_every=1).devices[0]
    assert not run.ooms
    assert run.stats["allocated_bytes.all.current"] == 0


def test_drive_under_other_settings_frees_all_blocks(recording: Recording) -> None:
    prepared = prepare(recording, 0)[0]
    for conf in ("", "expandable_segments:True", "roundup_power2_divisions:4"):
        drive = prepared.drive(Setting(conf), 1 << 30)
        drive.allocator.check()
        assert drive.allocator.memory_stats()["allocated_bytes.all.current"] == 0


@pytest.mark.parametrize("conf", [None, "", "max_split_size_mb:64"])
@pytest.mark.parametrize("entries", [200, 3_000, pytest.param(12_000, marks=pytest.mark.slow)])
def test_replay_of_a_run_cut_anywhere(conf: str | None, entries: int) -> None:
    recording = load(OOM)
    trace = recording.device(0)
    part = changed(recording, devices=(trimmed(trace, len(trace) - entries, len(trace)),))
    run = replay(part, conf, device_memory=None if conf is None else "24GiB", check_every=200)
    fidelity = run.devices[0].fidelity
    assert (fidelity is not None and fidelity.first_mismatch is None) == (conf is None)


def test_block_from_before_the_recording_is_larger_if_a_request_did_not_fit_behind_it(
    written: Written,
) -> None:
    """A request of 5.5 MiB got a free block of 6 MiB, and 8 MiB behind it were free.

    The recorded request of 8.25 MiB did not fit there and took the 16 MiB elsewhere.
    """
    gpu = CachingAllocator("1GiB", record_history=True)
    first, second, _, large = (gpu.malloc(size * MIB) for size in (6, 8, 6, 16))
    gpu.free(first)
    reused = gpu.malloc(5 * MIB + 512 * KIB)
    assert reused is not None and reused == first
    gpu.free(second)
    gpu.free(large)
    gpu.take_history()
    gpu.free(gpu.malloc(8 * MIB + 256 * KIB))
    gpu.free(reused)
    recording = written(pickle.loads(pickle.dumps(gpu.snapshot())))
    (prepared,) = prepare(recording)
    sizes = {block.address: block.size for each in prepared.start for block in each.blocks}
    assert 5.75 * MIB < sizes[reused] <= 6 * MIB
    assert replay(recording).devices[0].parting is None


@pytest.mark.parametrize("share", [25, 50])
def test_replay_of_a_random_program_is_exact_after_a_cut(share: int) -> None:
    recording = fragments(block_size="5MiB", life=5, seed=1)
    trace = recording.device(0)
    part = changed(recording, devices=(trimmed(trace, len(trace) * share // 100, len(trace)),))
    run = replay(part).devices[0]
    assert run.parting is None
    assert run.fidelity is not None and run.fidelity.is_exact
