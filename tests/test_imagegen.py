"""Published figures of real GPUs for the phantom GPU, and their error statistics.

The runs take minutes and need PyTorch; benchmarks/results/imagegen.md has the results.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.imagegen.rows import Outcome, Row, read_rows

ROWS = read_rows()
RUNNING = {"torch": "2.12.0", "transformers": "5.10.2", "diffusers": "0.38.0", "peft": "0.20.0"}


def the_row(experiment: str) -> Row:
    return next(row for row in ROWS if row.experiment == experiment)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.experiment)
def test_a_published_row_could_have_been_measured(row: Row) -> None:
    assert row.peak_reserved % 2**21 == 0  # segments are multiples of 2 MiB
    assert len(row.intervals) == row.steps // 100
    assert all(allocated < reserved <= row.peak_reserved for allocated, reserved in row.intervals)


def test_every_row_is_another_experiment() -> None:
    assert len({row.experiment for row in ROWS}) == len(ROWS) == 40
    assert the_row("lora/flux2-klein-default").address.endswith("lora--flux2-klein-default.json")


def test_a_prediction_tells_its_error_and_where_it_agrees() -> None:
    row = the_row("lora/flux2-klein-default")
    (allocated, reserved), second = row.intervals[:2]
    said = {
        "releases": RUNNING,
        "steps": 201,
        "peak_reserved": row.peak_reserved - 2**21,
        "intervals": [[allocated, reserved], [second[0], second[1] + 1]],
    }
    outcome = Outcome.of(row, said)
    assert outcome.error == -(2**21)
    assert outcome.share == pytest.approx(-0.000196, abs=1e-6)
    assert outcome.equal_means == (3, 4)
    assert outcome.other_releases == ("peft 0.20.0",)
    assert replace(outcome, peak_reserved=row.peak_reserved).error == 0
