"""The flame graph of a page without scripts: to scale, with names, escaped."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from allocsim import load, top
from allocsim.analysis.top import Holding, Top
from allocsim.recording import Frame
from allocsim.report.html.panels import flame_panel

from .page import Page

TRACES = Path(__file__).parents[2] / "traces"
BOX = re.compile(
    r'<svg class="(c\w)" x="([\d.]+)%" y="(\d+)" width="([\d.]+)%" [^>]* data-depth="(\d+)" '
    r'data-start="(\d+)" data-bytes="(\d+)"'
)


@pytest.fixture(scope="module")
def gpt2() -> Top:
    return top(load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz"))


def test_first_row_of_the_flame_panel_is_all_of_the_memory(gpt2: Top) -> None:
    boxes = BOX.findall(flame_panel(gpt2))
    first = [
        (float(x), float(width), int(size)) for _, x, y, width, _, _, size in boxes if y == "0"
    ]
    assert sum(size for _, _, size in first) == gpt2.allocated_bytes
    assert sum(width for _, width, _ in first) == pytest.approx(100, abs=0.01)
    for x, width, size in first:
        assert width == pytest.approx(100 * size / gpt2.allocated_bytes, abs=0.001)
        assert 0 <= x <= 100


def test_flame_panel_boxes_have_titles(gpt2: Top) -> None:
    page = Page(flame_panel(gpt2))
    assert (page.wrong, page.open) == ([], [])
    assert "gpt.py:12 forward: 1.06 GiB, 23.0%, 192 blocks, activations kept for backward" in (
        page.words
    )
    assert "4.63 GiB in 710 blocks, at the out-of-memory error (entry 26,059" in page.words
    assert "optimizer state" in page.words.partition("Find")[0], "in the legend"


def test_flame_panel_escapes_names(gpt2: Top) -> None:
    frame = Frame('/a"b/<script>alert(1)</script>.py', "f</text>", 3)
    odd = replace(gpt2, holdings=(Holding((frame,), "", "inputs", gpt2.allocated_bytes, 1),))
    page = Page(flame_panel(odd))
    assert (page.wrong, page.open, page.scripts) == ([], [], {})
    assert "f</text>" in page.words


def test_flame_panel_without_memory_says_so(gpt2: Top) -> None:
    nothing = replace(gpt2, holdings=(), allocated_bytes=0, blocks=0, categories={})
    assert "Nothing was allocated." in flame_panel(nothing)
