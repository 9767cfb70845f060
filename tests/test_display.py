"""Representations of results: one line, and a table in a notebook."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from allocsim import CachingAllocator, explain, load, replay, top, tune
from allocsim._repr import Shown
from allocsim.analysis.explain import explain_state
from allocsim.analysis.picture import picture_of, still_of
from allocsim.analysis.risk import risk_of
from allocsim.analysis.step import Request, step
from allocsim.results import Recording
from allocsim.units import MIB
from allocsim.workload import Recorder, oom

TRACES = Path(__file__).parents[1] / "traces"
TEXT = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; 7.00 GiB "
TEXT += "already allocated; 512.00 MiB free; 7.25 GiB reserved in total by PyTorch)"


KINDS = (
    *("Recording", "Run", "DeviceRun", "Verdict", "DeviceExplanation", "StateExplanation", "Top"),
    *("Risk", "Tuning", "Picture", "Still", "Decision"),
)


@pytest.fixture(scope="module")
def shown() -> dict[str, Shown]:
    """Return a result of every kind by its name, for the example `classic` if possible."""
    recording = oom()
    run = replay(recording)
    (explained,) = explain(recording)
    (verdict,) = explain(TEXT)
    gpu = CachingAllocator(record_history=True)
    (trace,) = recording.devices
    return {
        "Recording": recording,
        "Run": run,
        "DeviceRun": run.devices[0],
        "Verdict": verdict,
        "DeviceExplanation": explained,
        "StateExplanation": explain_state(recording, trace, 12 * MIB),
        "Top": top(recording),
        "Risk": risk_of(recording, confs=[]),
        "Tuning": tune(recording, confs=["max_split_size_mb:64"]),
        "Picture": picture_of(recording),
        "Still": still_of(recording, 0),
        "Decision": step(gpu, Request("malloc", 3 * MIB)),
    }


class Table(HTMLParser):
    """Caption and cells of a table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.caption = ""
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self._in = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert all(name == "style" for name, _ in attrs)
        self.tags.add(tag)
        self._in = tag
        if tag in ("th", "td"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = self._in.removesuffix(tag)

    def handle_data(self, data: str) -> None:
        if self._in == "caption":
            self.caption += data
        elif self._in in ("th", "td"):
            self.cells[-1] += data


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_is_one_line_that_begins_with_its_name(shown: dict[str, Shown], kind: str) -> None:
    line = repr(shown[kind])
    assert line == f"{kind}({shown[kind].headline()})"
    assert line.isprintable()
    assert len(line) < 250


@pytest.mark.parametrize("kind", KINDS)
def test_a_notebook_shows_the_line_and_a_table(shown: dict[str, Shown], kind: str) -> None:
    table = Table(shown[kind]._repr_html_())
    assert table.caption == shown[kind].headline()
    assert table.tags <= {"table", "caption", "tbody", "tr", "th", "td"}
    pairs = [pair for row in shown[kind].figures_shown() for pair in row]
    assert table.cells == pairs
    assert pairs


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Recording", "synth oom: device 0: 16 entries, 3 segments, 60.00 MiB"),
        ("Run", "16 of 16 entries as recorded; 60.00 MiB reserved at the peak; 1 out-of-memory"),
        ("Verdict", "full: 2.00 GiB tried > 768.00 MiB = 256.00 MiB idle + 512.00 MiB free"),
        ("DeviceExplanation", "device 0: fragmentation at entry 15, 12.00 MiB tried"),
        ("StateExplanation", "12.00 MiB: refused, fragmentation; 9.00 MiB would be answered"),
        ("Top", "device 0, oom (entry 15): 27.00 MiB in 3 blocks, by line; 27.00 MiB "),
        ("Risk", "; 0 bytes of headroom at entry "),
        ("Picture", "synth oom: 6 blocks, 16 entries; device 0: "),
        ("Still", "synth oom, device 0: 60.00 MiB in 3 segments"),
        ("Decision", "malloc at 0x0: rounding, pool, no fit, cudaMalloc, split"),
    ],
)
def test_the_line_has_the_verdict_and_its_figures(
    shown: dict[str, Shown], kind: str, words: str
) -> None:
    assert words in repr(shown[kind])


def test_a_setting_that_helps_is_named() -> None:
    recording = load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz")
    found = tune(recording, confs=["expandable_segments:True"])
    assert repr(found).startswith("Tuning(expandable_segments:True of 2 settings: ")


def test_names_from_a_recording_are_neither_tags_nor_commands() -> None:
    recorder = Recorder("1GiB")
    recorder.malloc(MIB, recorder.code("<script>alert(1)</script>.py", "f\x1b[2J\n", 3))
    recording: Recording = replace(recorder.recording("test", {}), path="<b>x</b>\x07.pickle")
    for result in (recording, replay(recording), top(recording), picture_of(recording)):
        assert repr(result).isprintable()
        assert Table(result._repr_html_()).tags <= {"table", "caption", "tbody", "tr", "th", "td"}
        assert "\x1b" not in result._repr_html_()


def test_a_very_long_line_is_cut() -> None:
    recording = replace(oom(), path="x" * 5000)
    assert len(repr(recording)) < 350
