"""Page of rules of thumb and its details: their script generates them with all 24 numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rules import DETAILS, PAGE, figures, page


@pytest.mark.parametrize("path", [PAGE, DETAILS], ids=["page", "details"])
def test_the_page_shows_what_the_script_makes(path: Path) -> None:
    assert page(path) == path.read_text(), "run python -m benchmarks.rules docs"


def test_every_figure_of_the_user_is_there_and_the_laws_are_within_5_percent() -> None:
    found, shown = figures(), DETAILS.read_text()
    assert len(found) == 24
    for each in found:
        assert each.what in shown
        if each.low == each.high and each.measured:
            assert abs(each.errors[0]) < 5
        if each.low != each.high:
            assert each.why
            assert each.is_inside


def test_what_ran_out_of_memory_does_so_here_or_may() -> None:
    ran_out = [each for each in figures() if each.measured is None]
    assert len(ran_out) == 2
    assert all(each.high > 24_564 for each in ran_out)
