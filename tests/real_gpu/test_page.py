"""The page, its details and the summary in README.md agree with the recordings of the card."""

from __future__ import annotations

import pytest

from benchmarks.driver_times import H200
from benchmarks.real_gpu.__main__ import DETAILS, PAGE, README, details, page, readme

pytestmark = pytest.mark.skipif(
    not list(H200.glob("cases/*.npz.gz")), reason="the recordings are in the repository only"
)
AGAIN = "run python -m benchmarks.real_gpu docs"


def test_page_has_the_tables_that_its_command_writes() -> None:
    assert page() == PAGE.read_text(), AGAIN


def test_details_have_the_tables_that_the_command_writes() -> None:
    assert details() == DETAILS.read_text(), AGAIN


def test_readme_has_the_summary_that_the_command_writes() -> None:
    assert readme() == README.read_text(), AGAIN
