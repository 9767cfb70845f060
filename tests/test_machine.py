"""The core and the naive model never differ."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import allocsim
from tests.naive.machine import differential_machine
from tests.naive.model import NaiveAllocator

CHOICES = [(False, False), (False, True), (True, False), (True, True)]


def side_by_side(pools: bool, expandable: bool, examples: int, steps: int) -> None:
    machine = differential_machine(
        allocsim.CachingAllocator, NaiveAllocator, pools=pools, expandable=expandable
    )
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=steps, derandomize=True),
    )


@pytest.mark.parametrize(("pools", "expandable"), CHOICES)
def test_core_equals_naive_model(pools: bool, expandable: bool) -> None:
    side_by_side(pools, expandable, examples=30, steps=60)


@pytest.mark.slow
@pytest.mark.parametrize(("pools", "expandable"), CHOICES)
def test_core_equals_naive_model_at_length(pools: bool, expandable: bool) -> None:
    side_by_side(pools, expandable, examples=1500, steps=120)
