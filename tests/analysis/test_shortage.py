"""The cause of an out-of-memory error, by its figures."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from allocsim.analysis import shortages_of
from allocsim.engine import Run, replay
from allocsim.trace import load
from allocsim.units import GIB, MIB

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def run() -> Run:
    """A recorded error: 694 MiB tried, 462 MiB idle, 396 MiB free."""
    return replay(load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz"))


def cause_of(run: Run, **changes: object) -> str:
    """The cause if the error were another."""
    device = run.devices[0]
    oom = dataclasses.replace(device.ooms[0], **changes)  # type: ignore[arg-type]
    return shortages_of(run, dataclasses.replace(device, ooms=(oom,)))[0].cause


def test_the_figures_are_those_of_pytorch_s_text(run: Run) -> None:
    (shortage,) = shortages_of(run, run.devices[0])
    assert shortage.cause == "fragmentation_likely"
    assert shortage.tried_bytes == 694 * MIB
    assert shortage.free_bytes == 396 * MIB
    assert round(shortage.idle_bytes / MIB, 2) == 462.32
    assert shortage.within_reach_bytes == shortage.idle_bytes + 396 * MIB


def test_causes_in_order(run: Run) -> None:
    assert cause_of(run, rounded_bytes=6 * GIB) == "impossible"
    assert cause_of(run, message="of which 1 is free. 3.00 GiB allowed; ") == "fraction_limit"
    assert cause_of(run, rounded_bytes=MIB, tried_bytes=20 * MIB) == "free_above_request"
    assert cause_of(run, rounded_bytes=460 * MIB, tried_bytes=460 * MIB) == "fragmentation"
    assert cause_of(run, rounded_bytes=900 * MIB, tried_bytes=900 * MIB) == "full"


def test_unknown_memory_proves_little(run: Run) -> None:
    unknown = dataclasses.replace(run, device_memory=None)
    assert cause_of(unknown) == "no_figures"
    assert cause_of(unknown, rounded_bytes=400 * MIB) == "fragmentation"


def test_an_error_of_the_replay_s_own() -> None:
    recording = load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz")
    run = replay(recording, device_memory="4GiB")
    device = run.devices[0]
    (shortage,) = shortages_of(run, device)
    assert device.stopped_at == shortage.oom.entry
    assert shortage.free_bytes is not None
    assert shortage.reserved_bytes + shortage.free_bytes == 4 * GIB
    assert shortage.reserved_bytes == device.stats["reserved_bytes.all.current"]
