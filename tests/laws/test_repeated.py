"""Repeated part of a program, compared with the program written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim.errors import ConfigError
from allocsim.fitting.laws import Repeated, Unrolled
from allocsim.fitting.laws.repeated import MOST_ROWS

LAYER, LOSS = 0, 1
"""Groups of blocks."""


def model(**columns: list[int]) -> Repeated:
    """Return layers, a loss, and backward, which frees the last layer's block first."""
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
