"""Addresses and lifetimes of blocks and segments, on a program that can be checked manually.

The program is `allocsim synth oom`: six blocks of 9 MiB in three segments of 20 MiB (entries 0 to
8), every other block freed (9 to 14), then a request of 12 MiB that fails (15).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from allocsim.analysis.picture import Picture, picture_of
from allocsim.errors import RecordingError
from allocsim.metrics.lifetimes import lifetimes_of
from allocsim.recording import Action, Recording, load
from allocsim.recording.start_state import trimmed
from allocsim.replaying import replay
from allocsim.state import ALLOCATED, INACTIVE, PENDING
from allocsim.units import MIB
from allocsim.workload.programs import oom, streams

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def classic() -> Picture:
    return picture_of(oom())


def test_blocks_live_from_their_request_to_their_free(classic: Picture) -> None:
    blocks = classic.lives.blocks
    assert blocks.born.tolist() == [1, 2, 4, 5, 7, 8]
    assert blocks.freed.tolist() == [9, 16, 11, 16, 13, 16], "16: never"
    assert blocks.completed.tolist() == blocks.freed.tolist(), "nothing waited for a stream"
    assert (blocks.address - blocks.address[0]).tolist() == [
        0, 9 * MIB, 20 * MIB, 29 * MIB, 40 * MIB, 49 * MIB,
    ]  # fmt: skip


def test_segments_live_from_their_entry_on(classic: Picture) -> None:
    segments = classic.lives.segments
    assert segments.born.tolist() == [0, 3, 6]
    assert segments.died.tolist() == [16, 16, 16]
    assert segments.size.tolist() == [20 * MIB] * 3


def test_the_curves_count_what_lives(classic: Picture) -> None:
    curve = classic.curve
    allocated = [0, 9, 18, 18, 27, 36, 36, 45, 54, 45, 45, 36, 36, 27, 27, 27]
    assert (curve.allocated // MIB).tolist() == allocated
    assert (curve.reserved // MIB).tolist() == [20] * 3 + [40] * 3 + [60] * 10
    assert (curve.ideal // MIB).tolist() == [0, 9, 18, 18, 27, 36, 36, 45] + [54] * 8
    assert curve.driver_takes.tolist() == [0, 3, 6]
    assert curve.driver_gives.tolist() == []


def test_a_moment_shows_the_holes(classic: Picture) -> None:
    instant = classic.at(15)
    first = instant.segments[0]
    assert [(block.state, block.size // MIB) for block in first.blocks] == [
        (INACTIVE, 9), (ALLOCATED, 9), (INACTIVE, 2),
    ]  # fmt: skip
    assert first.largest_free == 9 * MIB
    assert instant.held(INACTIVE) == 33 * MIB, "more than the 12 MiB that were refused"
    assert classic.at().entry == 7, "where reserved memory was highest first"


def test_a_moment_outside_the_replay_is_refused(classic: Picture) -> None:
    with pytest.raises(RecordingError, match="no such entry in the replay; expected 0 to 15"):
        classic.at(16)


def test_a_block_waits_until_the_recording_completes_its_free() -> None:
    picture = picture_of(streams())
    blocks = picture.lives.blocks
    rows = blocks.completed > blocks.freed
    assert (blocks.born[0], blocks.freed[0], blocks.completed[0]) == (1, 14, 14)
    assert (blocks.born[1], blocks.freed[1], blocks.completed[1]) == (3, 10, 45)
    assert rows.sum() == 120, "30 steps with 4 buffers each"
    assert picture.at(10).held(PENDING) == blocks.size[1]
    assert picture.at(44).held(PENDING) > 0


@pytest.mark.parametrize(
    "name",
    ["gpt2-ragged-oom-torch2.15.pickle.gz", "gpt2-expandable-oom-torch2.15.pickle.gz"],
)
@pytest.mark.parametrize("conf", [None, "max_split_size_mb:128"])
def test_lives_add_up_to_the_allocators_own_statistics(name: str, conf: str | None) -> None:
    picture = picture_of(load(TRACES / name), conf)
    stats, curve, timeline = picture.device_run.stats, picture.curve, picture.device_run.timeline
    is_last = np.append(timeline.entry[1:] != timeline.entry[:-1], True)
    entries = timeline.entry[is_last]
    assert (curve.allocated[entries] == timeline.allocated[is_last]).all()
    assert curve.reserved.max() == stats["reserved_bytes.all.peak"]
    assert curve.requested.max() == stats["requested_bytes.all.peak"]
    assert curve.active.max() == stats["active_bytes.all.peak"]
    assert len(curve.driver_takes) >= stats["num_device_alloc"], "a range may be cut in pieces"
    lifetimes = lifetimes_of(picture.trace, picture.device_run.stopped_at)
    assert curve.ideal[-1] == lifetimes.peak_bytes


def test_reserved_memory_is_what_the_recorded_driver_calls_add_up_to() -> None:
    picture = picture_of(load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz"))
    trace = picture.trace
    sign = (trace.action == Action.SEGMENT_ALLOC).astype(int)
    sign -= trace.action == Action.SEGMENT_FREE
    assert (picture.curve.reserved == np.cumsum(sign * trace.size)).all(), "at every entry"
    assert picture.curve.reserved[13_692:14_344].min() == 3_999_268_864, "while a retry asks anew"


def test_recorded_error_that_the_replay_avoids_leaves_no_block() -> None:
    """It is released at the same entry, so it is never in use after an entry."""
    name = "gpt2-ragged-oom-torch2.15.pickle.gz"
    picture = picture_of(load(TRACES / name), "max_split_size_mb:64")
    assert picture.device_run.ooms == ()
    assert not (picture.lives.blocks.born == 26_059).any()
    assert picture.curve.requested.max() < picture.device_run.stats["requested_bytes.all.peak"]


def test_blocks_never_overlap_and_lie_in_segments() -> None:
    picture = picture_of(load(TRACES / "gpt2-side-stream-torch2.15.pickle.gz"))
    for entry in (0, 5_000, 17_000, 30_000):
        instant = picture.at(entry)
        assert instant.reserved == picture.curve.reserved[entry]
        assert instant.held(ALLOCATED) == picture.curve.allocated[entry]
        for segment in instant.segments:
            assert sum(block.size for block in segment.blocks) == segment.total_size
            assert all(block.size > 0 for block in segment.blocks)


def test_block_from_before_the_recording_is_born_at_minus_one() -> None:
    recording = load(TRACES / "gpt2-ragged-torch2.15.pickle.gz")
    late = _from(recording, 20_000)
    picture = picture_of(late)
    blocks = picture.lives.blocks
    whole = picture_of(recording)
    assert (blocks.born < 0).sum() == ((whole.lives.blocks.born < 20_000) & (
        whole.lives.blocks.completed >= 20_000)).sum()  # fmt: skip
    assert picture.curve.allocated[100] == whole.curve.allocated[20_100]
    assert picture.curve.reserved[100] == whole.curve.reserved[20_100]


def _from(recording: Recording, entry: int) -> Recording:
    trace = recording.devices[0]
    return dataclasses.replace(recording, devices=(trimmed(trace, entry, len(trace)),))


@pytest.mark.parametrize("conf", [None, "max_split_size_mb:64", "expandable_segments:True"])
def test_observers_of_lives_do_not_change_the_replay(conf: str | None) -> None:
    recording = load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz")
    seen, unseen = picture_of(recording, conf).device_run, replay(recording, conf).devices[0]
    assert seen.stats == unseen.stats
    assert seen.ooms == unseen.ooms
    assert (seen.timeline.allocated == unseen.timeline.allocated).all()
    assert (seen.timeline.reserved == unseen.timeline.reserved).all()


def test_a_refusal_by_a_fraction_leaves_no_row_and_no_harm() -> None:
    conf = "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5"
    picture = picture_of(oom(), conf)
    assert [error.entry for error in picture.device_run.ooms] == [4], "30 MiB hold one segment"
    assert picture.lives.n_entries == 5
    assert picture.lives.blocks.born.tolist() == [1, 2]
    assert (picture.curve.reserved // MIB).tolist()[-1] == 20
