"""Tests of `allocsim plot`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PNG = b"\x89PNG\r\n\x1a\n"
RECORDING = "gpt2-ragged-oom-torch2.15.pickle.gz"


MORE = [
    ["memory", "--conf", "expandable_segments:True", "--dark"],
    ["segments", "--at", "oom"],
    ["sizes", "--dark", "--at", "end"],
    ["flame", "--at", "172", "--dark"],
]


@pytest.mark.parametrize(
    "options",
    [
        ["memory"],
        ["address-map", "--colour", "owner"],
        ["segments", "--at", "13695"],
        ["flame"],
        *(pytest.param(each, marks=pytest.mark.slow) for each in MORE),
    ],
    ids=" ".join,
)
def test_plot_writes_a_figure_and_prints_nothing(
    cli: Callable[..., Any], traces: Path, tmp_path: Path, options: list[str]
) -> None:
    file = tmp_path / "figure.png"
    kind, *rest = options
    outcome = cli("plot", kind, traces / RECORDING, "-o", file, *rest)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert file.read_bytes().startswith(PNG)
    assert len(file.read_bytes()) > 20_000


def test_plot_address_map_as_svg_has_an_image_and_text(
    cli: Callable[..., Any], traces: Path, tmp_path: Path
) -> None:
    file = tmp_path / "map.svg"
    assert cli("plot", "address-map", traces / RECORDING, "-o", file).code == 0
    text = file.read_text()
    assert "address, gaps removed (GiB)" in text
    assert "<image" in text
    assert len(text) < 1_000_000, "pixels, not a shape for each block"


def test_plot_front_draws_the_settings_of_a_search(
    cli: Callable[..., Any], traces: Path, tmp_path: Path
) -> None:
    tried, figure = tmp_path / "tried.jsonl", tmp_path / "front.png"
    options = ["--try", "expandable_segments:True", "--results", tried]
    assert cli("tune", traces / RECORDING, *options).code == 0
    assert cli("plot", "front", tried, "-o", figure).code == 0
    assert figure.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["memory", "-o", "x.pdf"], "x.pdf: a figure's name must end in .png or .svg"),
        (["segments", "-o", "x.png", "--at", "26064"], "expected 0 to 26063"),
        (["memory", "-o", "/nowhere/x.png"], "/nowhere/x.png: cannot be written"),
        (["flame", "-o", "x.png", "--conf", ""], "a flame graph shows the recorded run; leave"),
        (["flame", "-o", "x.png", "--at", "noon"], "'noon' is not a moment; expected peak, oom,"),
        (["pie", "-o", "x.png"], "invalid choice: 'pie'"),
        (["front", "-o", "x.png"], "cannot be read"),
        (["memory", "-o", "x.png", "--device", "3"], "device 3 is not in the recording"),
    ],
)
def test_plot_refuses_what_it_cannot_draw_in_a_sentence(
    cli: Callable[..., Any], traces: Path, options: list[str], sentence: str
) -> None:
    kind, *rest = options
    outcome = cli("plot", kind, traces / RECORDING, *rest)
    assert (outcome.code, outcome.out) == (2, "")
    assert sentence in outcome.err
    assert len(outcome.err.splitlines()) == 1
