"""Explanation of a recording's error, checked against a longer run of the program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allocsim.analysis.explain import DeviceExplanation, explain_recording
from allocsim.recording import Recording, load
from allocsim.replaying import Trials, prepare, replay, smallest_device
from allocsim.simulation import Setting
from allocsim.units import MIB

TRACES = Path(__file__).parents[2] / "traces"
LONGER = TRACES / "gpt2-ragged-torch2.15.pickle.gz"


@pytest.fixture(scope="module")
def recording() -> Recording:
    """Load the ragged run that runs out of memory on 5,600 MiB."""
    return load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz")


@pytest.fixture(scope="module")
def ragged(recording: Recording) -> DeviceExplanation:
    """Return the explanation of the ragged run."""
    _, (device,) = explain_recording(recording)
    return device


def what_if(conf: str) -> dict[str, Any]:
    """Results of real PyTorch for the longer run on a device of 24,000 MiB."""
    runs: list[dict[str, Any]] = json.loads((TRACES / "gpt2-ragged-what-if.json").read_text())[
        "runs"
    ]
    return next(r for r in runs if (r["conf"], r["device_memory"]) == (conf, 24_000 * MIB))


def test_the_kinds_of_the_ragged_run_add_up(ragged: DeviceExplanation) -> None:
    (shortage,) = ragged.shortages
    assert shortage.findings is not None
    kinds = shortage.findings.kinds
    assert sum(kinds.values()) == 5600 * MIB
    assert kinds["free"] == 396 * MIB
    assert kinds["live"] + kinds["slack"] == shortage.figures.allocated_bytes
    idle = kinds["interleaved"] + kinds["other_size_pool"]
    assert idle == shortage.figures.idle_bytes
    assert round(idle / MIB, 2) == 462.32
    assert shortage.findings.largest_request_bytes == 396 * MIB


@pytest.mark.slow
def test_remedies_agree_with_replays(ragged: DeviceExplanation, recording: Recording) -> None:
    settings = [remedy for remedy in ragged.remedies if remedy.kind == "conf"]
    assert settings[0].conf == "expandable_segments:True"
    assert "roundup_power2_divisions:8" not in [remedy.conf for remedy in settings]
    for remedy in ragged.remedies:
        again = replay(recording, remedy.conf, device_memory=remedy.device_memory).devices[0]
        assert again.ooms == ()
        assert again.peak_reserved_bytes == remedy.trial.peak_reserved_bytes
        if remedy.kind == "device_memory":
            less = replay(recording, remedy.conf, device_memory=remedy.device_memory - 2 * MIB)
            assert less.devices[0].ooms[0].entry == remedy.smaller_fails_at


def test_explanation_says_that_the_recording_ends_at_the_error(ragged: DeviceExplanation) -> None:
    assert ragged.entries_left == 4


@pytest.mark.slow
def test_recommended_sizes_also_suit_the_longer_run(ragged: DeviceExplanation) -> None:
    longer = load(LONGER)
    for remedy in ragged.remedies:
        if remedy.kind == "device_memory":
            run = replay(longer, remedy.conf, device_memory=remedy.device_memory)
            assert run.devices[0].ooms == ()


def test_without_a_limit_the_longer_run_likes_more(ragged: DeviceExplanation) -> None:
    # The recording of the error proves 5,844 MiB; the longer run really reached it.
    really = what_if("expandable_segments:True")["peak_reserved_bytes"]
    assert really == 5850 * MIB
    longer = replay(load(LONGER), "expandable_segments:True", device_memory="24000MiB").devices[0]
    assert longer.peak_reserved_bytes == really
    best = next(remedy for remedy in ragged.remedies if remedy.kind == "conf")
    assert best.trial.peak_reserved_bytes < really


def test_no_setting_is_recommended_for_a_full_device() -> None:
    _, (device,) = explain_recording(load(TRACES / "gpt2-expandable-oom-torch2.15.pickle.gz"))
    (shortage,) = device.shortages
    assert shortage.cause == "full"
    assert shortage.figures.free_bytes == 394 * MIB
    assert round((shortage.figures.idle_bytes or 0) / MIB) == 92
    assert [remedy.kind for remedy in device.remedies] == ["device_memory"]
    assert device.advice[0][0].startswith("No allocator setting can help")


def test_explain_finds_no_error_in_a_run_that_fits() -> None:
    _, (device,) = explain_recording(load(LONGER))
    assert (device.shortages, device.remedies, device.advice) == ((), (), ())


def test_the_smallest_device_of_a_setting_that_is_refused_is_none(recording: Recording) -> None:
    assert smallest_device(Trials(prepare(recording)[0]), Setting("nonsense:1")) is None
