"""Smallest device and smallest fraction of small programs with known results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim import CachingAllocator
from allocsim.analysis.risk import risk_of
from allocsim.analysis.tune.worker import Job, run_job
from allocsim.recording import Recording
from allocsim.replaying import Trials, prepare, smallest_device, smallest_fraction
from allocsim.simulation import Setting
from allocsim.units import GIB, MIB
from tests.replaying.test_threshold import HALF, collects

Recorded = Callable[..., Recording]


def trials_of(recording: Recording) -> Trials:
    return Trials(prepare(recording, torch_version="2.15")[0])


def two_loads(gpu: CachingAllocator) -> None:
    """270 MiB use a cached block of 530 MiB, so the next 530 MiB need a new segment."""
    gpu.free(gpu.malloc(530 * MIB))
    gpu.malloc(270 * MIB)
    gpu.malloc(530 * MIB)


def test_smallest_device_is_proved_from_both_sides(
    recorded: Recorded,
) -> None:
    recording = recorded(two_loads)
    found = smallest_device(trials_of(recording), Setting(""))
    assert found is not None
    assert found.device_memory == 1060 * MIB
    assert found.fails_at == 6  # the second 530: segment_alloc is entry 5
    assert found.unlimited.peak_reserved_bytes == 1060 * MIB
    split = smallest_device(trials_of(recording), Setting("max_split_size_mb:20"))
    assert split is not None
    assert split.device_memory == 800 * MIB


def test_smallest_device_is_peak_of_live_memory_if_retries_suffice(
    recorded: Recorded,
) -> None:
    def in_turns(gpu: CachingAllocator) -> None:
        gpu.free(gpu.malloc(300 * MIB))
        gpu.free(gpu.malloc(400 * MIB))

    found = smallest_device(trials_of(recorded(in_turns)), Setting(""))
    assert found is not None
    assert found.device_memory == 400 * MIB
    assert found.trial.num_alloc_retries == 1
    assert found.unlimited.peak_reserved_bytes == 700 * MIB


def test_one_failure_excludes_all_sizes_that_refuse_the_same_calls(
    recorded: Recorded,
) -> None:
    """On every size from 900 to 1,058 MiB, the second request of 530 MiB fails.

    The search tries none of these sizes, but reports the entry that fails on 1,058 MiB.
    """
    recording = recorded(two_loads)
    trials = trials_of(recording)
    failed = trials.under(Setting(""), 900 * MIB)
    assert failed.oom_entry == 6
    assert failed.refused_below == failed.needed_bytes == 1060 * MIB
    found = smallest_device(trials, Setting(""))
    assert found is not None
    assert (found.device_memory, found.fails_at) == (1060 * MIB, 6)
    assert found.replays == 1  # the unlimited one; its peak is the result
    for pages in (460, 500, 529):
        tried = Trials(trials.prepared).under(Setting(""), 2 * pages * MIB)
        assert tried.oom_entry == 6, pages


def test_failure_excludes_only_sizes_that_refuse_earlier_calls_too(
    recorded: Recorded,
) -> None:
    """The 300 MiB are refused first and need a retry; on a larger device the run may differ."""

    def retried(gpu: CachingAllocator) -> None:
        gpu.free(gpu.malloc(200 * MIB))
        gpu.malloc(300 * MIB)
        gpu.malloc(280 * MIB)

    trials = trials_of(recorded(retried))
    failed = trials.under(Setting(""), 400 * MIB)
    assert failed.needed_bytes == 580 * MIB
    assert failed.refused_below == 500 * MIB
    found = smallest_device(trials, Setting(""))
    assert found is not None
    assert found.device_memory == 580 * MIB
    assert found.trial.goes_through
    below = Trials(trials.prepared).under(Setting(""), 578 * MIB)
    assert below.oom_entry == found.fails_at


def test_search_with_expandable_segments_uses_known_trials(
    recorded: Recorded,
) -> None:
    trials = trials_of(recorded(two_loads))
    setting = Setting("expandable_segments:True")
    assert trials.under(setting, 1000 * MIB).goes_through
    found = smallest_device(trials, setting)
    assert found is not None
    assert found.device_memory == 800 * MIB
    below = Trials(trials.prepared).under(setting, 798 * MIB)
    assert below.oom_entry == found.fails_at


@pytest.mark.parametrize("conf", ["", HALF, "max_split_size_mb:20", "expandable_segments:True"])
@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.8])
def test_limit_set_by_the_program_scales_with_the_device(
    fraction: float, conf: str, recorded: Recorded, tmp_path: Path
) -> None:
    """The peak on one device is therefore not always a sufficient device size."""
    recording = recorded(collects(fraction, GIB), "1GiB", HALF)
    prepared = prepare(recording, torch_version="2.15")[0].on(GIB)
    assert prepared.plan.limit == int(fraction * GIB)
    found = smallest_device(Trials(prepared), Setting(conf))
    assert found is not None
    assert Trials(prepared).under(Setting(conf), found.device_memory).goes_through
    below = Trials(prepared).under(Setting(conf), found.device_memory - 2 * MIB)
    assert below.oom_entry == found.fails_at is not None
    path = str(tmp_path / "snapshot.pickle")
    job = Job("", path, 0, "2.15", Setting(conf), GIB, finds=True)
    assert run_job(job).unrefused_device is None


def test_given_device_memory_determines_the_fraction_of_the_limit(
    recorded: Recorded,
) -> None:
    recording = recorded(collects(0.5, GIB), "1GiB", HALF)
    (need,) = risk_of(recording, device_memory=GIB, confs=()).needs
    assert need.capacity is not None
    assert need.capacity.device_memory == 2 * 126 * MIB  # the largest request, half of the device


def test_smallest_fraction_is_in_hundredths(
    recorded: Recorded,
) -> None:
    found = smallest_fraction(
        trials_of(recorded(two_loads)), Setting("per_process_memory_fraction:0.25"), 2000 * MIB
    )
    assert found is not None
    assert found[0].conf == "per_process_memory_fraction:0.53"  # 1,060 of 2,000
    assert found[1].goes_through


def test_smallest_fraction_is_none_without_a_fraction(recorded: Recorded) -> None:
    recording = recorded(two_loads)
    assert smallest_fraction(trials_of(recording), Setting(""), 1) is None


def test_risk_reports_the_moment_with_least_headroom(recorded: Recorded) -> None:
    def program(gpu: CachingAllocator) -> None:
        gpu.malloc(100 * MIB)
        cached = gpu.malloc(300 * MIB)
        gpu.free(cached)
        gpu.malloc(200 * MIB)  # from the cached 300, leaving 100
        gpu.malloc(150 * MIB)

    risk = risk_of(recorded(program), device_memory="600MiB", confs=())
    assert [point.headroom_bytes // MIB for point in risk.points] == [500, 200, 50]
    assert risk.tightest is not None
    assert risk.tightest.returnable_bytes == 0
    assert risk.tightest.idle_bytes == 100 * MIB
    assert (risk.largest_entry, risk.largest_bytes) == (3, 300 * MIB)
    assert risk.tightest.unusable_bytes == 100 * MIB  # too small for the largest request, 300
    assert [need.capacity.device_memory // MIB for need in risk.needs if need.capacity] == [550]
    assert [span.reserved_bytes // MIB for span in risk.spans][-1] == 550
