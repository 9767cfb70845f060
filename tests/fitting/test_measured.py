"""Numbers that others measured: none is omitted, and the page shows the stored results."""

from __future__ import annotations

import shlex

import pytest

from benchmarks.measured.__main__ import (
    PAGE,
    PROGRAMS,
    Figure,
    Result,
    error_percent,
    figures,
    page,
    results,
    table,
)


def test_measured_figure_has_a_program_or_a_reason() -> None:
    for each in figures():
        program = shlex.split(each.program)[:1]
        assert program or each.why, each.row
        assert all((PROGRAMS / name).is_file() for name in program), each.row


def test_measured_figure_is_named_once_with_its_source() -> None:
    found = figures()
    assert len({(each.row, each.figure) for each in found}) == len(found)
    assert all(each.source for each in found)


def test_kept_result_belongs_to_a_figure_with_a_program() -> None:
    with_program = {(each.row, each.figure) for each in figures() if each.program}
    assert results().keys() <= with_program


def test_page_shows_every_measured_figure() -> None:
    text = PAGE.read_text()
    assert page(text) == text
    assert "\n".join(table(figures())) in text


@pytest.mark.parametrize(
    ("predicted", "percent"), [(900, -10.0), (1000, 0.0), (1100, 10.0), (None, None)]
)
def test_measured_error_is_signed(predicted: int | None, percent: float | None) -> None:
    figure = Figure("X1", "m", "s", "g", "r", "allocated", 1000, 0, "source", "p.py", "A100", "")
    found = error_percent(figure, Result("X1", "allocated", predicted, "torch", ""))
    assert found == (None if percent is None else pytest.approx(percent))
