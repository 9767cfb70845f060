"""Best fit that skips repeated periods gives the same offsets as plain best fit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim.metrics import lifetimes_of, period_starts
from allocsim.metrics.lifetimes import Lifetimes
from allocsim.metrics.packing import _Arena, best_fit
from allocsim.recording import Recording
from allocsim.replaying import prepare
from tests.metrics.test_packing import chance, lifetimes
from tests.replaying.test_repeats import training

UNIT = 512


def naive(blocks: Lifetimes) -> list[int]:
    """Place blocks by plain best fit, with a linear search over the free ranges."""
    offset = [0] * len(blocks)
    free: set[tuple[int, int]] = set()  # (start, end)
    top = 0
    moments = [(end, False, row) for row, end in enumerate(blocks.end.tolist())]
    moments += [(start, True, row) for row, start in enumerate(blocks.start.tolist())]
    for _, comes, row in sorted(moments):
        size = int(blocks.size[row])
        if not comes:
            start, end = offset[row], offset[row] + size
            for other in [each for each in free if start in each or end in each]:
                free.remove(other)
                start, end = min(start, other[0]), max(end, other[1])
            free.add((start, end))
            continue
        fitting = [(end - start, start) for start, end in free if end - start >= size]
        if not fitting:
            offset[row], top = top, top + size
            continue
        length, start = min(fitting)
        offset[row] = start
        free.remove((start, start + length))
        if length > size:
            free.add((start + size, start + length))
    return offset


@dataclass(frozen=True)
class Loop:
    """Equal periods from entry `begins` on, with blocks before and after."""

    blocks: Lifetimes
    periods: np.ndarray[tuple[int], np.dtype[np.int64]]


@st.composite
def loops(draw: st.DrawFn) -> Loop:
    """Generate periods of a few blocks, some longer-lived than a period, and blocks around them."""
    length = draw(st.integers(4, 24))
    count = draw(st.integers(3, 24))
    begins = 40
    sizes = st.integers(1, draw(st.sampled_from([2, 50]))).map(lambda units: units * UNIT)
    each = st.tuples(st.integers(0, length - 1), st.integers(1, 3 * length), sizes)
    pattern = draw(st.lists(each, min_size=1, max_size=8))
    rows = [
        (begins + number * length + at, begins + number * length + at + lives, size)
        for number in range(count)
        for at, lives, size in pattern
    ]
    others = st.tuples(st.integers(-1, begins + (count + 2) * length), st.integers(1, 400), sizes)
    rows += [(at, at + lives, size) for at, lives, size in draw(st.lists(others, max_size=6))]
    off = draw(st.integers(0, length))
    return Loop(lifetimes(*rows), begins + off + length * np.arange(count))


@given(loops())
def test_periods_change_no_place(loop: Loop) -> None:
    places = best_fit(loop.blocks, periods=loop.periods)
    assert places is not None
    assert places.tolist() == naive(loop.blocks)


@pytest.mark.parametrize("seed", range(5))
def test_best_fit_equals_a_naive_placement(seed: int) -> None:
    places = best_fit(chance(seed, 200))
    assert places is not None
    assert places.tolist() == naive(chance(seed, 200))


@given(loops(), st.integers(0, 40))
def test_too_high_is_no_packing(loop: Loop, most: int) -> None:
    height = int((np.array(naive(loop.blocks)) + loop.blocks.size).max())
    found = best_fit(loop.blocks, most * UNIT, loop.periods)
    assert (found is None) == (height > most * UNIT)


def events_run(monkeypatch: pytest.MonkeyPatch, blocks: Lifetimes, periods: Sequence[int]) -> int:
    """Return the number of events that are simulated."""
    run, n_run = _Arena.run, []

    def counted(arena: _Arena, events: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        n_run.append(len(events))
        run(arena, events)

    with monkeypatch.context() as patched:
        patched.setattr(_Arena, "run", counted)
        places = best_fit(blocks, periods=np.array(periods, dtype=np.int64))
    assert places is not None
    assert places.tolist() == naive(blocks)
    return sum(n_run)


def test_only_the_first_periods_of_a_loop_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """With three blocks per period and one of them freed in the next, two periods are simulated."""
    rows = [
        row
        for at in range(0, 1000, 10)
        for row in ((at, at + 5, 3 * UNIT), (at + 1, at + 3, UNIT), (at + 6, at + 12, 2 * UNIT))
    ]
    assert events_run(monkeypatch, lifetimes(*rows), range(0, 1000, 10)) < 40


def test_periods_that_accumulate_memory_are_simulated_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If one block of each period stays, the free ranges repeat but the top does not."""
    rows = [row for at in range(0, 200, 4) for row in ((at, 300, UNIT), (at + 1, at + 3, UNIT))]
    assert events_run(monkeypatch, lifetimes(*rows), range(0, 200, 4)) > 100


def test_periods_of_different_sizes_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    rows = [(at, at + 3, UNIT * rng.randrange(1, 9)) for at in range(0, 400, 4)]
    rows += [(at + 1, at + 6, UNIT) for at in range(0, 400, 4)]
    assert events_run(monkeypatch, lifetimes(*rows), range(0, 400, 4)) > 200


def test_periods_of_a_recording_do_not_change_best_fit(recorded: Callable[..., Recording]) -> None:
    """The periods of the recording's plan do not change the result."""
    prepared = prepare(recorded(training(0, steps=300), "16GiB"), 0)[0]
    blocks, periods = lifetimes_of(prepared.trace), period_starts(prepared)
    assert len(periods) > 8
    places, without = best_fit(blocks, periods=periods), best_fit(blocks)
    assert places is not None
    assert without is not None
    assert places.tolist() == without.tolist() == naive(blocks)


def test_a_recording_without_a_loop_has_no_periods(recorded: Callable[..., Recording]) -> None:
    prepared = prepare(recorded(lambda gpu: gpu.malloc(UNIT), "16GiB"), 0)[0]
    assert not len(period_starts(prepared))
