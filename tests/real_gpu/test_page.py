"""The page, its details and the summary in README.md agree with the recordings of the card."""

from __future__ import annotations

import pytest

from benchmarks.driver_times import H200
from benchmarks.real_gpu.__main__ import DETAILS, PAGE, README, details, page, readme

pytestmark = pytest.mark.skipif(
    not list(H200.glob("cases/*.npz.gz")), reason="the recordings are in the repository only"
)
AGAIN = "run python -m benchmarks.real_gpu docs"


def test_pages_have_the_tables_that_their_command_writes() -> None:
    # One test, because the tables of all three take most of the time.
    assert page() == PAGE.read_text(), AGAIN
    assert details() == DETAILS.read_text(), AGAIN
    assert readme() == README.read_text(), AGAIN
