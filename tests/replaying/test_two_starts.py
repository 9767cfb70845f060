"""Start states of what-ifs of recordings that start mid-run."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator, load, replay
from allocsim.analysis.tune import tune
from allocsim.analysis.tune.worker import Job, run_job
from allocsim.core import RELEASES, parse_conf
from allocsim.errors import ConfigError, UndefinedBehaviorError
from allocsim.recording import Recording
from allocsim.recording.start_state import trimmed
from allocsim.replaying import (
    Prepared,
    Trial,
    Trials,
    effects_on,
    large_segments_matter,
    prepare,
    smallest_device,
)
from allocsim.report.replay import document as replay_document
from allocsim.report.replay import text as replay_text
from allocsim.report.tune import document as tuning_document
from allocsim.report.tune import text as tuning_text
from allocsim.simulation import Run, Setting, Start
from allocsim.state import PENDING
from allocsim.units import MIB

Written = Callable[[Any], Recording]
PROGRAMS = Path(__file__).parents[2] / "traces" / "recordings"
EXPANDABLE = Setting("expandable_segments:True")


def cut_in_half(name: str) -> Recording:
    """Return the second half of a recording, as from a full ring buffer."""
    recording = load(PROGRAMS / f"{name}.npz.gz")
    trace = recording.devices[0]
    half = trimmed(trace, len(trace) // 2, len(trace))
    return changed(recording, devices=(half,))


@pytest.fixture(scope="module")
def training() -> Recording:
    """Return the second half of a training run without expandable segments."""
    return cut_in_half("gpt2_training-default-torch2.15")


@pytest.fixture(scope="module")
def switched(training: Recording) -> Run:
    """Replay the second half of the training run with expandable segments."""
    return replay(training, EXPANDABLE.conf)


@pytest.fixture
def split(written: Written) -> Recording:
    """Record a request of 62 MiB after 8 MiB at the front of a segment of 40 MiB."""
    gpu = CachingAllocator("200MiB", record_history=True)
    gpu.free(gpu.malloc(40 * MIB))
    gpu.malloc(8 * MIB)
    gpu.take_history()
    gpu.free(gpu.malloc(62 * MIB))
    return written(pickle.loads(pickle.dumps(gpu.snapshot())))


def test_what_if_of_half_a_recording_has_the_peak_of_the_real_run(switched: Run) -> None:
    """Real PyTorch ran the program with expandable segments too (figures.json)."""
    figures = json.loads((PROGRAMS / "figures.json").read_text())
    (real,) = (each for each in figures if each["name"] == "gpt2_training-expandable-torch2.15")
    run = switched.devices[0]
    assert run.peak_reserved_bytes == real["stats"]["reserved_bytes.all.peak"]
    assert run.peaks is not None
    assert run.peaks.shown is Start.REALLOCATED
    assert run.peaks.anew == run.peaks.low == run.peak_reserved_bytes
    assert run.peaks.kept == run.peaks.high == 10_263_461_888


def test_recorded_settings_have_one_start(split: Recording) -> None:
    for conf in (None, ""):
        run = replay(split, conf).devices[0]
        assert run.peaks is None
        assert run.fidelity is not None
        assert run.fidelity.is_exact


def test_complete_recording_has_one_start(written: Written) -> None:
    gpu = CachingAllocator("1GiB", record_history=True)
    gpu.free(gpu.malloc(40 * MIB))
    gpu.malloc(8 * MIB)
    assert replay(written(gpu.snapshot()), EXPANDABLE.conf).devices[0].peaks is None


def test_other_rounding_keeps_the_segments(training: Recording) -> None:
    run = replay(training, "roundup_power2_divisions:8").devices[0]
    assert run.peaks is not None
    assert run.peaks.shown is Start.KEPT
    assert run.peaks.kept == run.peak_reserved_bytes


def test_other_large_segment_size_allocates_live_blocks_again(
    training: Recording, written: Written
) -> None:
    setting = Setting("large_segment_size_mb:512")
    assert prepare(training)[0].start_under(setting, None) is Start.REALLOCATED
    gpu = CachingAllocator("200MiB", record_history=True)
    gpu.malloc(40 * MIB)
    gpu.take_history()
    gpu.malloc(12 * MIB)
    no_sharing = prepare(written(gpu.snapshot()))[0]
    assert no_sharing.start_under(setting, None) is Start.KEPT
    assert no_sharing.start_under(EXPANDABLE, None) is Start.REALLOCATED


def test_large_segment_size_may_matter_for_a_later_request(written: Written) -> None:
    """3 MiB share a segment, 40 MiB have a separate segment, and 512 bytes a small segment."""
    gpu = CachingAllocator("200MiB", record_history=True)
    gpu.malloc(40 * MIB)
    gpu.take_history()
    gpu.malloc(512)
    setting = Setting("large_segment_size_mb:512")
    assert prepare(written(gpu.snapshot()))[0].start_under(setting, None) is Start.KEPT
    gpu.malloc(3 * MIB)
    assert prepare(written(gpu.snapshot()))[0].start_under(setting, None) is Start.REALLOCATED


@pytest.mark.parametrize(
    ("size", "conf", "matters"),
    [
        (1 * MIB, "large_segment_size_mb:64", False),
        (1 * MIB + 512, "large_segment_size_mb:64", True),
        (10 * MIB - 512, "large_segment_size_mb:64", True),
        (10 * MIB, "large_segment_size_mb:64", False),
        (10 * MIB, "large_segment_size_mb:64,expandable_segments:True", True),
        (1 * MIB, "large_segment_size_mb:64,expandable_segments:True", False),
    ],
)
def test_large_segments_matter_by_request_size(size: int, conf: str, matters: bool) -> None:
    """Requests of 1 to 10 MiB share a segment of this size; all large mappings use it."""
    assert large_segments_matter(parse_conf(conf, RELEASES["2.15"]), [size]) is matters


def test_max_split_size_equal_to_a_split_block(written: Written) -> None:
    """25 of 40 MiB remain; with max_split_size of 25 MiB they would not have been split off."""
    gpu = CachingAllocator("200MiB", record_history=True)
    gpu.free(gpu.malloc(40 * MIB))
    gpu.malloc(15 * MIB)
    gpu.take_history()
    gpu.free(gpu.malloc(62 * MIB))
    (prepared,) = prepare(written(gpu.snapshot()))
    setting = Setting("max_split_size_mb:25")
    assert prepared.start_under(setting, 100 * MIB) is Start.REALLOCATED
    assert prepared.start_under(Setting("max_split_size_mb:26"), 100 * MIB) is Start.KEPT


def test_max_split_size_below_a_split_block_allocates_live_blocks_again(split: Recording) -> None:
    """On a full device, the kept segments lead to undefined behaviour."""
    conf = "max_split_size_mb:25"
    (prepared,) = prepare(split)
    with pytest.raises(UndefinedBehaviorError, match="lowered below a split block"):
        prepared.drive(Setting(conf), 100 * MIB, start=Start.KEPT)
    run = replay(split, conf, device_memory="100MiB").devices[0]
    assert not run.ooms
    assert run.peaks is not None
    assert (run.peaks.shown, run.peaks.kept) == (Start.REALLOCATED, None)
    assert run.peak_reserved_bytes == run.peaks.anew == (20 + 62) * MIB
    assert "with the initial segments kept, the replay does not complete" in run.notes


def test_max_split_size_below_a_split_block_keeps_it_if_not_released(split: Recording) -> None:
    run = replay(split, "max_split_size_mb:25", device_memory="200MiB").devices[0]
    assert run.peaks is not None
    assert (run.peaks.shown, run.peaks.kept, run.peaks.anew) == (
        Start.KEPT,
        (40 + 62) * MIB,
        (20 + 62) * MIB,
    )


def test_start_depends_on_the_device_with_a_small_max_split_size(
    split: Recording, tmp_path: Path
) -> None:
    """The smallest device has 82 MiB, though 102 MiB are reserved on a large one."""
    setting = Setting("max_split_size_mb:25")
    (prepared,) = prepare(split)
    found = smallest_device(Trials(prepared), setting)
    assert found is not None
    assert found.device_memory == (20 + 62) * MIB
    assert found.unlimited.peak_reserved_bytes == (40 + 62) * MIB
    job = Job("", str(tmp_path / "snapshot.pickle"), 0, "2.15", setting, 200 * MIB)
    assert run_job(job).unrefused_device is None


def test_error_that_depends_on_the_start_is_noted(split: Recording) -> None:
    run = replay(split, "roundup_power2_divisions:8", device_memory="100MiB").devices[0]
    assert run.stopped_at is not None
    assert run.peaks is not None
    assert (run.peaks.kept, run.peaks.anew) == (None, (20 + 64) * MIB)
    note = "with the live blocks allocated again, every request succeeds, with a peak of 84.00 MiB"
    assert note in run.notes


@pytest.fixture
def of_all_sorts(written: Written) -> Recording:
    """Record a start with a private pool, two streams, a pending free and cached memory."""
    gpu = CachingAllocator("1GiB", record_history=True)
    cached = gpu.malloc(60 * MIB)
    blocks = [gpu.malloc(3 * MIB), gpu.malloc(700), gpu.malloc(30 * MIB, 64)]
    gpu.begin_allocate_to_pool(1)
    blocks.append(gpu.malloc(5 * MIB))
    gpu.end_allocate_to_pool(1)
    waits = gpu.malloc(12 * MIB)
    assert waits is not None
    gpu.record_stream(waits, 64)
    gpu.free(waits)
    gpu.free(cached)
    gpu.take_history()
    gpu.synchronize()
    blocks.append(gpu.malloc(2 * MIB))  # completes the pending free first
    for block in blocks:
        gpu.free(block)
    return written(pickle.loads(pickle.dumps(gpu.snapshot())))


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:32"])
def test_every_live_block_is_allocated_again(conf: str, of_all_sorts: Recording) -> None:
    (prepared,) = prepare(of_all_sorts)
    nothing = changed(prepared, trace=trimmed(prepared.trace, 0, 0))
    begun = nothing.drive(Setting(conf), None, start=Start.REALLOCATED).allocator
    begun.check()
    placed = [
        (segment.pool_id, segment.stream, block.requested_size, block.state == PENDING)
        for segment in begun.segments()
        for block in segment.blocks
        if block.state != "inactive"
    ]
    assert sorted(placed) == [
        ((0, 0), 0, 700, False),
        ((0, 0), 0, 3 * MIB, False),
        ((0, 0), 0, 12 * MIB, True),
        ((0, 0), 64, 30 * MIB, False),
        ((0, 1), 0, 5 * MIB, False),
    ]
    assert begun.reserved_bytes < prepared.held  # without the cached memory
    assert begun.calls.of_driver == 0
    ended = prepared.drive(Setting(conf), None, start=Start.REALLOCATED)
    ended.allocator.check()
    stats = ended.allocator.memory_stats()
    assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"] == 0


def test_start_without_live_blocks_is_kept(written: Written) -> None:
    gpu = CachingAllocator("1GiB", record_history=True)
    gpu.free(gpu.malloc(40 * MIB))
    gpu.take_history()
    gpu.free(gpu.malloc(8 * MIB))
    (prepared,) = prepare(written(gpu.snapshot()))
    assert prepared.held == 40 * MIB
    assert prepared.start_under(EXPANDABLE, None) is Start.KEPT


def test_device_too_small_for_live_blocks_is_refused(split: Recording) -> None:
    with pytest.raises(ConfigError, match=r"6\.00 MiB cannot hold the blocks in use"):
        replay(split, EXPANDABLE.conf, device_memory="6MiB")


def test_trials_give_both_peaks(split: Recording) -> None:
    (prepared,) = prepare(split)
    trials = Trials(prepared, effect=effects_on(prepared))
    tried = trials.under(EXPANDABLE, None)
    assert tried.peak_anew is not None
    assert tried.peak_kept is not None
    assert tried.peak_anew < tried.peak_kept
    assert tried.peak_range == (tried.peak_anew, tried.peak_kept)
    assert tried.peak_reserved_bytes == tried.peak_anew
    assert Trial.from_plain(tried.conf, tried.plain()) == tried
    recorded = trials.under(Setting(""), None)
    assert recorded.peak_range is None


def test_sizes_at_the_start_distinguish_settings(written: Written) -> None:
    """Only the rounding of the initial blocks differs; requested again, they take more."""
    gpu = CachingAllocator("1GiB", record_history=True)
    gpu.malloc(33 * MIB)
    gpu.take_history()
    gpu.free(gpu.malloc(16 * MIB))
    (prepared,) = prepare(written(gpu.snapshot()))
    rounding = Setting(f"{EXPANDABLE.conf},roundup_power2_divisions:2")
    effect = effects_on(prepared)
    assert effect(rounding) != effect(EXPANDABLE)
    assert (peak(prepared, EXPANDABLE), peak(prepared, rounding)) == (60 * MIB, 80 * MIB)


def peak(prepared: Prepared, setting: Setting) -> int:
    return prepared.drive(setting, None).allocator.memory_stats()["reserved_bytes.all.peak"]


def test_report_gives_both_peaks(switched: Run) -> None:
    text = " ".join(replay_text(switched, {}).split())
    assert (
        "from 7.64 GiB to 9.56 GiB: the figures are for a start with the live blocks allocated "
        "again, the other end is for one with the initial segments kept" in text
    )
    assert replay_document(switched, {})["devices"][0]["peak_reserved_range"] == {
        "start": "anew",
        "kept_bytes": 10_263_461_888,
        "anew_bytes": 8_206_155_776,
    }


def test_search_gives_both_peaks(split: Recording) -> None:
    tuning = tune(split, "200MiB", confs=[EXPANDABLE.conf])
    found = next(row for row in tuning_document(tuning)["rows"] if row["conf"])
    kept = found["parts"][0]["peak_kept"]
    assert found["peak_reserved_range_bytes"] == [found["peak_reserved_bytes"], kept]
    assert "the recording starts mid-run" in " ".join(tuning_text(tuning).split())
