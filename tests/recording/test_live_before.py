"""Undoing all blocks at once equals undoing them one by one, errors included."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim.errors import RecordingError
from allocsim.recording import Action, Trace, start_state
from allocsim.recording.live_blocks import Live, live_after, live_before
from allocsim.state import ALLOCATED, INACTIVE, PENDING, BlockState, SegmentState

START_STATE = import_module("allocsim.recording.start_state")
MEGA = 1 << 40
STEP = 2048
"""Bytes between the places of blocks."""

Row = tuple[Action, int, int]
ALLOC, REQUESTED, COMPLETED = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


def trace_of(rows: list[Row], blocks: dict[int, tuple[int, str]]) -> Trace:
    """Return a trace of rows (action, place, size) and final blocks (size, state) by place."""
    n_places = 6
    tiles = []
    for place in range(n_places):
        size, state = blocks.get(place, (0, INACTIVE))
        tiles.append(BlockState(MEGA + place * STEP, STEP, size, state))
    segment = SegmentState(MEGA, n_places * STEP, 0, True, (0, 0), False, tuple(tiles))
    none = np.full(len(rows), -1, np.int32)
    return Trace(
        device=0,
        action=np.array([row[0] for row in rows], np.uint8),
        addr=np.array([MEGA + row[1] * STEP for row in rows], np.uint64),
        size=np.array([row[2] for row in rows], np.int64),
        stream=np.zeros(len(rows), np.uint64),
        frames=none,
        pool_id=none.copy(),
        segments=(segment,),
    )


Answer = tuple[SegmentState, ...] | str


def answer(trace: Trace, entry: int) -> Answer:
    """Return the state before an entry, or the error of the later entries."""
    try:
        return start_state(trace, entry)
    except RecordingError as error:
        return f"entry {error.entry}: {error}"


def both_ways(trace: Trace, entry: int) -> tuple[Answer, Answer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(START_STATE, "live_before", lambda *_: None)
        one_by_one = answer(trace, entry)
    return answer(trace, entry), one_by_one


def program(seed: int) -> Trace:
    """Return a consistent history that begins with some blocks in use and some pending."""
    rng = random.Random(seed)
    blocks = {place: (rng.randrange(1, 2000), ALLOCATED) for place in rng.sample(range(6), 3)}
    rows: list[Row] = []
    for _ in range(rng.randrange(5, 40)):
        place = rng.randrange(6)
        if place not in blocks:
            blocks[place] = (rng.randrange(1, 2000), ALLOCATED)
            rows.append((ALLOC, place, blocks[place][0]))
        elif blocks[place][1] == ALLOCATED:
            blocks[place] = (blocks[place][0], PENDING)
            rows.append((REQUESTED, place, blocks[place][0]))
        else:
            rows.append((COMPLETED, place, blocks.pop(place)[0]))
        if rng.random() < 0.2:
            rows.append((Action.OOM, place, 4096))
    return trace_of(rows, blocks)


@pytest.mark.parametrize("seed", range(30))
def test_start_state_equals_the_state_at_any_entry(seed: int) -> None:
    trace = program(seed)
    for entry in range(len(trace) + 1):
        at_once, one_by_one = both_ways(trace, entry)
        assert at_once == one_by_one
        assert not isinstance(at_once, str)
        assert live_before(trace, entry) is not None


def damaged(seed: int) -> Iterator[Trace]:
    """Yield the history with one entry missing, doubled, resized, or another final state."""
    trace = program(seed)
    rows = [(Action(int(a)), (int(p) - MEGA) // STEP, int(s)) for a, p, s in columns(trace)]
    blocks = {
        (b.address - MEGA) // STEP: (b.requested_size, b.state)
        for b in trace.segments[0].blocks
        if b.state != INACTIVE
    }
    for i, (action, place, size) in enumerate(rows):
        yield trace_of([*rows[:i], *rows[i + 1 :]], blocks)
        yield trace_of([*rows[: i + 1], *rows[i:]], blocks)
        yield trace_of([*rows[:i], (action, place, size + 1), *rows[i + 1 :]], blocks)
    for place in range(6):
        yield trace_of(rows, {at: block for at, block in blocks.items() if at != place})
        yield trace_of(rows, blocks | {place: (77, PENDING)})


def columns(trace: Trace) -> Iterator[tuple[int, int, int]]:
    return zip(trace.action, trace.addr, trace.size, strict=True)


@pytest.mark.parametrize("seed", range(12))
def test_live_before_leaves_contradictions_to_undoing(seed: int) -> None:
    refused = 0
    for trace in damaged(seed):
        at_once, one_by_one = both_ways(trace, 0)
        assert at_once == one_by_one
        refused += isinstance(one_by_one, str)
    assert refused


ROWS = st.tuples(st.sampled_from([*Action]), st.integers(0, 2), st.sampled_from([512, 600]))
LEFT = st.tuples(st.sampled_from([512, 600]), st.sampled_from([ALLOCATED, PENDING]))


@given(st.lists(ROWS, max_size=8), st.dictionaries(st.integers(0, 2), LEFT))
def test_live_before_equals_undoing_for_random_entries(
    rows: list[Row], blocks: dict[int, tuple[int, str]]
) -> None:
    at_once, one_by_one = both_ways(trace_of(rows, blocks), 0)
    assert at_once == one_by_one


def test_block_without_entries_is_unchanged_by_undoing() -> None:
    trace = trace_of([(ALLOC, 1, 512)], {0: (700, ALLOCATED), 1: (512, ALLOCATED)})
    held, new = Live(700, STEP, ALLOCATED, -1), Live(512, STEP, ALLOCATED, -1)
    assert live_before(trace, 0) == {MEGA: held}
    assert live_before(trace, 1) == {MEGA: held, MEGA + STEP: new} == live_after(trace)


def test_block_freed_later_has_its_requested_size_and_free() -> None:
    trace = trace_of([(Action.OOM, 0, 1), (REQUESTED, 0, 900), (COMPLETED, 0, 900)], {})
    assert live_before(trace, 0) == {MEGA: Live(900, None, ALLOCATED, -1, 2)}
    assert live_before(trace, 2) == {MEGA: Live(900, None, PENDING, -1, 2)}


def test_undone_free_request_restores_the_block() -> None:
    trace = trace_of([(REQUESTED, 2, 900)], {2: (900, PENDING)})
    assert live_before(trace, 0) == {MEGA + 2 * STEP: Live(900, STEP, ALLOCATED, -1)}
    assert live_before(trace, 1) == {MEGA + 2 * STEP: Live(900, STEP, PENDING, -1)}
