"""When blocks were in use: by the request of their free, and by its completion."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest

from allocsim.measures import lifetimes_of
from allocsim.trace import Action, Trace, trimmed
from allocsim.workload import KINDS

LIFETIMES = import_module("allocsim.measures.lifetimes")


def both(trace: Trace) -> list[list[list[int]]]:
    """Columns and turns of the lives up to the request, at once and step by step."""
    found = lifetimes_of(replace(trace), until=Action.FREE_REQUESTED)
    slowly = LIFETIMES._lifetimes_of(trace, len(trace), (), Action.FREE_REQUESTED)
    return [
        [each.start.tolist(), each.end.tolist(), each.size.tolist(), each.turns.tolist()]
        for each in (found, slowly)
    ]


@pytest.mark.parametrize("kind", [*KINDS])
def test_lives_up_to_the_request_are_the_same_however_found(kind: str) -> None:
    """With frees that wait and without, of whole recordings and of ones cut anywhere."""
    (trace,) = KINDS[kind]().devices
    for first in (0, 200, 201, 202):
        at_once, slowly = both(trimmed(trace, first, len(trace)))
        assert at_once == slowly


def test_where_no_free_waits_both_sorts_of_lives_share_their_turns() -> None:
    (trace,) = KINDS["training"]().devices
    whole = lifetimes_of(trace)
    needed = lifetimes_of(trace, until=Action.FREE_REQUESTED)
    assert needed.turns is whole.turns
    (trace,) = KINDS["streams"]().devices
    assert lifetimes_of(trace, until=Action.FREE_REQUESTED).in_order_of is None
