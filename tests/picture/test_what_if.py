"""Comparison of what-if replays of one recording on one device."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim.analysis.picture import STRETCHES, WhatIf, what_if
from allocsim.errors import ConfigError
from allocsim.recording import Recording, load
from allocsim.replaying import Trials, prepare, replay_prepared
from allocsim.simulation import Run, Setting
from allocsim.workload.programs import oom

OOM = Path(__file__).parents[2] / "traces" / "gpt2-ragged-oom-torch2.15.pickle.gz"


def compared(recording: Recording, *confs: str) -> tuple[Run, tuple[WhatIf, ...]]:
    (prepared,) = prepare(recording)
    run = replay_prepared((prepared,))
    return run, what_if(Trials(prepared), run, [Setting(conf) for conf in confs])


def test_what_if_begins_with_the_baseline() -> None:
    run, (base, other) = compared(load(OOM), "expandable_segments:True")
    assert (base.trial.conf, base.trial.oom_entry) == ("", 26_059)
    assert base.reserved.high.max() == run.devices[0].peak_reserved_bytes
    assert (other.trial.conf, other.trial.oom_entry) == ("expandable_segments:True", None)
    assert other.reserved.high.max() == other.trial.peak_reserved_bytes
    assert len(base.reserved.high) == len(other.reserved.high) <= STRETCHES


def test_a_run_that_ends_early_has_a_shorter_curve() -> None:
    _, (base, other) = compared(load(OOM), "roundup_power2_divisions:2")
    assert other.trial.oom_entry == 13_714
    assert len(other.reserved.high) == -(-13_715 // other.reserved.step)
    assert len(other.reserved.high) < len(base.reserved.high)


def test_what_if_without_settings_tries_the_usual_settings() -> None:
    _, found = compared(oom())
    confs = [each.trial.conf for each in found]
    assert confs[0] == ""
    assert {"expandable_segments:True", "max_split_size_mb:128"} < set(confs)


def test_compare_settings_names_a_refused_setting() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        compared(oom(), "nonsense:1")
