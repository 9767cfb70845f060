"""Devices whose driver provides host memory when the device is full."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from allocsim import CachingAllocator, replay
from allocsim.errors import ConfigError
from allocsim.recording import Recording
from allocsim.simulation import Spill
from allocsim.units import MIB

Recorded = Callable[..., Recording]


def a_step(gpu: CachingAllocator) -> None:
    """Keep 100 MiB, and allocate and free 200 MiB."""
    gpu.malloc(100 * MIB)
    big = gpu.malloc(200 * MIB)
    assert big is not None
    gpu.free(big)
    gpu.empty_cache()


def test_memory_beyond_the_device_spills_to_the_host(recorded: Recorded) -> None:
    """Host memory is in use from the second request until the cache is emptied."""
    run = replay(recorded(a_step), device_memory="256MiB", host_spill="1GiB").devices[0]
    assert not run.ooms
    assert run.fidelity is None
    second = int(run.timeline.entry[np.argmax(run.timeline.reserved > 256 * MIB)])
    assert run.spill == Spill(1024 * MIB, 44 * MIB, second, second, 0)


def test_nothing_spills_if_the_device_has_room(recorded: Recorded) -> None:
    run = replay(recorded(a_step), device_memory="512MiB", host_spill="1GiB").devices[0]
    assert run.spill == Spill(1024 * MIB, 0, None, -1, 0)


def test_request_beyond_the_lent_memory_fails(recorded: Recorded) -> None:
    run = replay(recorded(a_step), device_memory="128MiB", host_spill="64MiB").devices[0]
    assert [oom.tried_bytes for oom in run.ooms] == [200 * MIB]


def test_spill_is_none_without_lent_memory(recorded: Recorded) -> None:
    recording = recorded(a_step)
    run = replay(recording, device_memory="128MiB").devices[0]
    assert run.spill is None
    assert run.ooms


def test_device_of_unknown_size_cannot_spill(recorded: Recorded) -> None:
    with pytest.raises(ConfigError, match="whose size is not recorded; give it"):
        replay(recorded(a_step), host_spill="1GiB")
