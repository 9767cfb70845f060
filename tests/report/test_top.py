"""Owners of memory as text, JSON, and stacks for flame graph viewers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from allocsim import load, top
from allocsim.analysis.top import Holding, Top
from allocsim.ownership import BY
from allocsim.recording import Frame
from allocsim.report.top import collapsed_text, speedscope_document
from allocsim.report.top import text as top_text

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def oom() -> Top:
    return top(load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz"), by="module")


@pytest.mark.parametrize("by", BY)
def test_top_text_fits_a_screen(by: str) -> None:
    recording = load(TRACES / "counted" / "bert-torch2.15.npz.gz")
    lines = top_text(top(recording, by=by)).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_last_row_of_top_counts_the_rows_left_out(oom: Top) -> None:
    text = top_text(oom, 2)
    rest = oom.rows[2:]
    assert f"… and {len(rest)} more (-n 0)" in text
    assert f"{sum(row.blocks for row in rest):>7}" in text
    assert "more: -n" not in top_text(oom, 0)


def test_heading_of_top_names_the_moment_and_the_failed_request(oom: Top) -> None:
    heading = " ".join(top_text(oom).splitlines()[:2])
    assert heading == (
        "Device 0 at the out-of-memory error (entry 26,059, step 7, backward): 4.63 GiB in 710 "
        "blocks; 693.24 MiB more were requested"
    )


def test_collapsed_stacks_add_up_and_begin_with_the_outermost_frame(oom: Top) -> None:
    lines = collapsed_text(oom).splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == oom.allocated_bytes
    assert sum(line.startswith("<module> (gpt.py:") for line in lines) == len(lines)


def test_collapsed_stacks_of_an_answer_by_category_begin_with_it(oom: Top) -> None:
    first = {
        line.partition(";")[0] for line in collapsed_text(replace(oom, by="category")).split("\n")
    }
    assert {"parameters", "optimizer state"} <= first


def test_collapsed_stacks_escape_separators(oom: Top) -> None:
    odd = Holding((Frame("a;b.py", "f\ng", 3),), "", "unknown", 512, 1)
    assert collapsed_text(replace(oom, holdings=(odd,))) == "f\\ng (a\\x3bb.py:3) 512\n"


def test_speedscope_document_has_the_fields_of_the_format(oom: Top) -> None:
    document = speedscope_document(oom)
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    (profile,) = document["profiles"]
    frames = document["shared"]["frames"]
    assert all({"name"} <= set(frame) <= {"name", "file", "line", "col"} for frame in frames)
    assert {"type", "name", "unit", "startValue", "endValue", "samples", "weights"} == set(profile)
    assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "bytes", 0)
    assert len(profile["samples"]) == len(profile["weights"])
    assert profile["endValue"] == sum(profile["weights"]) == oom.allocated_bytes
    assert all(0 <= index < len(frames) for stack in profile["samples"] for index in stack)
    outermost = {frames[stack[0]]["name"].partition(" ")[0] for stack in profile["samples"]}
    assert outermost == {"<module>"}
