"""Smallest device of a setting, proved from both sides, or by the peak where that suffices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim import CachingAllocator
from allocsim.analysis.tune.worker import Job, Tricks, run_job
from allocsim.replaying import Trial
from allocsim.replaying.capacity import Smallest, find_smallest
from allocsim.simulation import Setting
from allocsim.units import MIB
from tests.tune.conftest import ragged

Write = Callable[..., Path]


def outcome(path: Path, conf: str = "", memory: int | None = None, **asked: object) -> Trial:
    return run_job(Job("", str(path), 0, "2.15", Setting(conf), memory, **asked))  # type: ignore[arg-type]


def two_loads(gpu: CachingAllocator) -> None:
    """Place 270 MiB in a cached block of 530, so that the next 530 need another segment."""
    gpu.free(gpu.malloc(530 * MIB))
    gpu.malloc(270 * MIB)
    gpu.malloc(530 * MIB)


def load_twice(gpu: CachingAllocator) -> None:
    """Request 540 MiB after 530 are cached, which a tight device must release first."""
    gpu.free(gpu.malloc(530 * MIB))
    gpu.malloc(540 * MIB)


def test_a_smaller_device_may_do_with_a_retry(write: Write) -> None:
    path = write(load_twice)
    found = outcome(path, finds=True)
    assert found.unrefused_device == 1070 * MIB
    assert found.min_device_memory == 540 * MIB
    assert found.at_min == (1, 2, 1)


def test_a_block_in_use_pins_its_segment(write: Write) -> None:
    found = outcome(write(two_loads), finds=True)
    assert found.unrefused_device == found.min_device_memory == 1060 * MIB
    assert found.fails_at == 6


@pytest.mark.parametrize("conf", ["", "max_split_size_mb:64", "roundup_power2_divisions:4"])
@pytest.mark.parametrize("seed", range(3))
def test_smallest_device_from_the_peak_equals_that_from_replays(
    seed: int, conf: str, write: Write
) -> None:
    path = write(ragged(seed, steps=5))
    by_peak, looked_for = outcome(path, conf), outcome(path, conf, tricks=Tricks(from_peak=False))
    assert by_peak.unrefused_device == looked_for.unrefused_device is not None
    assert by_peak.entries < looked_for.entries
    size = by_peak.unrefused_device
    assert size is not None
    tight = outcome(path, conf, size)
    assert (tight.num_alloc_retries, tight.num_ooms) == (0, 0)
    smaller = outcome(path, conf, size - 2 * MIB)
    assert smaller.refused


@pytest.mark.parametrize("seed", range(3))
def test_smallest_device_for_expandable_segments_needs_replays(seed: int, write: Write) -> None:
    path, conf = write(ragged(seed, steps=5)), "expandable_segments:True"
    assert outcome(path, conf).unrefused_device is None
    confirmed = outcome(path, conf, confirms=True).unrefused_device
    assert (
        confirmed
        == outcome(path, conf, tricks=Tricks(from_peak=False)).unrefused_device
        is not None
    )


def test_smallest_device_with_a_memory_fraction_needs_replays(write: Write) -> None:
    found = outcome(write(ragged(0)), "per_process_memory_fraction:0.5", 8192 * MIB)
    assert found.num_ooms == 0
    assert found.unrefused_device is None


def test_smallest_device_includes_the_context() -> None:
    seen = []

    def trial(pages: int) -> Trial:
        seen.append(pages)
        return Trial(oom_entry=None if pages >= 37 else 7)

    found = find_smallest(trial, lambda tried: tried.oom_entry is None, least=10, first=64)
    assert found == Smallest(37, Trial(), 7)
    assert seen[:2] == [64, 63]
    assert len(seen) <= 8


def test_the_search_goes_up_where_the_peak_was_cut_short() -> None:
    found = find_smallest(
        lambda pages: Trial(oom_entry=None if pages >= 300 else 1),
        lambda tried: tried.oom_entry is None,
        least=10,
        first=20,
    )
    assert found is not None
    assert found.steps == 300


def test_setting_that_fails_everywhere_has_no_smallest_device() -> None:
    assert find_smallest(lambda _: None, lambda _: True, least=1, first=1) is None
