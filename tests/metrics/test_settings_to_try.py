"""Candidate settings: all options of a release, no unsafe ones, values from the sizes."""

from __future__ import annotations

import pytest

from allocsim.core import RELEASES, find_release, parse_conf
from allocsim.metrics.lifetimes import Sizes
from allocsim.recommend.settings_to_try import candidates
from allocsim.simulation import Setting
from allocsim.units import GIB, KIB, MIB

SIZES = Sizes(
    counts=(
        (4 * KIB, 900),
        (3 * MIB, 40),
        (33 * MIB, 12),
        (100 * MIB, 30),
        (270 * MIB, 3),
        (530 * MIB, 2),
    ),
    present=(),
    peak_live=2 * GIB,
    peak_middle=120 * MIB,
    recorded_peak=4 * GIB,
)


def tried(release: str, recorded: str = "", **options: bool) -> list[Setting]:
    config = parse_conf(recorded, find_release(release))
    return list(candidates(SIZES, config, device_memory=24 * GIB, **options))


def keys(setting: Setting) -> set[str]:
    bare = setting.conf.split("[", maxsplit=1)[0] + setting.conf.rpartition("]")[2]
    return {part.partition(":")[0] for part in bare.split(",") if part}


@pytest.mark.parametrize("release", RELEASES)
def test_candidates_are_accepted_by_their_release(release: str) -> None:
    for setting in tried(release):
        parse_conf(setting.conf, find_release(release))


@pytest.mark.parametrize("release", RELEASES)
def test_candidates_have_no_unsafe_pair_of_options(release: str) -> None:
    for setting in tried(release):
        config = setting.config(find_release(release))
        assert not (config.expandable_segments and "max_split_size_mb" in setting.conf)
        if config.release.one_division_keeps_size:
            assert 1 not in config.roundup_power2_divisions


@pytest.mark.parametrize("release", RELEASES)
def test_a_garbage_collection_threshold_comes_with_a_fraction(release: str) -> None:
    collecting = [s for s in tried(release) if "garbage_collection_threshold" in s.conf]
    assert collecting
    for setting in collecting:
        assert setting.fraction(find_release(release)) is not None


def test_each_option_that_decides_how_memory_is_cut_is_tried_in_the_newest_release() -> None:
    seen = set().union(*(keys(setting) for setting in tried("2.15")))
    assert seen == {
        "max_split_size_mb",
        "max_non_split_rounding_mb",
        "garbage_collection_threshold",
        "roundup_power2_divisions",
        "expandable_segments",
        "large_segment_size_mb",
        "per_process_memory_fraction",
    }


def test_older_releases_have_fewer_and_set_the_fraction_by_a_call() -> None:
    seen = set().union(*(keys(setting) for setting in tried("2.5")))
    assert seen == {
        "max_split_size_mb",
        "garbage_collection_threshold",
        "roundup_power2_divisions",
        "expandable_segments",
    }
    assert any(setting.call_fraction is not None for setting in tried("2.5"))
    assert all(setting.call_fraction is None for setting in tried("2.15"))


def test_candidates_have_both_forms_of_rounding() -> None:
    confs = [setting.conf for setting in tried("2.15")]
    assert "roundup_power2_divisions:4" in confs
    assert any(conf.startswith("roundup_power2_divisions:[") for conf in confs)


@pytest.mark.parametrize("release", ["2.4", "2.9", "2.10", "2.15"])
def test_division_list_with_equal_last_intervals_is_written_with_an_open_end(release: str) -> None:
    lists = [s for s in tried(release) if ":[" in s.conf and ">" in s.conf]
    assert lists
    for setting in lists:
        divisions = setting.config(find_release(release)).roundup_power2_divisions
        assert divisions[0] == 0
        assert divisions[-1] in (4, 8)


def test_candidate_split_limits_come_from_the_request_sizes() -> None:
    splits = {
        setting.config(find_release("2.15")).max_split_size // MIB
        for setting in tried("2.15")
        if "max_split_size_mb" in setting.conf
    }
    assert splits == {20, 34, 101, 271, 530}


def test_segments_come_from_what_lives_at_once_and_keep_to_whole_pages() -> None:
    sizes = [
        setting.config(find_release("2.15")).large_segment_size // MIB
        for setting in tried("2.15")
        if keys(setting) == {"large_segment_size_mb"}
    ]
    assert 120 in sizes  # the whole peak of 120 MiB in one segment
    assert 60 in sizes
    assert all(size > 10 and size % 2 == 0 for size in sizes)


def test_expandable_segments_can_be_forbidden() -> None:
    assert not any("expandable" in setting.conf for setting in tried("2.15", expandable=False))


def test_candidates_keep_options_without_effect_on_placement() -> None:
    kept = "pinned_num_register_threads:8"
    for setting in tried("2.15", f"{kept},max_split_size_mb:64"):
        assert setting.conf.endswith(kept)


def test_without_a_device_there_is_no_fraction_to_try() -> None:
    config = parse_conf("", find_release("2.15"))
    assert not [s for s in candidates(SIZES, config) if "fraction" in s.conf]


def test_candidates_without_requests_are_few() -> None:
    none = Sizes(counts=(), present=(), peak_live=0, peak_middle=0, recorded_peak=0)
    found = candidates(none, parse_conf("", find_release("2.15")))
    assert Setting("") in found
    assert not [s for s in found if "max_split" in s.conf or "large_segment" in s.conf]
