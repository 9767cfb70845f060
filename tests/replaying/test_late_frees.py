"""Frees that complete because a full device waits for them, and whose address is reused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from allocsim import CachingAllocator, replay
from allocsim.recording import Recording
from allocsim.replaying import prepare
from allocsim.simulation import Setting
from allocsim.units import MIB

Written = Callable[[Any], Recording]


@pytest.fixture
def recording(written: Written) -> Recording:
    """Record a retry that waits for a pending free of 60 MiB.

    50 MiB are requested on a device of 100 MiB. The retry returns the segment to the
    driver, which uses its address again.
    """
    gpu = CachingAllocator("100MiB", record_history=True, address_policy="firstfit")
    first, other = gpu.malloc(60 * MIB), gpu.malloc(100)
    gpu.record_stream(first or 0, 1)
    gpu.free(first)
    gpu.free(other)
    second = gpu.malloc(50 * MIB)
    assert second == first
    gpu.free(second)
    gpu.malloc(2000)
    gpu.malloc(45 * MIB)
    return written(gpu.snapshot())


def test_replay_is_exact(recording: Recording) -> None:
    run = replay(recording).devices[0]
    assert run.fidelity is not None
    assert run.fidelity.addresses_matched == run.fidelity.allocations == 5
    assert run.fidelity.segments_matched == run.fidelity.segments


@pytest.mark.parametrize("memory", [None, 200 * MIB, 100 * MIB])
def test_free_refers_to_the_latest_block_at_its_address(
    memory: int | None, recording: Recording
) -> None:
    drive = prepare(recording, 0)[0].drive(Setting(""), memory)
    stats = drive.allocator.memory_stats()
    assert stats["requested_bytes.all.current"] == 45 * MIB + 2000
    assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"]
