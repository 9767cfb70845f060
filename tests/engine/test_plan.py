"""What a trace makes an allocator do (semantics 6.2, 6.6)."""

from __future__ import annotations

from collections.abc import Callable

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
    assert plan.steps.entry == [1, 1, 2]


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
