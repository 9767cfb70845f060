"""First panel of a report: verdict, setting to paste, owners of the memory, in that order."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import Any

import pytest

from allocsim import load
from allocsim.analysis.explain import DeviceExplanation, explain_device
from allocsim.analysis.top import StackAnswers, TopRow, answers_of_run
from allocsim.recommend import Offer, Recommendation, WhyNot, recommend
from allocsim.replaying import Trial
from allocsim.report.html import DevicePage, html_report
from allocsim.report.html.panels import owners_tables, to_paste
from allocsim.simulation import Setting
from allocsim.units import MIB
from allocsim.workload.programs import oom

from .page import Page
from .test_html_report import OOM, looked_at

LINE = "export PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:4"


@pytest.fixture(scope="module")
def explained() -> tuple[DevicePage, DeviceExplanation]:
    """Return a run of sixteen entries that ends out of memory, and the setting that helps."""
    picture, shortages, case = looked_at(oom())
    found = recommend([case], Setting(picture.run.conf))
    answers = answers_of_run(case.prepared, picture.device_run)
    explanation = explain_device(case, picture.run, shortages, found)
    return DevicePage(picture, shortages, explanation, (), answers), explanation


@pytest.fixture(scope="module")
def gpt2() -> StackAnswers:
    picture, _, case = looked_at(load(OOM))
    return answers_of_run(case.prepared, picture.device_run)


def test_page_begins_with_the_answer(
    explained: tuple[DevicePage, DeviceExplanation],
) -> None:
    text = html_report([explained[0]])
    order = ["<h1>", "Verdict:", "To paste:", LINE, 'id="owners"', 'id="time"', 'id="map"']
    order += ['id="state"', 'id="overview"']
    places = [text.index(each) for each in order]
    assert places == sorted(places)


def test_panel_offers_a_proved_line_for_every_shell(
    explained: tuple[DevicePage, DeviceExplanation],
) -> None:
    panel = to_paste([explained[1]])
    assert (
        "Proved: a replay under this setting serves every request, including the failed one"
        in panel
    )
    copied = [html.unescape(each) for each in re.findall(r'data-copy="([^"]*)"', panel)]
    assert copied == [
        LINE,
        "$env:PYTORCH_CUDA_ALLOC_CONF = 'roundup_power2_divisions:4'",
        'set "PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:4"',
        'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:4"',
    ]


def test_panel_does_not_call_an_unproved_line_proved(
    explained: tuple[DevicePage, DeviceExplanation],
) -> None:
    """In a recording that starts mid-run, the setting saves nothing for one initial state."""
    explanation = explained[1]
    best = explanation.recommendation.best
    assert best is not None
    (trial,) = best.trials

    def offer(conf: str, **peaks: Any) -> Offer:
        made: Trial = replace(trial, conf=conf, oom_entry=None, **peaks)
        return Offer(Setting(conf), (made,))

    found = Recommendation(
        offer("", peak_reserved_bytes=90 * MIB),
        offer(best.setting.conf, peak_reserved_bytes=60 * MIB, peak_kept=90 * MIB,
              peak_anew=60 * MIB),
        since="2.1",
    )  # fmt: skip
    assert not found.is_sure
    panel = to_paste([replace(explanation, recommendation=found)])
    assert "Likely, not proved: a replay under this setting" in panel
    assert "Proved:" not in panel
    assert LINE in panel


def test_panel_gives_the_reason_for_no_setting(
    explained: tuple[DevicePage, DeviceExplanation],
) -> None:
    explanation = explained[1]
    none = replace(explanation.recommendation, best=None, why_not=WhyNot.FULL)
    panel = to_paste([replace(explanation, recommendation=none)])
    assert "nothing: what is in use at once is more than the device has." in panel
    assert "<button" not in panel
    assert "not looked for" in to_paste([])


def test_panel_lists_owners_by_line_and_by_category(gpt2: StackAnswers) -> None:
    by_line, by_category = Page(owners_tables(gpt2.tops)).tables
    assert by_line[0] == ["line", "size", "share", "blocks", "largest", "category"]
    assert by_line[1] == [
        "gpt.py:32 <module>", "1.22 GiB", "26.3%", "298", "148.00 MiB", "optimizer state",
    ]  # fmt: skip
    assert by_category[0][-1] == "where most of it is"
    assert by_category[1][:3] == ["activations kept for backward", "2.13 GiB", "45.9%"]
    assert len(by_line) == 10


def test_owners_table_counts_the_rows_left_out(gpt2: StackAnswers) -> None:
    """Names from a recording are escaped."""
    (top, _) = gpt2.tops
    many = tuple(
        TopRow(f"<b>{i}</b>", "<i>", 1024, 1, 1024, {"<i>": 1024}, "") for i in range(2_010)
    )
    text = owners_tables([replace(top, rows=many)])
    page = Page(text)
    assert "the 2,000 largest of 2,010; the others hold 10.00 KiB" in page.words
    assert page.tables[0][2000][0] == "<b>1999</b>"
    assert (page.wrong, "<b>" in text, "<i>" in text) == ([], False, False)


def test_panel_has_no_table_for_a_moment_without_blocks(gpt2: StackAnswers) -> None:
    nothing = replace(gpt2.tops[0], rows=(), allocated_bytes=0, blocks=0)
    assert "Nothing was allocated." in owners_tables([nothing])
