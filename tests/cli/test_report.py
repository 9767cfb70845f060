"""Tests of `allocsim report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim.recording import write_npz
from allocsim.workload.programs import oom

from ..report.page import Page, of_two_devices

OOM = "gpt2-ragged-oom-torch2.15.pickle.gz"


def test_report_writes_a_page_and_prints_nothing(
    cli: Callable[..., Any], traces: Path, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    outcome = cli("report", traces / OOM, "-o", file, "--no-what-if")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    text = file.read_text(encoding="utf-8")
    assert "<title>gpt2-ragged-oom-torch2.15.pickle.gz: allocsim report</title>" in text
    assert "Other settings were not replayed" in text
    assert '<svg id="flame-graph"' in text
    assert len(text) < 400_000


def test_report_page_has_the_tried_setting(
    cli: Callable[..., Any], traces: Path, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    options = ["--try", "expandable_segments:True", "--conf", "max_split_size_mb:512"]
    assert cli("report", traces / OOM, "-o", file, *options).code == 0
    text = file.read_text(encoding="utf-8")
    assert text.count('<svg class="spark"') == 2
    assert "max_split_size_mb:512 <small>(this page)</small>" in text
    assert "Proof" in text
    assert "these are not the recorded settings" in text
    assert "The owners of the memory are known for the recorded run only" in text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["-o", "/nowhere/r.html"], "/nowhere/r.html cannot be written"),
        (["-o", "/"], "/ is a directory; expected the name of a file"),
        (["-o", "r.html", "--try", "nonsense:1"], "nonsense"),
    ],
)
def test_report_refuses_a_wrong_output_in_a_sentence(
    cli: Callable[..., Any], traces: Path, options: list[str], sentence: str
) -> None:
    outcome = cli("report", traces / OOM, "--no-what-if", *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert sentence in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_report_has_every_device_with_entries(cli: Callable[..., Any], tmp_path: Path) -> None:
    """The page has one line to paste for all devices."""
    recording, file = tmp_path / "two.npz", tmp_path / "two.html"
    write_npz(of_two_devices(oom()), recording)
    outcome = cli("report", recording, "-o", file)
    assert (outcome.code, outcome.err) == (0, "")
    page = Page(file.read_text(encoding="utf-8"))
    assert (page.wrong, page.open, len(page.ids)) == ([], [], len(set(page.ids)))
    assert page.about(0)["n"] == 8
    assert page.about(1)["n"] == 16
    assert page.words.count("To paste:") == 1
    assert page.words.count("Verdict:") == 2
    assert page.columns(1)["block.born"].tolist() == [1, 2, 4, 5, 7, 8]


def test_report_has_only_the_chosen_device(cli: Callable[..., Any], tmp_path: Path) -> None:
    recording, file = tmp_path / "two.npz", tmp_path / "one.html"
    write_npz(of_two_devices(oom()), recording)
    outcome = cli("report", recording, "-o", file, "--device", "1", "--no-what-if")
    assert "device 1 is shown; the recording also has device 0 (--device)" in outcome.err
    text = file.read_text(encoding="utf-8")
    assert 'id="about-1"' in text
    assert 'id="about-0"' not in text
    assert "data-tab=" not in text
