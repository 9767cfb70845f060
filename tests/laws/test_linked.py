"""Blocks of a repeated part, resolved once, compared with the program written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim.fitting.laws.linked import Alive, links_of
from allocsim.fitting.laws.repeated import blocks_of

Row = tuple[bool, int, int]
"""True for a request, group, and for a free the number of younger blocks."""


@st.composite
def stretches(draw: st.DrawFn) -> list[list[Row]]:
    """Draw parts that repeat; three rows request and two free, so that live blocks exist."""
    groups = st.integers(0, 2)
    requests = [(True, draw(groups), 0) for _ in range(40)]
    bodies: list[list[Row]] = []
    for _ in range(draw(st.integers(1, 3))):
        body = draw(st.lists(groups, min_size=4, max_size=12))
        rows: list[Row] = [(True, group, 0) for group in body]
        for group in draw(st.lists(st.sampled_from(body), max_size=3)):
            place = draw(st.integers(0, len(rows)))
            rows.insert(place, (False, group, draw(st.integers(0, 2))))
        bodies.append(rows)
    order = draw(st.lists(st.integers(0, len(bodies) - 1), max_size=6))
    start = [(True, group, 0) for group in range(3) for _ in range(20)]
    return [start + requests, *(bodies[number] for number in order)]


def columns(rows: list[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    requests, group, younger = (np.array(column) for column in zip(*rows, strict=True))
    return requests.astype(bool), ~requests.astype(bool), group, younger


@given(stretches())
def test_each_stretch_means_the_blocks_that_the_whole_program_means(
    parts: list[list[Row]],
) -> None:
    requests, frees, group, younger = columns([row for part in parts for row in part])
    whole = blocks_of(requests, frees, frees, group, younger)
    alive = Alive()
    known = {tuple(part): links_of(*columns(part)) for part in parts}
    found = [alive.blocks(known[tuple(part)]) for part in parts]
    assert np.concatenate(found).tolist() == whole.tolist()


@pytest.mark.parametrize("younger", [1, -1, 5])
def test_a_free_of_no_block_that_is_there_is_an_error(younger: int) -> None:
    links = links_of(*columns([(True, 0, 0), (False, 0, younger)]))
    with pytest.raises(LookupError, match="1"):
        Alive().blocks(links)
