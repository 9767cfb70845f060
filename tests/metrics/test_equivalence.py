"""Equivalent settings have equal trials, and inert options have no effect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from allocsim import CachingAllocator
from allocsim.analysis.tune.worker import Job, run_job
from allocsim.core import find_release, parse_conf
from allocsim.metrics.lifetimes import Sizes, sizes_of
from allocsim.recommend.settings_to_try import candidates
from allocsim.recording import load, read_snapshot
from allocsim.replaying import Trials, effect_of, effects_on, prepare, requested_of
from allocsim.simulation import Setting
from allocsim.units import GIB, MIB
from tests.tune.conftest import ragged

NEWEST = find_release("2.15")
TRACES = Path(__file__).parents[2] / "traces"


def asking_for(*sizes: int) -> Sizes:
    return Sizes(
        counts=tuple((size, 1) for size in sorted(sizes)),
        present=(),
        peak_live=sum(sizes),
        peak_middle=0,
        recorded_peak=sum(sizes),
    )


def same(one: str, other: str, *sizes: int, release: str = "2.15") -> bool:
    parts = (asking_for(*sizes).asked,)
    found = find_release(release)
    return effect_of(Setting(one), found, parts) == effect_of(Setting(other), found, parts)


def test_sizes_are_rounded_once_a_rounding_and_a_release() -> None:
    """2.1 and 2.15 round differently with one division (1.2)."""
    sizes = asking_for(100, 3 * MIB, 5 * MIB + 1)
    for release in ("2.1", "2.15"):
        for conf in ("", "roundup_power2_divisions:1", "roundup_power2_divisions:4", ""):
            config = parse_conf(conf, find_release(release))
            rounded = sizes.asked.rounded(config)
            each = [config.round_size(size) for size, _ in sizes.counts]
            assert rounded.each == np.array(each).tobytes()
            assert rounded.distinct == tuple(sorted(set(each)))
            other = parse_conf(f"{conf},max_split_size_mb:64".lstrip(","), find_release(release))
            assert sizes.asked.rounded(other) is rounded


@pytest.mark.parametrize(
    "name", ["gpt2-ragged-oom-torch2.15.pickle.gz", "counted/warm_start-torch2.15.npz.gz"]
)
def test_what_is_asked_is_the_same_with_and_without_its_peaks(name: str) -> None:
    """The second recording starts mid-run, so its live blocks may be requested again."""
    (prepared,) = prepare(load(TRACES / name))
    short, whole = requested_of(prepared), sizes_of(prepared).asked
    assert short.sizes.tolist() == whole.sizes.tolist()
    assert short.present == whole.present


def test_garbage_is_collected_at_different_thresholds_of_an_inferred_limit() -> None:
    """The program limits itself to 512 MiB, which only its garbage collections show."""
    gpu = CachingAllocator("1GiB", "garbage_collection_threshold:0.5", record_history=True)
    gpu.set_per_process_memory_fraction(0.5)
    for size in range(20, 120, 2):
        gpu.free(gpu.malloc(size * MIB))
    prepared = prepare(read_snapshot("a program", gpu.snapshot(), 1 << 20))[0].on(GIB)
    assert prepared.plan.limit == 512 * MIB
    effect, trials = effects_on(prepared), Trials(prepared)
    early, late = (Setting(f"garbage_collection_threshold:{at}") for at in (0.5, 0.9))
    one, other = (trials.under(each, GIB).num_device_free for each in (early, late))
    assert one != other
    assert effect(early) != effect(late)


def test_a_split_limit_above_every_segment_is_none() -> None:
    assert same("max_split_size_mb:64", "", 3 * MIB, 40 * MIB)
    assert not same("max_split_size_mb:40", "", 3 * MIB, 40 * MIB)
    # 39.5 MiB get a segment of 40 MiB, so a segment reaches the limit but no request does.
    assert not same("max_split_size_mb:40", "", 3 * MIB, 39 * MIB + MIB // 2)


def test_an_expandable_segment_outgrows_every_request_and_segment() -> None:
    """Free blocks of 20 MiB merge into one of 140, so a limit of 100 matters."""
    asked = [20 * MIB] * 8
    assert not same(
        "max_split_size_mb:100,expandable_segments:True", "expandable_segments:True", *asked
    )


def test_settings_with_unused_segment_sizes_are_equivalent() -> None:
    """24.5 MiB get a segment of 26 MiB: below a limit of 32, not below one of 25."""
    small, large = "max_split_size_mb:25", "large_segment_size_mb:32,max_split_size_mb:32"
    assert not same(small, large, 24 * MIB + MIB // 2)
    assert same("max_split_size_mb:32", large, 24 * MIB + MIB // 2)


def test_all_settings_are_equivalent_without_requests() -> None:
    assert same("max_split_size_mb:25", "")


def test_split_limits_with_no_size_between_them_are_one() -> None:
    assert same("max_split_size_mb:41", "max_split_size_mb:99", 40 * MIB, 100 * MIB)
    assert not same("max_split_size_mb:40", "max_split_size_mb:41", 40 * MIB, 100 * MIB)


def test_rounding_that_changes_no_request_is_none() -> None:
    assert same("roundup_power2_divisions:4", "", 4 * MIB, 5 * MIB, 512)
    assert not same("roundup_power2_divisions:4", "", 9 * MIB // 2)
    assert same("roundup_power2_divisions:1", "", 1000, 9 * MIB // 2)
    assert not same("roundup_power2_divisions:1", "", 1000, release="2.3")


def test_segment_sizes_matter_only_to_those_who_share_or_map() -> None:
    assert same("large_segment_size_mb:64", "", 512, 12 * MIB)
    assert not same("large_segment_size_mb:64", "", 3 * MIB)
    mapped = "expandable_segments:True"
    assert not same(f"{mapped},large_segment_size_mb:64", mapped, 12 * MIB)
    assert same(f"{mapped},large_segment_size_mb:64", mapped, 512)


def test_max_non_split_rounding_affects_only_oversize_requests() -> None:
    assert same("max_non_split_rounding_mb:64", "", 40 * MIB, 100 * MIB)
    split = "max_split_size_mb:30"
    # A cached segment of 100 MiB wastes 60 on the request of 40.
    assert same(f"{split},max_non_split_rounding_mb:60", split, 40 * MIB, 100 * MIB)
    assert not same(f"{split},max_non_split_rounding_mb:61", split, 40 * MIB, 100 * MIB)


def test_garbage_collection_without_a_limit_is_nothing() -> None:
    collects = "garbage_collection_threshold:0.5"
    assert same(collects, "", 3 * MIB)
    assert not same(f"{collects},per_process_memory_fraction:0.5", "", 3 * MIB)
    parts = (asking_for(3 * MIB).asked,)
    for release, is_limit in (("2.9", True), ("2.10", False)):
        found = find_release(release)
        whole = effect_of(Setting(collects, 1.0), found, parts)
        assert (whole != effect_of(Setting(""), found, parts)) is is_limit


def test_options_of_the_host_do_nothing_here() -> None:
    assert same("pinned_num_register_threads:8", "", 3 * MIB)


SPLITS = [f"max_split_size_mb:{size}" for size in range(20, 240, 7)]
WASTES = [f"max_split_size_mb:30,max_non_split_rounding_mb:{size}" for size in range(20, 200, 13)]
SEGMENTS = [f"large_segment_size_mb:{size}" for size in (12, 20, 24, 64)]
ROUNDINGS = [f"roundup_power2_divisions:{d}" for d in (1, 2, 4, 64)]


@pytest.mark.parametrize("seed", range(2))
def test_equal_effects_are_equal_outcomes(seed: int, write: Callable[..., Path]) -> None:
    """Use a small device, so that memory is released in every way."""
    path = str(write(ragged(seed, steps=6)))
    prepared = prepare(load(path), 0, "2.15")[0]
    sizes = sizes_of(prepared)
    grid = candidates(sizes, parse_conf("", NEWEST), device_memory=2 * GIB)
    confs = [*SPLITS, *WASTES, *SEGMENTS, *ROUNDINGS, "pinned_num_register_threads:8"]
    settings = [*grid, *map(Setting, confs)]
    outcomes = defaultdict(set)
    for memory in (None, sizes.peak_live + 300 * MIB):
        for setting in settings:
            effect = (memory, effect_of(setting, NEWEST, (sizes.asked,)))
            job = Job("", path, 0, "2.15", setting, memory)
            outcomes[effect].add(replace(run_job(job), conf=""))
    assert len(outcomes) < 2 * len(settings) - 40  # at least two settings were equivalent
    assert all(len(found) == 1 for found in outcomes.values())
