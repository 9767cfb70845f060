"""Repeated parts of a program and their blocks, compared with the program written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim.errors import ConfigError
from allocsim.fitting.laws import Repeated, Unrolled
from allocsim.fitting.laws.repeated import MOST_ROWS, Alive, blocks_of, links_of

LAYER, LOSS = 0, 1
"""Groups of blocks."""


def model(**columns: list[int]) -> Repeated:
    """Return the rows of layers, a loss, and backward, which frees the last layer's block first."""
    rows = {
        #           layer, layer (the part), loss, free loss, free layer (the part), free layer
        "requests": [1, 1, 1, 0, 0, 0],
        "group": [LAYER, LAYER, LOSS, LOSS, LAYER, LAYER],
        "value": [100, 100, 4, 0, 0, 0],
        "by_copy": [0] * 6,
        "by_copies": [0] * 6,
        **columns,
    }
    requests = np.array(rows["requests"], dtype=bool)
    group, value, by_copy, by_copies = (
        np.array(rows[name]) for name in ("group", "value", "by_copy", "by_copies")
    )
    parts = [(1, 2), (4, 5)]
    return Repeated(requests, ~requests, ~requests, group, value, by_copy, by_copies, parts)


def frees(made: Unrolled) -> list[int]:
    """Return the blocks in the order of their frees."""
    seen: set[int] = set()
    order = []
    for block in made.block.tolist():
        if block in seen:
            order.append(block)
        seen.add(block)
    return order


@given(st.integers(0, 40))
def test_layers_are_freed_from_the_last_to_the_first(copies: int) -> None:
    made = model().with_copies(copies)
    assert len(made.row) == 4 + 2 * copies
    loss = copies + 1
    assert frees(made) == [loss, *range(copies, -1, -1)]


@given(st.integers(1, 40))
def test_values_grow_with_the_copy_and_with_the_copies(copies: int) -> None:
    made = model(by_copy=[0, 7, 0, 0, 0, 0], by_copies=[0, 0, 5, 0, 0, 0]).with_copies(copies)
    assert made.value[: copies + 1].tolist() == [100, *(100 + 7 * i for i in range(copies))]
    assert made.value[copies + 1] == 4 + 5 * (copies - 1)


def test_a_free_of_nothing_that_is_there_names_its_row() -> None:
    with pytest.raises(LookupError) as caught:
        model(by_copy=[0, 0, 0, 0, 1, 0]).with_copies(3)
    assert caught.value.args == (4,)


def test_what_is_too_long_is_refused_before_it_is_made() -> None:
    with pytest.raises(ConfigError, match="steps are more than can be replayed"):
        model().with_copies(MOST_ROWS)


Row = tuple[bool, int, int]
"""True for a request; its group; for a free, the number of younger blocks in the group."""


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
