"""Steps of the program and gaps between them (semantics 6.2, 6.6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from allocsim.inference.gaps import Gap, classify, gaps_of
from allocsim.recording import Action, Trace, pools_of
from allocsim.replaying import prepare
from allocsim.units import MIB
from allocsim.workload import KINDS

GAPS = import_module("allocsim.inference.gaps")

A, FR, FC = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
SA, SF, OOM = Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.OOM

Entries = Callable[..., Trace]


def gaps(trace: Trace) -> list[Gap]:
    pools = pools_of(trace)
    return list(gaps_of(trace, pools, classify(trace, pools)))


def plain(trace: Trace) -> list[int]:
    return np.flatnonzero(classify(trace, pools_of(trace)).is_plain).tolist()


def growths(trace: Trace) -> list[int]:
    return np.flatnonzero(classify(trace, pools_of(trace)).is_growth).tolist()


def numbers(gap: Gap) -> dict[str, list[int]]:
    """Return the entries of each kind of effect."""
    kinds = ("completed", "released", "before", "obtained")
    return {kind: [each.number for each in getattr(gap, kind)] for kind in kinds}


def test_empty_trace_has_no_gaps(entries: Entries) -> None:
    assert gaps(entries()) == []


def test_immediate_free_is_one_plain_step(entries: Entries) -> None:
    trace = entries((A, 0, 100), (FR, 0, 100), (FC, 0, 100), (A, 0, 7))
    assert plain(trace) == [0, 1, 3]
    assert classify(trace, pools_of(trace)).is_immediate.tolist() == [False, True, False, False]
    assert gaps(trace) == []


def test_later_completion_is_an_effect_before_the_next_step(entries: Entries) -> None:
    trace = entries((A, 0, 100), (FR, 0, 100), (A, 512, 5), (FC, 0, 100), (A, 0, 7))
    (gap,) = gaps(trace)
    assert plain(trace) == [0, 1, 2]
    assert [each.addr for each in gap.completed] == [0]
    assert gap.step is not None
    assert gap.step.number == gap.last == 4
    assert not gap.is_open


def test_completion_of_another_block_is_not_an_immediate_free(entries: Entries) -> None:
    (gap,) = gaps(entries((FR, 512, 9), (FC, 0, 9), (A, 0, 9)))
    assert numbers(gap)["completed"] == [1]
    assert not gap.is_immediate


def test_obtained_memory_comes_before_its_request(entries: Entries) -> None:
    grown = ((SA, 7 * MIB, 20 * MIB), (SA, 64 * MIB, 20 * MIB), (A, 7 * MIB, 3 * MIB))
    trace = entries((A, 0, 1), *grown)
    (gap,) = gaps(trace)
    assert plain(trace) == [0]
    assert numbers(gap)["obtained"] == [1, 2]
    assert gap.is_request
    assert not gap.is_open  # without a release, all memory is `obtained`


def test_segment_right_before_its_request_is_a_plain_step(entries: Entries) -> None:
    trace = entries((A, 0, 1), (SA, 7 * MIB, 20 * MIB), (A, 7 * MIB, 3 * MIB))
    assert gaps(trace) == []
    assert plain(trace) == [0, 2]
    assert growths(trace) == [1]


@pytest.mark.parametrize("other", [(FC, 0, 1), (SA, 64 * MIB, 20 * MIB), (OOM, 0, 1 << 40)])
def test_segment_among_other_effects_is_not_a_plain_step(
    entries: Entries, other: tuple[int, int, int]
) -> None:
    for between in ((other, (SA, 7 * MIB, 20 * MIB)), ((SA, 7 * MIB, 20 * MIB), other)):
        trace = entries((A, 0, 1), *between, (A, 7 * MIB, 3 * MIB))
        assert growths(trace) == []
        assert gaps(trace)


def test_segment_is_not_a_plain_step_if_the_trace_has_releases(entries: Entries) -> None:
    trace = entries((A, 0, 1), (SA, 8, 20), (A, 8, 9), (SF, 64, 10), (A, 40, 1))
    assert growths(trace) == []
    assert len(gaps(trace)) == 2


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("kind", [*KINDS])
def test_plan_equals_the_plan_from_gaps_alone(
    kind: str, conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace has waits, pools and releases between the steps."""
    recording = KINDS[kind](conf=conf)
    (plan,) = (each.plan for each in prepare(recording))
    monkeypatch.setattr(GAPS, "_growths", lambda action, _: np.zeros(len(action), dtype=bool))
    (by_gaps,) = (each.plan for each in prepare(replace(recording)))
    assert replace(plan, steps=by_gaps.steps) == by_gaps
    for column in ("kind", "entry", "addr", "size", "stream"):
        got, expected = (getattr(each.steps, column).tolist() for each in (plan, by_gaps))
        assert got == expected


def test_release_makes_a_gap_open(entries: Entries) -> None:
    """Memory obtained before and after the release is kept apart."""
    (gap,) = gaps(
        entries((A, 0, 1), (SA, 4, 2), (SF, 64, 10), (SF, 32, 10), (SA, 8, 20), (A, 8, 9))
    )
    assert gap.is_open
    assert numbers(gap) == {"completed": [], "released": [2, 3], "before": [1], "obtained": [4]}


def test_completions_before_and_after_the_release_are_counted(entries: Entries) -> None:
    trace = entries((A, 0, 1), (FC, 7, 1), (SF, 64, 10), (FC, 9, 1), (SA, 8, 20), (A, 8, 9))
    (gap,) = gaps(trace)
    assert numbers(gap)["completed"] == [1, 3]
    assert gap.n_early == 1


def test_free_right_before_a_release_belongs_to_the_gap(entries: Entries) -> None:
    """It seems to have completed at once, but the allocator may have waited for it."""
    trace = entries((A, 0, 9), (FR, 0, 9), (FC, 0, 9), (SF, 0, 10), (SA, 64, 20), (A, 64, 15))
    (gap,) = gaps(trace)
    assert plain(trace) == [0]
    assert gap.free is not None
    assert gap.free.number == 1
    assert numbers(gap)["released"] == [3]


def test_earlier_free_is_a_plain_step(entries: Entries) -> None:
    trace = entries((FR, 0, 9), (FC, 0, 9), (A, 4, 1), (SF, 0, 10), (SA, 64, 20), (A, 64, 15))
    assert plain(trace) == [0, 2]
    assert [gap.free for gap in gaps(trace)] == [None]


def test_release_before_a_held_free_is_a_separate_gap(entries: Entries) -> None:
    trace = entries((A, 0, 9), (SF, 9, 9), (FR, 0, 9), (FC, 0, 9), (SF, 0, 10), (A, 64, 1))
    first, second = gaps(trace)
    assert first.step is None
    assert (first.last, numbers(first)["released"]) == (1, [1])
    assert second.free is not None
    assert numbers(second)["released"] == [4]


def test_gap_at_the_end_has_no_step(entries: Entries) -> None:
    (gap,) = gaps(entries((A, 0, 9), (SF, 64, 9), (SF, 32, 9)))
    assert gap.step is None
    assert gap.last == 2
    assert gap.is_open
    assert not gap.is_request


def test_error_is_open_if_the_device_had_room(entries: Entries) -> None:
    """The entry of an error has the free bytes in place of an address."""
    (full,) = gaps(entries((OOM, 5 * MIB, 30 * MIB)))
    (roomy,) = gaps(entries((OOM, 30 * MIB, 30 * MIB)))
    assert full.is_request
    assert not full.is_open
    assert roomy.is_open


def test_request_to_another_pool_ends_a_gap(entries: Entries) -> None:
    trace = replace(
        entries((A, 0, 1), (A, 9, 1), (FR, 9, 1), (FC, 9, 1), (A, 9, 1), (A, 1, 1)),
        pool_ids=((0, 0), (0, 7)),
        pool_id=np.array([0, 1, 1, 1, 1, 0], dtype=np.int32),
    )
    assert plain(trace) == [0, 2, 4]
    assert [gap.scope for gap in gaps(trace)] == [
        1,
        -1,
    ]  # index into pool_ids; -1 for the default pool
