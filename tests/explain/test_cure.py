"""Cures are always proved by a replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim.analysis.explain import cures_of
from allocsim.core import find_release, parse_conf
from allocsim.recommend import Case, Recommendation, WhyNot, recommend, usual_settings
from allocsim.recording import Recording, load
from allocsim.replaying import Trials, prepare, replay
from allocsim.simulation import Run

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def fragmented() -> Recording:
    """Return a recording that runs out of memory because of fragmentation."""
    return load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz")


def recommended(recording: Recording, run: Run, seen: list[str]) -> tuple[Recommendation, Case]:
    def watch(conf: str) -> None:
        seen.append(conf)

    case = Case(Trials(prepare(recording)[0], watch), run.devices[0])
    return recommend([case], case.prepared.recorded), case


def test_best_setting_succeeds_in_a_replay(fragmented: Recording) -> None:
    seen: list[str] = []
    found, case = recommended(fragmented, replay(fragmented), seen)
    (cure,) = cures_of(found, [case])
    assert seen == [trial.conf for trial in cure.trials]
    assert cure.best is not None
    assert cure.best.conf == "expandable_segments:True"
    assert cure.entries_left == 4
    again = replay(fragmented, cure.best.conf, device_memory=cure.device_memory).devices[0]
    assert not again.ooms
    assert again.peak_reserved_bytes == cure.best.peak_reserved_bytes


def test_no_setting_is_tried_if_live_memory_exceeds_the_device() -> None:
    recording, seen = load(TRACES / "gpt2-expandable-oom-torch2.15.pickle.gz"), list[str]()
    found, _ = recommended(recording, replay(recording), seen)
    assert (found.best, found.why_not, seen) == (None, WhyNot.FULL, [])


def test_an_impossible_request_is_not_searched_for(fragmented: Recording) -> None:
    seen: list[str] = []
    found, _ = recommended(fragmented, replay(fragmented, device_memory="100MiB"), seen)
    assert (found.best, found.why_not, seen) == (None, WhyNot.IMPOSSIBLE, [])


def confs_to_try(conf: str, torch_version: str) -> list[str]:
    recorded = parse_conf(conf, find_release(torch_version))
    return [setting.conf for setting in usual_settings(recorded)]


def test_settings_keep_what_does_not_cut_memory() -> None:
    conf = "max_split_size_mb:128,per_process_memory_fraction:0.5"
    confs = confs_to_try(conf, "2.15")
    assert "per_process_memory_fraction:0.5" in confs
    assert "expandable_segments:True,per_process_memory_fraction:0.5" in confs
    assert all(conf.endswith("per_process_memory_fraction:0.5") for conf in confs)
    assert not any("max_split_size_mb:128" in conf for conf in confs)


def test_settings_are_those_of_the_release() -> None:
    assert any("large_segment" in conf for conf in confs_to_try("", "2.15"))
    assert not any("large_segment" in conf for conf in confs_to_try("", "2.5"))
    assert "" not in confs_to_try("", "2.5")
