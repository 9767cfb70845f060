"""Limit inferred from garbage collections (semantics 1.9)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim import CachingAllocator, OutOfMemoryError, load, replay
from allocsim.inference.evidence import NO_LIMIT, Threshold
from allocsim.recording import Recording
from allocsim.replaying import prepare
from allocsim.units import GIB, MIB
from benchmarks.guesses import FAMILIES, write

Recorded = Callable[..., Recording]
Program = Callable[[CachingAllocator], None]

HALF = "garbage_collection_threshold:0.5"


def collects(fraction: float, memory: int) -> Program:
    """Cache blocks of growing size, under a limit that a call sets."""

    def program(gpu: CachingAllocator) -> None:
        gpu.set_per_process_memory_fraction(fraction)
        for size in range(20, memory // 8 // MIB, 2):
            gpu.free(gpu.malloc(size * MIB))

    return program


def test_round_fractions_of_the_device_come_first() -> None:
    """The limit is 500 to 599 bytes, so 55 % of 1,000 is chosen."""
    threshold = Threshold(share=0.5, least_limit=100, memory=1000)
    threshold.low, threshold.high = 250, 300
    assert threshold.choose_limit()
    assert threshold.limit == 550
    assert threshold.in_force == 550
    assert not threshold.choose_limit()  # it is within the bounds


def test_limit_without_a_device_is_the_middle_of_the_range() -> None:
    threshold = Threshold(share=0.5, least_limit=100, memory=None)
    threshold.low, threshold.high = 250, 300
    assert threshold.choose_limit()
    assert threshold.limit == 550
    threshold.low = 280
    assert threshold.choose_limit()
    assert threshold.limit == 580


def test_limit_is_between_reserved_and_refused_memory() -> None:
    threshold = Threshold(share=0.5, least_limit=700, memory=1000)
    assert threshold.low == 350
    threshold.most_limit = 720
    assert threshold.choose_limit()
    assert threshold.limit is not None
    assert 700 <= threshold.limit < 720


def test_no_limit_without_a_collection() -> None:
    threshold = Threshold(share=0.5, least_limit=100, memory=None)
    assert not threshold.choose_limit()
    assert threshold.limit is None
    assert threshold.high == NO_LIMIT


@pytest.mark.parametrize("fraction", [0.5, 0.8])
def test_fraction_is_found_on_a_known_device(fraction: float, recorded: Recorded) -> None:
    """The recording does not contain the fraction, without which the option has no effect."""
    recording = recorded(collects(fraction, GIB), "1GiB", HALF)
    (run,) = replay(recording, device_memory=GIB).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact
    prepared = prepare(recording)[0].on(GIB)
    assert prepared.plan.limit == int(fraction * GIB)
    assert prepared.plan.n_empty_cache == 0
    note = f"({100 * fraction:.3g} % of the device)"
    assert any(
        text.startswith("garbage was collected: the program seems to have set a limit of ")
        and text.endswith(note)
        for text in run.notes
    )


def test_limit_on_an_unknown_device_explains_all_collections(recorded: Recorded) -> None:
    recording = recorded(collects(0.8, GIB), "1GiB", HALF)
    (run,) = replay(recording).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact
    limit = prepare(recording)[0].plan.limit
    assert limit is not None
    assert limit == pytest.approx(0.8 * GIB, rel=0.1)
    assert any("seems to have set a limit of about" in note for note in run.notes)


def test_limit_of_nearly_the_whole_device_is_found(tmp_path: Path) -> None:
    """The search starts with a limit one byte below the device, and keeps it here."""
    path = tmp_path / "program.pickle"
    write(FAMILIES["collected"](random.Random("collected 20227")), "2.15", path)
    prepared = prepare(load(path))[0].on(512 * MIB)
    assert prepared.plan.limit == 512 * MIB - 1
    (run,) = replay(load(path), device_memory=512 * MIB).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact


def test_no_limit_is_inferred_without_the_option(recorded: Recorded) -> None:
    plan = prepare(recorded(collects(0.8, GIB), "1GiB"))[0].plan
    assert plan.limit is None


def test_error_with_room_on_the_device_shows_a_limit(recorded: Recorded) -> None:
    def program(gpu: CachingAllocator) -> None:
        gpu.set_per_process_memory_fraction(0.8)
        gpu.malloc(300 * MIB)
        with pytest.raises(OutOfMemoryError):
            gpu.malloc(120 * MIB)
        gpu.malloc(100 * MIB)

    recording = recorded(program, "512MiB", HALF)
    (run,) = replay(recording).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact
    assert (
        "the device had room for a failed request: the program seems to have set a limit of "
        "409.60 MiB (80 % of the device)"
    ) in run.notes


def test_what_if_scales_the_limit_with_the_device(recorded: Recorded) -> None:
    """The program makes its call under every setting; a limit in the setting replaces it."""
    prepared = prepare(recorded(collects(0.5, GIB), "1GiB", HALF))[0].on(GIB)
    setting = prepared.recorded
    assert prepared.limit_for(setting, GIB, prepared.plan) == GIB // 2
    assert prepared.limit_for(setting, 2 * GIB, prepared.plan) == GIB
    own = type(setting)(f"{HALF},per_process_memory_fraction:0.3")
    assert prepared.limit_for(own, GIB, prepared.plan) is None
