"""Text and JSON of a comparison."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from allocsim import compare, load
from allocsim.ownership import BY
from allocsim.report.compare import document as compare_document
from allocsim.report.compare import text as compare_text
from allocsim.results import Comparison

SIZED = Path(__file__).parents[2] / "traces" / "sized"


@lru_cache
def found(by: str, b: str = "batch3") -> Comparison:
    return compare(load(SIZED / "batch2.npz.gz"), load(SIZED / f"{b}.npz.gz"), by=by)


@pytest.mark.parametrize("by", BY)
def test_compare_text_fits_a_screen(by: str) -> None:
    lines = compare_text(found(by)).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_text_begins_with_the_verdict() -> None:
    text = " ".join(compare_text(found("line")).split())
    assert "Reserved 3.38 GiB -> 4.22 GiB at the peak: +860.00 MiB (+24.8%)" in text
    assert "Allocated 2.88 GiB -> 4.06 GiB at the peak: +1.18 GiB (+41.1%)" in text
    assert text.index("Reserved") < text.index("requested") < text.index("loss_utils.py:42")


def test_last_row_of_compare_counts_the_rows_left_out() -> None:
    answer = found("line")
    changed = [each for each in answer.changes if each.bytes]
    text = compare_text(answer, 2)
    assert f"… and {len(changed) - 2} more (-n 0)" in text
    assert f"{len(answer.changes) - len(changed)} other lines unchanged" in text
    assert "more: -n" not in compare_text(answer, 0)


def test_text_marks_new_and_gone_owners() -> None:
    text = compare_text(found("line", "batch2-checkpointing"), 0)
    assert "new: " in text
    assert "gone: " in text


def test_compare_json_changes_add_up_to_the_difference() -> None:
    document = compare_document(found("module"))
    rows = document["changes"]
    assert sum(row["bytes"] for row in rows) == document["allocated_change"]
    assert all(row["requested"] + row["rounding"] == row["bytes"] for row in rows)
    assert all(row["resized"] + row["more"] == row["bytes"] for row in rows)
    assert sum(document["parts"].values()) == document["peak_reserved_change"]
    reserved = [document[side]["peak_reserved_bytes"] for side in "ab"]
    assert reserved[1] - reserved[0] == document["peak_reserved_change"]
