"""Rows for the loop of the core, with brief requests marked."""

from __future__ import annotations

import numpy as np
import pytest

from allocsim.simulation.plan import StepKind, Steps

ALLOC, FREE, FREE_REQUEST = StepKind.ALLOC, StepKind.FREE, StepKind.FREE_REQUEST


def steps_of(*rows: tuple[StepKind, int, int, int]) -> Steps:
    kind, addr, size, stream = zip(*rows, strict=True)
    return Steps(
        np.array(kind, dtype=np.uint8),
        np.arange(len(rows)),
        np.array(addr, dtype=np.uint64),
        np.array(size, dtype=np.int64),
        np.array(stream, dtype=np.uint64),
    )


def kinds(steps: Steps, start: int, stop: int) -> list[int]:
    return [kind for kind, *_ in steps.rows(start, stop)]


def test_request_freed_by_the_next_step_is_brief() -> None:
    steps = steps_of((ALLOC, 1, 512, 0), (ALLOC, 2, 700, 0), (FREE, 2, 700, 0), (FREE, 1, 512, 0))
    assert kinds(steps, 0, 4) == [ALLOC, StepKind.BRIEF, FREE, FREE]
    assert steps.kind.tolist() == [ALLOC, ALLOC, FREE, FREE]


@pytest.mark.parametrize(
    "after",
    [
        (FREE, 2, 700, 0),
        (FREE, 1, 701, 0),
        (FREE, 1, 700, 5),
        (FREE_REQUEST, 1, 700, 0),
        (ALLOC, 1, 700, 0),
    ],
)
def test_other_requests_are_not_brief(after: tuple[StepKind, int, int, int]) -> None:
    """The next free has another block, size or stream, or does not complete at once."""
    assert kinds(steps_of((ALLOC, 1, 700, 0), after), 0, 2) == [ALLOC, after[0]]


def test_request_whose_free_is_outside_the_rows_is_not_brief() -> None:
    """The loop runs the free together with the request."""
    steps = steps_of((ALLOC, 1, 700, 0), (FREE, 1, 700, 0), (ALLOC, 1, 700, 0), (FREE, 1, 700, 0))
    assert kinds(steps, 0, 3) == [StepKind.BRIEF, FREE, ALLOC]
    assert kinds(steps, 3, 4) == [FREE]
    assert kinds(steps, 2, 2) == []
