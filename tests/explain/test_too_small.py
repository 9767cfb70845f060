"""Explanations of devices that are too small for the live memory of a recording."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from allocsim import explain_recording, load, replay, replay_edited
from allocsim.analysis.explain import DeviceExplanation
from allocsim.units import GIB, MIB, format_size

RAGGED = Path(__file__).parents[2] / "traces" / "gpt2-ragged-torch2.15.pickle.gz"
FREED_EARLIER = "empty-cache every 1 steps"


@cache
def explained(device_memory: int) -> DeviceExplanation:
    _, (device,) = explain_recording(load(RAGGED), device_memory=device_memory)
    return device


@pytest.mark.parametrize("memory", [5 * GIB, 5324 * MIB])
def test_no_edit_is_proved_on_a_device_smaller_than_the_live_memory(memory: int) -> None:
    assert replay_edited(load(RAGGED), [FREED_EARLIER], device_memory=memory).devices[0].ooms
    savings = explained(memory).savings
    assert savings
    assert not any(saving.is_proved for saving in savings)


@pytest.mark.parametrize("memory", [GIB, 5 * GIB])
def test_missing_memory_is_that_of_the_whole_recording(memory: int) -> None:
    (unlimited,) = replay(load(RAGGED), device_memory=40 * GIB).devices
    device = explained(memory)
    assert device.missing_bytes is not None
    needed = device.missing_bytes + memory
    assert unlimited.stats["requested_bytes.all.peak"] <= needed <= unlimited.peak_allocated_bytes
    for saving in device.savings:
        assert saving.is_enough == ((saving.low_bytes or 0) >= device.missing_bytes)


def test_fragmentation_before_a_moment_that_needs_too_much_is_explained_with_both() -> None:
    device = explained(5 * GIB)
    assert device.shortages[-1].cause == "fragmentation_likely"
    first = device.advice[-1][0]
    assert first.startswith("The device is too small for the whole recording: later, at entry ")
    assert device.missing_bytes is not None
    assert f"{format_size(device.missing_bytes + 5 * GIB)} are needed at once" in first
    assert "the device has 5.00 GiB for PyTorch" in first


def test_a_device_with_room_for_the_live_memory_is_not_called_too_small() -> None:
    device = explained(5530 * MIB)
    assert device.shortages
    assert device.missing_bytes is None
    assert not any("too small" in sentence for sentence in device.advice[-1])
