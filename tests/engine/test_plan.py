"""What a trace makes an allocator do (semantics 6.2, 6.6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from allocsim.engine.plan import Plan, StepKind, plan_of
from allocsim.trace import Action, Trace
from allocsim.units import MIB

A, FR, FC = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
SA, SF, OOM = Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.OOM

Entries = Callable[..., Trace]


def kinds(plan: Plan) -> list[str]:
    return [StepKind(kind).name for kind in plan.steps.kind]


def test_nothing_to_do(entries: Entries) -> None:
    plan = plan_of(entries(), 0)
    assert kinds(plan) == []
    assert plan.max_reserved == 0


def test_a_free_that_completes_at_once_is_one_step(entries: Entries) -> None:
    plan = plan_of(entries((SA, 0, 2 * MIB), (A, 0, 100), (FR, 0, 100), (FC, 0, 100)), 0)
    assert kinds(plan) == ["DICTATE", "ALLOC", "FREE"]
    assert plan.steps.entry.tolist() == [1, 1, 2]


def test_a_free_that_waits_is_two_steps(entries: Entries) -> None:
    plan = plan_of(entries((A, 0, 100), (FR, 0, 100), (A, 512, 5), (FC, 0, 100), (A, 0, 7)), 0)
    assert kinds(plan) == ["ALLOC", "FREE_REQUEST", "ALLOC", "FREE_COMPLETE", "ALLOC"]


def test_a_completion_of_another_block_is_no_immediate_free(entries: Entries) -> None:
    plan = plan_of(entries((FR, 512, 9), (FC, 0, 9), (A, 0, 9)), 0)
    assert kinds(plan) == ["FREE_REQUEST", "FREE_COMPLETE", "ALLOC"]


def test_the_base_of_a_new_segment_is_dictated_before_its_request(entries: Entries) -> None:
    plan = plan_of(entries((A, 0, 1), (SA, 7 * MIB, 20 * MIB), (A, 7 * MIB, 3 * MIB)), 0)
    assert kinds(plan) == ["ALLOC", "DICTATE", "ALLOC"]
    assert plan.steps.addr[1] == 7 * MIB


def test_releases_before_a_hit_are_an_empty_cache_call(entries: Entries) -> None:
    plan = plan_of(entries((SF, 0, 2 * MIB), (A, 8 * MIB, 1)), 4 * MIB)
    assert kinds(plan) == ["EMPTY_CACHE", "ALLOC"]
    assert plan.n_empty_cache == 1


def test_releases_at_the_end_or_before_a_free_are_calls_too(entries: Entries) -> None:
    plan = plan_of(entries((SF, 0, MIB), (FR, 8, 1), (FC, 8, 1), (SF, 4, MIB)), 4 * MIB)
    assert kinds(plan) == ["EMPTY_CACHE", "FREE", "EMPTY_CACHE"]


def test_releases_that_a_full_device_explains_are_left_to_the_request(entries: Entries) -> None:
    """10 were held, 20 more would have been the most ever: the driver refused at first."""
    plan = plan_of(
        entries((SF, 0, 10 * MIB), (SA, 64 * MIB, 20 * MIB), (A, 64 * MIB, 20 * MIB)), 10 * MIB
    )
    assert kinds(plan) == ["DICTATE", "ALLOC"]
    assert plan.refused_below == 30 * MIB
    assert plan.inferred_capacity == 28 * MIB


def test_releases_on_a_device_that_held_more_are_a_call(entries: Entries) -> None:
    """More was held later than this request would have brought about: there was room."""
    plan = plan_of(
        entries(
            (SF, 0, 2 * MIB),
            (SA, 64 * MIB, 20 * MIB),
            (A, 64 * MIB, 20 * MIB),
            (SA, 99 * MIB, 80 * MIB),
            (A, 99 * MIB, 80 * MIB),
        ),
        10 * MIB,
    )
    assert kinds(plan)[0] == "EMPTY_CACHE"
    assert plan.inferred_capacity is None


def test_collected_garbage_is_left_to_the_request_that_collected_it(entries: Entries) -> None:
    """Large segments alone, more reserved than the threshold allows, and a new segment for it."""
    large = (SF, 0, 20 * MIB)
    miss = ((SA, 64 * MIB, 20 * MIB), (A, 64 * MIB, 20 * MIB), (SA, 99 * MIB, 80 * MIB))
    trace = entries((FC, 0, 1), large, (FC, 7, 1), *miss)
    assert kinds(plan_of(trace, 50 * MIB))[:3] == ["FREE_COMPLETE", "FREE_COMPLETE", "EMPTY_CACHE"]
    plan = plan_of(trace, 50 * MIB, collects_above=49 * MIB)
    assert kinds(plan) == ["FREE_COMPLETE", "DICTATE", "ALLOC", "FREE_COMPLETE"]
    assert plan.n_empty_cache == 0

    below = plan_of(trace, 50 * MIB, collects_above=50 * MIB)
    assert "EMPTY_CACHE" in kinds(below)
    small_too = entries(large, (SF, 30 * MIB, 2 * MIB), *miss)
    assert kinds(plan_of(small_too, 50 * MIB, collects_above=0))[0] == "EMPTY_CACHE"
    hit = entries(large, (A, 30 * MIB, 1))
    assert kinds(plan_of(hit, 50 * MIB, collects_above=0)) == ["EMPTY_CACHE", "ALLOC"]


def test_a_pool_that_gives_memory_back_ended_before(entries: Entries) -> None:
    """Once, however many segments it had; the default pool never ends."""
    trace = entries(
        (A, 0, 1), (A, 9 * MIB, 1), (SF, 0, MIB), (SF, 4 * MIB, MIB), (SF, 8 * MIB, MIB), (A, 1, 1)
    )
    pools = replace(
        trace,
        pool_ids=((0, 0), (0, 7)),
        pool_id=np.array([1, 0, 1, 1, 0, 0], dtype=np.int32),
    )
    plan = plan_of(pools, 20 * MIB)
    assert kinds(plan) == ["SCOPE", "ALLOC", "SCOPE", "ALLOC", "END_POOL", "EMPTY_CACHE", "ALLOC"]
    assert plan.pools[plan.steps.size[4]] == (0, 7)


def test_frees_that_a_release_waited_for_complete_after_the_request(entries: Entries) -> None:
    plan = plan_of(
        entries(
            (A, 0, 20 * MIB),
            (FR, 0, 20 * MIB),
            (A, 20 * MIB, 1),
            (FC, 0, 20 * MIB),
            (SF, 0, 20 * MIB),
            (SA, 64 * MIB, 40 * MIB),
            (A, 64 * MIB, 40 * MIB),
        ),
        22 * MIB,
    )
    assert kinds(plan)[-3:] == ["DICTATE", "ALLOC", "FREE_COMPLETE"]


def test_an_oom_entry_is_a_request_and_tells_the_capacity(entries: Entries) -> None:
    plan = plan_of(entries((SA, 0, 20 * MIB), (A, 0, 20 * MIB), (OOM, 5 * MIB, 30 * MIB)), 2 * MIB)
    assert kinds(plan)[-1] == "OOM"
    assert plan.capacity == plan.inferred_capacity == 27 * MIB
