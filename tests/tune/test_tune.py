"""Whole searches: best settings, several recordings, and shortcuts that do not change rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from allocsim import CachingAllocator, load, tune
from allocsim.analysis.risk import risk_of
from allocsim.analysis.tune import EXHAUSTIVE, Tricks, Tuning
from allocsim.errors import ConfigError, RecordingError
from allocsim.recommend import Costs
from allocsim.recording import Frame, FrameTable
from allocsim.simulation import Setting
from allocsim.units import GIB, MIB
from tests.recordings import phantom_recordings
from tests.tune.conftest import ragged

Write = Callable[..., Path]
TRACES = Path(__file__).parents[2] / "traces"
RECORDINGS = [
    path
    for path in phantom_recordings()
    if path.stat().st_size < 10_000_000 and not path.name.startswith("qwen2")
]
"""Recordings except the six largest, for which a search without shortcuts takes an hour."""


def stranding(gpu: CachingAllocator) -> None:
    """Record weights of 530 and 270 MiB in turn; each 270 makes a rest of 530 unusable."""
    for _ in range(3):
        gpu.free(gpu.malloc(530 * MIB))
        gpu.malloc(270 * MIB)
    gpu.malloc(530 * MIB)


def plain(gpu: CachingAllocator) -> None:
    """Record blocks that all live to the end, so that nothing is cached or can be saved."""
    for _ in range(20):
        gpu.malloc(64 * MIB)


def thrifty(tuning: Tuning) -> tuple[object, ...]:
    """Return the result of a search."""
    best = tuning.best
    return (
        None if best is None else (best.setting, best.parts[0].peak_reserved_bytes, best.point),
        [(row.setting, row.point) for row in tuning.front],
        tuning.helps,
        tuning.reason,
    )


# -- answers -----------------------------------------------------------------------------


def test_best_setting_is_proved_by_a_replay(write: Write) -> None:
    tuning = tune(write(stranding), "4GiB")
    assert tuning.baseline.peak_reserved_bytes == 4 * 530 * MIB
    assert tuning.best is not None
    assert tuning.helps
    assert tuning.best.peak_reserved_bytes < tuning.baseline.peak_reserved_bytes
    again = tune(write(stranding), "4GiB", confs=[tuning.best.conf])
    assert again.best is not None
    assert again.best.point == tuning.best.point


def test_tune_without_a_better_setting_gives_the_reason(write: Write) -> None:
    tuning = tune(write(plain), "4GiB")
    assert not tuning.helps
    assert "only 0.0% of the peak is not live memory" in tuning.reason


def test_no_setting_survives_if_live_memory_exceeds_the_device(write: Write) -> None:
    tuning = tune(write(plain), "1GiB")
    assert tuning.best is None
    assert tuning.reason == "1.25 GiB live at once, and the device has 1024.00 MiB"


def test_setting_that_avoids_an_error_on_another_device_helps(write: Write) -> None:
    tuning = tune(write(stranding), "1400MiB")
    assert tuning.baseline.num_ooms == 1
    assert tuning.best is not None
    assert tuning.reason.startswith("under the recorded settings the run fails")


def test_expandable_segments_can_be_left_out(write: Write) -> None:
    tuning = tune(write(stranding), "4GiB", expandable=False)
    assert not any("expandable" in row.conf for row in tuning.rows)
    assert tuning.helps


def test_search_skips_options_that_the_build_does_not_read(write: Write) -> None:
    """XPU's build has no max_split_size_mb, so trying it would be meaningless."""
    recording = load(write(stranding))
    frames = FrameTable((Frame("", "c10::xpu::XPUCachingAllocator::malloc(unsigned long)", 0),))
    traces = [replace(trace, frame_table=frames) for trace in recording.devices]
    on_xpu = replace(recording, devices=tuple(traces), frame_table=frames)
    tuning = tune(on_xpu, "4GiB")
    assert {row.conf.split(":")[0] for row in tuning.rows} <= {
        "",
        "expandable_segments",
        "per_process_memory_fraction",
    }
    assert len(tune(recording, "4GiB").rows) > len(tuning.rows) > 1
    needs = {need.conf for need in risk_of(on_xpu).needs}
    assert needs == {"", "expandable_segments:True"}


def test_given_settings_are_replayed_to_the_end_and_duplicates_marked(write: Write) -> None:
    confs = ["max_split_size_mb:4000", "max_non_split_rounding_mb:64", "expandable_segments:True"]
    tuning = tune(write(stranding), "4GiB", confs=confs)
    rows = {row.conf: row for row in tuning.rows}
    assert set(rows) == {"", *confs}
    assert all(row.is_whole for row in rows.values())
    assert rows["max_split_size_mb:4000"].same_as == Setting("")
    assert rows["max_split_size_mb:4000"].point == rows[""].point
    assert rows["expandable_segments:True"].same_as is None
    assert len(tuning.duplicates) == 2


def test_thrashing_setting_is_marked_and_not_recommended(write: Write) -> None:
    def sawing(gpu: CachingAllocator) -> None:
        """Request every size alone, repeatedly; a tight limit releases each for the next."""
        for _ in range(20):
            for size in (100, 200, 300, 400):
                gpu.free(gpu.malloc(size * MIB))

    conf = "per_process_memory_fraction:0.1"
    tuning = tune(write(sawing), "6000MiB", confs=[conf])
    rows = {row.conf: row for row in tuning.rows}
    assert rows[conf].survives
    assert rows[conf].memory_fraction == 0.1
    assert rows[conf].peak_reserved_bytes < rows[""].peak_reserved_bytes
    assert rows[conf].cost.is_thrashing
    assert tuning.best is rows[""]
    free = Costs(cuda_malloc=0, cuda_free=0, synchronize=0)
    tame = tune(write(sawing), "6000MiB", confs=[conf], costs=free)
    assert not any(row.cost.is_thrashing for row in tame.rows)


def test_before_2_10_a_fraction_is_set_by_a_call(write: Write) -> None:
    tuning = tune(write(ragged(0)), "3GiB", torch_version="2.5")
    called = [row for row in tuning.rows if row.setting.call_fraction is not None]
    assert called
    assert all("fraction" not in row.conf for row in called)
    assert {row.memory_fraction for row in called} == {row.setting.call_fraction for row in called}


def test_packed_bytes_are_between_live_and_reserved_bytes(write: Write) -> None:
    tuning = tune(write(ragged(3)), "4GiB", confs=[])
    bounds = tuning.bounds
    assert bounds.peak_live_bytes <= bounds.packed_bytes <= tuning.baseline.peak_reserved_bytes


# -- several recordings ------------------------------------------------------------------


def test_tune_of_several_recordings_shows_the_worst_for_each_setting(write: Write) -> None:
    paths = [write(ragged(seed), name=f"rank{seed}.pickle") for seed in (1, 2)]
    conf = "max_split_size_mb:64"
    both = tune(paths, "6GiB", confs=[conf])
    each = [tune(path, "6GiB", confs=[conf]) for path in paths]
    for number in (0, 1):
        rows = [
            next(row for row in tuning.rows if row.is_baseline is (number == 0)) for tuning in each
        ]
        row = next(row for row in both.rows if row.is_baseline is (number == 0))
        assert row.peak_reserved_bytes == max(row.peak_reserved_bytes for row in rows)
        assert row.num_device_alloc == max(row.num_device_alloc for row in rows)
        assert row.min_device_memory_bytes == max(row.peak_reserved_bytes for row in rows)
        assert row.parts == tuple(row.parts[0] for row in rows)


def test_setting_fails_if_it_fails_on_one_recording(write: Write) -> None:
    paths = [write(ragged(1)), write(plain, name="plain.pickle")]
    tuning = tune(paths, "1200MiB", confs=[])
    assert tuning.best is None
    assert tuning.baseline.num_ooms == 1


def test_tune_accepts_a_recording_in_memory(write: Write) -> None:
    path = write(ragged(1))
    assert thrifty(tune(load(path), "4GiB")) == thrifty(tune(path, "4GiB"))


# -- the smallest device -----------------------------------------------------------------


def test_find_device_ranks_settings_by_the_smallest_device(write: Write) -> None:
    tuning = tune(write(ragged(1)), find_device=True)
    assert tuning.best is not None
    sizes = [row.device_point.memory for row in tuning.rows if row.device_point is not None]
    assert tuning.best.min_device_memory_bytes == min(sizes)
    assert tuning.baseline.min_device_memory_bytes is not None
    assert tuning.baseline.min_device_memory_bytes <= tuning.baseline.peak_reserved_bytes


# -- shortcuts ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exhaustive() -> dict[int, Tuning]:
    """Return searches without shortcuts by seed; each takes seconds and is used several times."""
    return {}


EACH = [
    replace(EXHAUSTIVE, equivalent=True),
    replace(EXHAUSTIVE, drop=True),
    replace(EXHAUSTIVE, from_peak=True),
    replace(EXHAUSTIVE, fast_path=True),
    Tricks(),
]
ALWAYS_SPARE = {1, 2, 4}
"""Indices of the shortcuts that save replayed entries for every recording.

`equivalent` may find nothing to skip, and `fast_path` only replays faster.
"""


@pytest.mark.parametrize("trick", EACH, ids=["equivalent", "drop", "from_peak", "fast_path", "all"])
def test_shortcuts_change_no_result(
    trick: Tricks, write: Write, exhaustive: dict[int, Tuning]
) -> None:
    path = write(ragged(4, steps=4))
    if not exhaustive:
        exhaustive[4] = tune(path, "2GiB", tricks=EXHAUSTIVE)
    quick, slow = tune(path, "2GiB", tricks=trick), exhaustive[4]
    compare(quick, slow)
    if EACH.index(trick) in ALWAYS_SPARE:
        assert quick.entries_replayed < slow.entries_replayed


def compare(quick: Tuning, slow: Tuning) -> None:
    """Check that answers and whole rows are equal, and that every other row is really beaten."""
    assert thrifty(quick) == thrifty(slow)
    rows = {row.setting: row for row in slow.rows}
    assert all(row.is_whole for row in slow.rows)
    for row in quick.rows:
        if row.is_whole:
            assert row.point == rows[row.setting].point
            assert row.num_ooms == rows[row.setting].num_ooms
            if row.unrefused_device is not None:
                assert row.unrefused_device == rows[row.setting].unrefused_device
        else:
            assert rows[row.setting] not in slow.front
    for setting, like in quick.duplicates:
        own, other = rows[setting], rows[like]
        assert (own.point, own.num_ooms) == (other.point, other.num_ooms)


def test_shortcuts_do_not_change_the_smallest_device(write: Write) -> None:
    path = write(ragged(5, steps=2))
    quick = tune(path, find_device=True, expandable=False)
    slow = tune(path, find_device=True, expandable=False, tricks=EXHAUSTIVE)
    assert quick.best is not None
    assert slow.best is not None
    assert quick.best.setting == slow.best.setting
    assert quick.best.device_point == slow.best.device_point
    assert quick.entries_replayed < slow.entries_replayed


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".npz")[0])
def test_tune_equals_an_exhaustive_search_on_every_recording(path: Path) -> None:
    quick = tune(path)
    slow = tune(path, tricks=replace(EXHAUSTIVE, from_peak=True, fast_path=True))
    compare(quick, slow)


# -- errors ------------------------------------------------------------------------------


def test_tune_refuses_invalid_arguments_in_a_sentence(write: Write) -> None:
    path = write(plain)
    with pytest.raises(ConfigError, match="unrecognized key 'max_split'"):
        tune(path, confs=["max_split:5"])
    with pytest.raises(ConfigError, match="size '24 apples'"):
        tune(path, "24 apples")
    with pytest.raises(ConfigError, match="no recording"):
        tune([])
    with pytest.raises(RecordingError, match="device 3 is not in the recording"):
        tune(path, device=3)


def test_row_has_an_error_if_the_device_cannot_hold_the_start(
    write: Write,
) -> None:
    allocator = CachingAllocator("4GiB", record_history=True)
    allocator.malloc(600 * MIB)
    allocator.take_history()
    path = write(lambda gpu: gpu.malloc(100 * MIB))
    tuning = tune(path, 64 * MIB, confs=[])
    assert tuning.baseline.num_ooms == 1
    assert tuning.device_memory == 64 * MIB < GIB
