"""Tables of docs/reference/parallel.md and benchmarks/results agree with benchmarks.parallel."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

import pytest

from benchmarks.parallel import Real, measured, measured_lines, summary, truth, truth_lines

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "parallel.md").read_text()


def test_kept_results_are_those_of_todays_formulas() -> None:
    results = ROOT / "benchmarks" / "results"
    kept = (results / "parallel.txt").read_text()
    assert kept == "\n".join(measured_lines(markdown=False)) + "\n"
    kept = (results / "parallel-truth.txt").read_text()
    assert kept == "\n".join(truth_lines(markdown=False)) + "\n"


def test_every_measured_figure_is_in_the_ranges_of_the_page() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if re.match(r"\| [SANR]\d", line)]
    ranges = [(numbers(row[0]), row[0].strip()[0], errors_of(row[-1])) for row in rows]
    found = 0
    for each in measured():
        kind, number = each.row[0], int(each.row[1:])
        for (first, *_, last), letter, (lowest, *_, highest) in ranges:
            if letter == kind and first <= number <= last:
                assert lowest <= round(each.error, 4) <= highest, each.row
                found += 1
    assert found > 40
    assert "Megatron, 43 rows: median \N{MINUS SIGN}0.31 %, worst \N{MINUS SIGN}1.23 %" in PAGE


def numbers(cell: str) -> list[int]:
    """Return the first and last number of a cell such as "S1 to S4", or the only one twice."""
    found = [int(each) for each in re.findall(r"\d+", cell)]
    return [found[0], found[-1]]


def errors_of(cell: str) -> list[float]:
    """Return the lowest and highest error of a cell, as fractions."""
    found = [float(each) for each in re.findall(r"[+-][\d.]+(?=%)", cell)]
    return [round(found[0] / 100, 4), round(found[-1] / 100, 4)]


def test_formulas_meet_megatrons_rows_within_two_percent() -> None:
    errors = [each.error for each in measured() if each.row.startswith("S")]
    assert len(errors) == 43
    assert max(map(abs, errors)) < 0.013


def test_formulas_meet_llamas_on_one_card_to_some_megabytes() -> None:
    """The runs use one type; the rest of the difference is rounding and fragmentation."""
    real = [each for each in truth() if isinstance(each, Real) and "Llama" in each.what]
    plain = [each for each in real if "autocast" not in each.what]
    assert len(plain) == 13
    assert max(abs(each.requested - each.formula) for each in plain) < 4 << 20


def test_figures_without_a_formula_are_listed_with_a_reason() -> None:
    found = list(truth())
    reasons = [each for each in found if isinstance(each, str)]
    assert len(found) == 72
    assert all(": " in each for each in reasons)
    errors = [each.error for each in found if isinstance(each, Real)]
    assert abs(median(errors)) < 0.01


@pytest.mark.parametrize("markdown", [False, True])
def test_tables_are_text_or_markdown(markdown: bool) -> None:
    lines = list(measured_lines(markdown=markdown))
    assert lines[0].startswith("| row |" if markdown else "row ")
    assert lines[-1].startswith("torchtitan, 26 rows: ")


def test_a_summary_names_median_and_worst() -> None:
    assert summary([0.01, -0.03, 0.02]) == ("3 rows: median +1.00%, of sizes 2.00%, worst -3.00%")
