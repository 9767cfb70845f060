"""The page, its details and the summary in README.md agree with the recordings of the card."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from benchmarks.driver_times import H200
from benchmarks.real_gpu.__main__ import DETAILS, PAGE, README, details, page, readme
from benchmarks.real_gpu.cases import case_lines
from benchmarks.real_gpu.kernels import kernel_lines
from benchmarks.real_gpu.predictions import case_rows, read_predictions
from benchmarks.real_gpu.programs import Replayed, replayed, what_if_lines, what_ifs

pytestmark = pytest.mark.skipif(
    not list(H200.glob("cases/*.npz.gz")), reason="the recordings are in the repository only"
)
AGAIN = "run python -m benchmarks.real_gpu docs"


def missing(lines: Sequence[str]) -> list[str]:
    """Return the lines that the page of details lacks."""
    known = set(DETAILS.read_text().splitlines())
    return [line for line in lines if line not in known]


@pytest.mark.slow
def test_pages_have_the_tables_that_their_command_writes() -> None:
    # One test, because the tables of all three take most of the time.
    assert page() == PAGE.read_text(), AGAIN
    assert details() == DETAILS.read_text(), AGAIN
    assert readme() == README.read_text(), AGAIN


def test_details_have_the_tables_that_need_no_replay() -> None:
    predicted = read_predictions()
    assert not missing(case_lines(case_rows(H200), predicted["cases"])), AGAIN
    kernels = json.loads((H200 / "kernels.json").read_text())
    assert not missing(kernel_lines(kernels, predicted["kernels"])), AGAIN


def test_details_have_the_replays_of_a_sample() -> None:
    tried: list[Replayed] = [replayed(path) for path in sorted(H200.rglob("*.npz.gz"))[::8]]
    assert len(tried) > 5
    rows = [f"| {each.name} | {each.entries:,} | yes |  |" for each in tried if each.is_whole]
    assert len(rows) == len(tried)
    assert not missing(rows), AGAIN


def test_details_have_the_what_ifs_of_a_program() -> None:
    lines = what_if_lines(list(what_ifs(H200, "gpt2_training")))
    assert len(lines) == 2 + 4
    assert not missing(lines), AGAIN
