"""Lifetimes of blocks until their free is requested, and until it completes."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest

from allocsim.metrics import lifetimes_of
from allocsim.recording import Action, Trace, trimmed
from allocsim.workload import KINDS

LIFETIMES = import_module("allocsim.metrics.lifetimes")


def both(trace: Trace) -> list[list[list[int]]]:
    """Return columns and turns of the lives until the request, by the fast and the general way."""
    found = lifetimes_of(replace(trace), until=Action.FREE_REQUESTED)
    slowly = LIFETIMES._lifetimes_of(trace, len(trace), (), Action.FREE_REQUESTED)
    return [
        [each.start.tolist(), each.end.tolist(), each.size.tolist(), each.turns.tolist()]
        for each in (found, slowly)
    ]


@pytest.mark.parametrize("kind", [*KINDS])
def test_lifetimes_up_to_the_requested_free_agree(kind: str) -> None:
    """Check recordings with and without waiting frees, whole and cut at any entry."""
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
