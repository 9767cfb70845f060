"""A cure is proved by a replay, and nothing else is called one."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim.core import find_release, parse_conf
from allocsim.engine import Trials, prepare, replay
from allocsim.measures import usual_settings
from allocsim.questions.explain import find_cure, is_worth_a_search
from allocsim.trace import Recording, load

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def fragmented() -> Recording:
    """A recording that ends out of memory by fragmentation."""
    return load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz")


def test_the_best_setting_goes_through_when_replayed(fragmented: Recording) -> None:
    run = replay(fragmented)
    device = run.devices[0]
    assert is_worth_a_search(device)
    seen: list[str] = []

    def watch(conf: str) -> None:
        seen.append(conf)

    trials = Trials(prepare(fragmented)[0], watch)
    cure = find_cure(trials, trials.prepared.recorded, device)
    assert seen == [trial.conf for trial in cure.trials]
    assert cure.best is not None
    assert cure.best.conf == "expandable_segments:True"
    assert cure.entries_left == 4
    again = replay(fragmented, cure.best.conf, device_memory=cure.device_memory).devices[0]
    assert not again.ooms
    assert again.peak_reserved_bytes == cure.best.peak_reserved_bytes


def test_a_full_device_has_no_cure() -> None:
    recording = load(TRACES / "gpt2-expandable-oom-torch2.15.pickle.gz")
    run = replay(recording)
    trials = Trials(prepare(recording)[0])
    cure = find_cure(trials, trials.prepared.recorded, run.devices[0])
    assert cure.best is None
    assert all(not trial.goes_through for trial in cure.trials)


def test_an_impossible_request_is_not_searched_for(fragmented: Recording) -> None:
    run = replay(fragmented, device_memory="100MiB")
    assert not is_worth_a_search(run.devices[0])


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
