"""Addresses in the upper half of 64 bits.

Addresses of an Intel GPU begin at 0xff00000000000000, as its driver prints them after a fault
(intel/torch-xpu-ops, issue 1956). The model's addresses must stay below 2**64.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from allocsim import load, replay
from allocsim.analysis.picture import picture_of
from allocsim.export import simulate
from allocsim.recording import Recording
from allocsim.units import MIB

from .test_recordings import FIRST_BASE, OURS, TRACES, assert_exact

FIRST_OF_INTEL = 0xFF00 << 48
MOVED = FIRST_OF_INTEL - FIRST_BASE
Write = Callable[[Any], Recording]


def moved(path: Path) -> Any:
    """Return a snapshot with every address moved to another range."""
    snapshot = pickle.loads(gzip.decompress(path.read_bytes()))
    for segment in snapshot["segments"]:
        segment["address"] += MOVED
        for block in segment["blocks"]:
            block["address"] += MOVED
    for entry in snapshot["device_traces"][0]:
        if entry["action"] not in ("oom", "snapshot", "user_defined"):
            entry["addr"] += MOVED
    return snapshot


@pytest.mark.parametrize("name", OURS)
def test_replay_is_exact(written: Write, name: str) -> None:
    recording = written(moved(TRACES / f"{name}.pickle.gz"))
    assert int(recording.devices[0].addr[0]) >= FIRST_OF_INTEL
    assert_exact(replay(recording), OURS[name])


WHAT_IFS = [
    pytest.param(name, conf, torch, marks=[] if number % 5 == 0 else pytest.mark.slow)
    for number, (name, conf, torch) in enumerate(
        product(OURS, ("expandable_segments:True", "max_split_size_mb:64"), ("2.4", "2.12", "2.15"))
    )
]
"""Every fifth runs always: together they have each recording, setting and release."""


@pytest.mark.parametrize(("name", "conf", "torch"), WHAT_IFS)
def test_what_if_does_not_depend_on_the_address_range(
    written: Write, name: str, conf: str, torch: str
) -> None:
    path = TRACES / f"{name}.pickle.gz"
    high = replay(written(moved(path)), conf, torch_version=torch).devices[0]
    low = replay(load(path), conf, torch_version=torch).devices[0]
    assert high.stats == low.stats
    assert high.peak_reserved_bytes == low.peak_reserved_bytes
    assert [oom.entry for oom in high.ooms] == [oom.entry for oom in low.ooms]


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_picture_does_not_depend_on_the_address_range(written: Write, conf: str) -> None:
    path = TRACES / "gpt2-side-stream-torch2.15.pickle.gz"
    high, low = picture_of(written(moved(path)), conf), picture_of(load(path), conf)
    for name in ("blocks", "segments"):
        there, here = getattr(high.lives, name), getattr(low.lives, name)
        assert (there.address - here.address == MOVED).all()
        assert (there.size == here.size).all()


def test_simulated_recording_replays_exactly(written: Write) -> None:
    path = TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz"
    made = simulate(written(moved(path)), "expandable_segments:True").recording
    assert int(made.devices[0].addr[0]) >= FIRST_OF_INTEL
    again = replay(made).devices[0].fidelity
    assert again is not None
    assert again.is_exact


def test_unlimited_device_has_address_space_for_many_expandable_segments(
    recorded: Callable[..., Recording],
) -> None:
    """Each segment reserves as much as on the largest GPU."""
    recording = recorded(lambda a: [a.malloc(12 * MIB, stream) for stream in range(60)])
    run = replay(recording, "expandable_segments:True").devices[0]
    assert run.device_memory is None
    assert run.peak_reserved_bytes == 60 * 20 * MIB
