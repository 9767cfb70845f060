"""The state before the first entry: exact if the entries show it, by rule otherwise."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocsim.errors import RecordingError
from allocsim.recording import Action, Trace, load
from allocsim.recording.snapshot import read_snapshot
from allocsim.recording.start_state import start_state, trimmed
from allocsim.state import ALLOCATED, INACTIVE, PENDING, BlockState, SegmentState
from allocsim.units import MIB
from tests.recording.history import History, training_step, write

MEGA = 1 << 40
Row = tuple[Action, int, int]
ALLOC, REQUESTED, COMPLETED = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


def trace_of(rows: list[Row], *segments: SegmentState) -> Trace:
    """Return a trace on stream 0 with these final segments."""
    count = len(rows)
    return Trace(
        device=0,
        action=np.array([row[0] for row in rows], np.uint8),
        addr=np.array([row[1] for row in rows], np.uint64),
        size=np.array([row[2] for row in rows], np.int64),
        stream=np.zeros(count, np.uint64),
        frames=np.full(count, -1, np.int32),
        pool_id=np.full(count, -1, np.int32),
        segments=segments,
    )


def free_segment(size: int, **change: Any) -> SegmentState:
    blocks = (BlockState(MEGA, size, 0, INACTIVE),)
    segment = SegmentState(MEGA, size, 0, size == 2 * MIB, (0, 0), False, blocks)
    return dataclasses.replace(segment, **change)


def freed(addr: int, size: int) -> list[Row]:
    return [(REQUESTED, addr, size), (COMPLETED, addr, size)]


def blocks_of(trace: Trace, **options: Any) -> list[tuple[int, int, str]]:
    """Return offset, size and state of the blocks in the only initial segment."""
    (segment,) = start_state(trace, **options)
    return [(block.address - MEGA, block.size, block.state) for block in segment.blocks]


def test_start_state_from_an_empty_device_is_empty(tmp_path: Path) -> None:
    trace = load(write(training_step().snapshot(), tmp_path / "a")).device(0)
    assert start_state(trace) == ()
    assert start_state(trace, len(trace)) == trace.segments


def test_live_blocks_keep_their_size() -> None:
    block = BlockState(MEGA, 21 * MIB, 20 * MIB + 5, ALLOCATED, 3)
    segment = dataclasses.replace(free_segment(21 * MIB), blocks=(block,))
    assert start_state(trace_of([(Action.SNAPSHOT, 0, 0)], segment)) == (segment,)


def test_short_gap_is_slack() -> None:
    trace = trace_of(freed(MEGA, 20 * MIB + 1), free_segment(21 * MIB))
    assert blocks_of(trace) == [(0, 21 * MIB, ALLOCATED)]


def test_slack_is_at_most_one_mib() -> None:
    exact = trace_of(freed(MEGA, 21 * MIB), free_segment(22 * MIB))
    assert blocks_of(exact) == [(0, 22 * MIB, ALLOCATED)]
    more = trace_of(freed(MEGA, 21 * MIB - 512), free_segment(22 * MIB))
    assert blocks_of(more) == [
        (0, 21 * MIB - 512, ALLOCATED),
        (21 * MIB - 512, MIB + 512, INACTIVE),
    ]


def test_alloc_inside_a_gap_shows_free_space() -> None:
    # Both are 2 MiB; the allocation after the first marks its true end.
    landed = [(ALLOC, MEGA + 2 * MIB, MIB + 512)]
    ends = [*freed(MEGA, 2 * MIB), *freed(MEGA + 2 * MIB, MIB + 512)]
    trace = trace_of([*landed, *ends], free_segment(3 * MIB + 512))
    assert blocks_of(trace) == [(0, 2 * MIB, ALLOCATED), (2 * MIB, MIB + 512, INACTIVE)]


def test_alloc_inside_a_gap_shows_the_end_of_the_block() -> None:
    end = 2 * MIB + 600 * 1024
    landed = [(ALLOC, MEGA + end, 3 * MIB)]
    trace = trace_of(
        [*landed, *freed(MEGA, 2 * MIB), *freed(MEGA + end, 3 * MIB)], free_segment(20 * MIB)
    )
    assert blocks_of(trace) == [(0, end, ALLOCATED), (end, 20 * MIB - end, INACTIVE)]


def test_alloc_after_the_free_does_not_show_slack() -> None:
    landed = [(ALLOC, MEGA + 20 * MIB + 512, 2000), *freed(MEGA + 20 * MIB + 512, 2000)]
    trace = trace_of([*freed(MEGA, 20 * MIB + 1), *landed], free_segment(21 * MIB))
    assert blocks_of(trace) == [(0, 21 * MIB, ALLOCATED)]


def test_slack_ends_at_the_next_block() -> None:
    rows = [*freed(MEGA, 2 * MIB), *freed(MEGA + 2 * MIB + 1024, 17 * MIB)]
    assert blocks_of(trace_of(rows, free_segment(20 * MIB))) == [
        (0, 2 * MIB + 1024, ALLOCATED),
        (2 * MIB + 1024, 18 * MIB - 1024, ALLOCATED),
    ]


@pytest.mark.parametrize(
    "segment", [free_segment(2 * MIB), free_segment(20 * MIB, is_expandable=True)]
)
def test_small_and_expandable_blocks_have_no_slack(segment: SegmentState) -> None:
    trace = trace_of(freed(MEGA, segment.total_size - 1024), segment)
    assert blocks_of(trace)[1] == (segment.total_size - 1024, 1024, INACTIVE)


def test_start_state_uses_the_given_rounding() -> None:
    trace = trace_of(freed(MEGA, 5 * MIB), free_segment(20 * MIB))
    assert blocks_of(trace, rounded=lambda _: 8 * MIB)[0] == (0, 8 * MIB, ALLOCATED)


def test_block_above_max_split_size_is_its_whole_segment() -> None:
    trace = trace_of(freed(MEGA, 70 * MIB), free_segment(80 * MIB))
    assert blocks_of(trace, max_split_size=64 * MIB) == [(0, 80 * MIB, ALLOCATED)]
    assert blocks_of(trace, max_split_size=128 * MIB)[0] == (0, 70 * MIB, ALLOCATED)


def test_free_requested_before_the_recording_is_pending_at_the_start() -> None:
    trace = trace_of([(COMPLETED, MEGA, 2000)], free_segment(2 * MIB))
    assert blocks_of(trace)[0] == (0, 2048, PENDING)


def test_undone_segment_free_gives_one_free_block() -> None:
    assert start_state(trace_of([(Action.SEGMENT_FREE, MEGA, 2 * MIB)])) == (free_segment(2 * MIB),)


def test_mapped_ranges_are_split_and_merged() -> None:
    mapped = free_segment(60 * MIB, is_expandable=True)
    grown = trace_of([(Action.SEGMENT_MAP, MEGA + 20 * MIB, 40 * MIB)], mapped)
    (before,) = start_state(grown)
    assert (before.address, before.total_size) == (MEGA, 20 * MIB)
    middle = trace_of([(Action.SEGMENT_MAP, MEGA + 20 * MIB, 20 * MIB)], mapped)
    assert [s.address - MEGA for s in start_state(middle)] == [0, 40 * MIB]
    shrunk = trace_of([(Action.SEGMENT_UNMAP, MEGA + 60 * MIB, 20 * MIB)], mapped)
    assert [s.total_size for s in start_state(shrunk)] == [80 * MIB]
    gone = trace_of([(Action.SEGMENT_UNMAP, MEGA, 20 * MIB)])
    (range_,) = start_state(gone)
    assert (range_.is_expandable, range_.is_small, range_.total_size) == (True, False, 20 * MIB)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(ALLOC, MEGA, 5)], "device 0: entry 0: 0x10000000000 is allocated here, but not in use"),
        ([(REQUESTED, MEGA, 5)], "entry 0: a free of 0x10000000000 is requested, but none is"),
        ([(COMPLETED, MEGA, 5), (COMPLETED, MEGA, 5)], "entry 0: .* is freed here, but it is in"),
        ([(ALLOC, MEGA, 6), *freed(MEGA, 5)], "entry 0: 6 bytes are allocated .*, but 5 are"),
        ([(COMPLETED, 512, 5)], "the block at 0x200 lies in no segment"),
        ([(COMPLETED, MEGA * 2, 5)], "the block at 0x20000000000 lies in no segment"),
        ([(Action.SEGMENT_ALLOC, 512, 5)], "entry 0: no segment of 5 bytes is at 0x200"),
        ([(Action.SEGMENT_FREE, MEGA, 5)], "entry 0: .* is freed, but a segment is there"),
        ([(Action.SEGMENT_MAP, 512, 5)], "entry 0: the 5 bytes mapped at 0x200 are not"),
        ([(Action.SEGMENT_FREE, MEGA - 512, 1024)], "0x10000000000 would have lain over the one"),
        ([(Action.SEGMENT_UNMAP, MEGA, 2 * MIB)], "0x10000000000 would have lain over the one"),
        (freed(MEGA, 1 << 60), "entry 1: 1152921504606846976 bytes are freed .* than 2097152 can"),
    ],
)
def test_start_state_names_the_contradicting_entry(rows: list[Row], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        start_state(trace_of(rows, free_segment(2 * MIB)))


SIZES = st.one_of(st.integers(1, 5000), st.integers(MIB // 2, MIB), st.integers(2 * MIB, 30 * MIB))
STEPS = st.lists(
    st.tuples(st.sampled_from("aaaaffwce"), SIZES, st.integers(0, 50), st.sampled_from([0, 4096])),
    max_size=60,
)


def play(history: History, steps: list[tuple[str, int, int, int]]) -> list[int]:
    """Perform the possible steps; return the number of entries after each."""
    marks = []
    for what, size, choice, stream in steps:
        live = sorted(history.live().items())
        wanted = PENDING if what == "c" else ALLOCATED
        fit = [address for address, (_, _, state) in live if state == wanted]
        if what == "a":
            history.alloc(size, stream)
        elif what == "e":
            history.empty_cache()
        elif fit and what in "fw":
            history.free(fit[choice % len(fit)], wait=what == "w")
        elif fit and what == "c":
            history.complete(fit[choice % len(fit)])
        marks.append(len(history.entries))
    return marks


@settings(max_examples=60)
@given(STEPS, STEPS)
def test_start_state_undoes_entries(
    before: list[tuple[str, int, int, int]], after: list[tuple[str, int, int, int]]
) -> None:
    history = History()
    play(history, before)
    middle, there, segments = len(history.entries), history.live(), sorted(history.segments)
    play(history, after)
    trace = read_snapshot("x", history.snapshot(), 1 << 20).devices
    if not trace:
        return
    assert start_state(trace[0]) == ()
    states = start_state(trace[0], middle)
    assert [segment.address for segment in states] == segments
    live = {b.address: b for s in states for b in s.blocks if b.state != INACTIVE}
    assert {a: (b.requested_size, b.state) for a, b in live.items()} == {
        address: (requested, state) for address, (_, requested, state) in there.items()
    }
    for address, (size, requested, _) in there.items():
        # Small blocks are known exactly; large blocks except for slack that left no trace.
        assert live[address].size == size or requested > MIB
    for segment in states:
        assert sum(block.size for block in segment.blocks) == segment.total_size
    part = trimmed(trace[0], 0, middle)
    assert len(part) == middle
    assert start_state(part) == ()
