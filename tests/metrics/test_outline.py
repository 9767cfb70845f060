"""Outline of a run, whose values bound the run."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from allocsim.metrics import outline_of
from allocsim.simulation import Timeline

STEPS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 1000), st.integers(0, 1000)))


@given(STEPS, st.integers(1, 5))
def test_no_row_is_higher_than_its_stretch_and_the_peak_is_the_peak(
    steps: list[tuple[int, int, int]], after: int
) -> None:
    entry = np.cumsum([gap for gap, _, _ in steps], dtype=np.int64) - 1
    columns = [np.array([row[at] for row in steps], dtype=np.int64) for at in (1, 2)]
    entries = int(entry[-1]) + after if steps else after
    found = outline_of(Timeline(entry, columns[1], columns[0]), entries)
    if not steps:
        assert found is None
        return
    assert found is not None
    assert found.entries == entries
    for values, outlined in zip(columns, (found.reserved, found.allocated), strict=True):
        assert max(outlined) == values.max()
        for at, value in zip(entry.tolist(), values.tolist(), strict=True):
            assert outlined[at * len(outlined) // entries] >= value


def test_outline_shows_memory_that_lasts_without_entries() -> None:
    entry, size = np.array([0, 999]), np.array([700, 500])
    found = outline_of(Timeline(entry, size, size), 1000)
    assert found is not None
    assert found.reserved == (700,) * len(found.reserved)
