"""Page of rules of thumb: its script generates the page with all 24 numbers."""

from __future__ import annotations

from pathlib import Path

from benchmarks.rules import PAGE, figures, page

SHOWN = (Path(__file__).parents[2] / "docs" / PAGE).read_text()


def test_the_page_shows_what_the_script_makes() -> None:
    assert page(SHOWN) == SHOWN


def test_every_figure_of_the_user_is_there_and_the_laws_are_within_5_percent() -> None:
    found = figures()
    assert len(found) == 24
    for each in found:
        assert each.what in SHOWN
        if each.low == each.high and each.measured:
            assert abs(each.errors[0]) < 5
        if each.low != each.high:
            assert each.why
            assert each.is_inside


def test_what_ran_out_of_memory_does_so_here_or_may() -> None:
    ran_out = [each for each in figures() if each.measured is None]
    assert len(ran_out) == 2
    assert all(each.high > 24_564 for each in ran_out)
