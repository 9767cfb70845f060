"""The report page: complete, without requests, exact, and readable without scripts."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from allocsim.analysis.explain import OomWatch, Shortage, explain_device, shortages_of
from allocsim.analysis.picture import Picture, picture_prepared, what_if
from allocsim.analysis.top import answers_of_run
from allocsim.recommend import Case, recommend
from allocsim.recording import Frame, Recording, load
from allocsim.replaying import Trials, prepare
from allocsim.report.html import DevicePage, html_report
from allocsim.report.html.embedding import Packer
from allocsim.simulation import Setting
from allocsim.units import MIB
from allocsim.workload.programs import oom
from allocsim.workload.recorder import Recorder

from .page import TYPES, Page

NODE = shutil.which("node")
OOM = Path(__file__).parents[2] / "traces" / "gpt2-ragged-oom-torch2.15.pickle.gz"


def looked_at(recording: Recording) -> tuple[Picture, tuple[Shortage, ...], Case]:
    (prepared,) = prepare(recording)
    watch = OomWatch()
    picture = picture_prepared(prepared, observers=(watch,))
    shortages = shortages_of(picture.device_run, picture.trace, watch)
    return picture, shortages, Case(Trials(prepared), picture.device_run)


def page_of(recording: Recording) -> tuple[Picture, Page]:
    picture, shortages, _ = looked_at(recording)
    return picture, Page(html_report([DevicePage(picture, shortages)]))


@pytest.fixture(scope="module")
def gpt2() -> tuple[Picture, str, Page]:
    """Return a real recording that ends out of memory, explained and under two other settings."""
    recording = load(OOM)
    picture, shortages, case = looked_at(recording)
    found = recommend([case], Setting(picture.run.conf))
    explanation = explain_device(case, picture.run, shortages, found)
    confs = ("expandable_segments:True", "max_split_size_mb:128")
    runs = what_if(case.trials, picture.run, [Setting(conf) for conf in confs])
    answers = answers_of_run(case.prepared, picture.device_run)
    text = html_report([DevicePage(picture, shortages, explanation, runs, answers)])
    return picture, text, Page(text)


@pytest.fixture(scope="module")
def classic() -> tuple[Picture, Page]:
    return page_of(oom())


def test_report_page_is_well_formed(gpt2: tuple[Picture, str, Page]) -> None:
    _, text, page = gpt2
    assert page.wrong == []
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert re.search(r"\$[a-z_]+\b(?!:)", page.words) is None, "every place of it is filled"


def test_no_script_passes_a_column_as_arguments() -> None:
    """A function takes some 120,000 arguments, and a column may have millions of entries."""
    scripts = [
        each for each in files("allocsim.report.html").iterdir() if each.name.endswith(".js")
    ]
    assert len(scripts) > 10
    assert not [each.name for each in scripts if "...data.columns." in each.read_text("utf-8")]


def test_page_loads_nothing(gpt2: tuple[Picture, str, Page]) -> None:
    _, text, page = gpt2
    assert {link[0] for link in page.asked} == {"#"}, "links within the page only"
    moments = {link for link in page.asked if re.fullmatch(r"#entry=\d+", link)}
    assert {link[1:] for link in page.asked if link not in moments} <= set(page.ids)
    assert "#entry=26059" in moments, "the error is one click away"
    assert "default-src 'none'" in text, "and its own policy forbids it"
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    code = re.sub(r"/\*.*?\*/", "", page.scripts["script"], flags=re.DOTALL)
    for word in ("http:", "https:", "fetch(", "XMLHttpRequest", "import(", "localStorage"):
        assert word not in code


def test_page_has_the_verdict_in_words(gpt2: tuple[Picture, str, Page]) -> None:
    _, _, page = gpt2
    words = " ".join(page.words.split())
    assert "Verdict: fragmentation likely. 694.00 MiB were requested" in words
    assert "26,064 of 26,064 entries and 9,105 of 9,105 addresses as recorded" in words
    assert "Ideal peak4.66 GiB (5,002,893,824 bytes)" in words.replace(
        "Ideal peak 4", "Ideal peak4"
    )
    assert "694.00 MiB tried <= 858.32 MiB = 462.32 MiB idle + 396.00 MiB free" in words
    assert "With these settings a device of 5.76 GiB is the smallest" in words


def test_page_tables_hold_the_figures(gpt2: tuple[Picture, str, Page]) -> None:
    picture, _, page = gpt2
    by_head = {table[0][0]: table for table in page.tables}
    blockers = by_head["block"]
    assert blockers[1][1:] == ["73.62 MiB", "145", "25,914", "gpt.py:19 forward"]
    assert blockers[1][0].startswith("0x700142e6c000")
    assert len(blockers) == 13, "a head and twelve blocks"
    assert by_head["memory"][-1] == ["total", "5.47 GiB"]
    memory = by_head["entries"]
    assert len(memory) == 41
    assert memory[0] == ["entries", "reserved", "requested", "allocated", "ideal"]
    assert memory[1][0] == "0 to 651"
    assert memory[22][:2] == ["13,692 to 14,343", "3.72 GiB to 5.46 GiB"]
    segments = by_head["segment"]
    assert len(picture.at().segments) == 96
    assert sum(int(row[1]) for row in segments[1:]) == 96
    assert segments[3][:3] == ["0x70010da00000", "2", "360.00 MiB"]
    assert len(segments) == 20, "a head and 19 kinds of segments"


def test_page_has_a_table_of_other_settings(gpt2: tuple[Picture, str, Page]) -> None:
    _, text, page = gpt2
    table = next(table for table in page.tables if table[0][0] == "setting")
    assert [row[:4] for row in table[1:]] == [
        ["PyTorch's defaults (this page)", "out of memory at entry 26,059", "-", "-"],
        ["expandable_segments:True", "no request failed", "5.36 GiB", "1"],
        ["max_split_size_mb:128", "out of memory at entry 26,059", "-", "-"],
    ]
    assert text.count('<svg class="spark"') == 3


def test_embedded_columns_equal_the_picture(classic: tuple[Picture, Page]) -> None:
    picture, page = classic
    columns = page.columns()
    assert columns["block.born"].tolist() == [1, 2, 4, 5, 7, 8]
    assert (columns["block.born"] + columns["block.lived"]).tolist() == [9, 16, 11, 16, 13, 16]
    assert (columns["block.place"] * 512 / 2**20).tolist() == [0, 9, 20, 29, 40, 49]
    assert columns["reserved"].tolist() == picture.curve.reserved.tolist()
    assert columns["ideal"].tolist() == picture.curve.ideal.tolist()
    assert columns["action"].tolist() == picture.trace.action.tolist()


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@pytest.mark.parametrize("first", [0x7F00 << 32, 0xFF00 << 48])
def test_page_has_exact_addresses(first: int) -> None:
    """Also 64-bit addresses, as on Intel GPUs, which exceed JavaScript's exact integers."""
    recorder = Recorder("1GiB", base_address=first)
    sizes = (3 * MIB, 512, 30 * MIB, 700_000, 3 * MIB)
    addresses = [recorder.malloc(size, -1) for size in sizes]
    picture, page = page_of(recorder.recording("oom", {}))
    assert picture.lives.blocks.address.tolist() == addresses
    named = {name: column.tolist() for name, column in page.columns().items()}
    code = (files("allocsim.report") / "html" / "view.js").read_text()
    code += f"data = {json.dumps({'columns': named, 'unit': 512})};"
    code += 'console.log(data.columns["block.place"].map((at) => hex(addressOf(at))).join(" "))'
    answers = subprocess.run([str(NODE), "-e", code], check=True, capture_output=True, text=True)
    assert answers.stdout.split() == [hex(address) for address in addresses]


def test_steps_and_phases_travel_as_columns(gpt2: tuple[Picture, str, Page]) -> None:
    _, text, page = gpt2
    about, columns = page.about(), page.columns()
    assert columns["step.start"].tolist()[:3] == [0, 4181, 8158]
    assert columns["step.number"].tolist()[:3] == [1, 2, 3]
    assert len(columns["phase.start"]) == len(columns["phase.kind"])
    kinds = {about["phases"][int(kind)] for kind in columns["phase.kind"]}
    assert {"forward", "backward", "optimizer"} < kinds
    assert text.count('fill="var(--phase-4)"') == 7, "a backward pass a step, without scripts too"


def test_page_has_times_if_they_are_recorded(
    gpt2: tuple[Picture, str, Page], classic: tuple[Picture, Page]
) -> None:
    """A recording of the model has no times, since the model has no clock."""
    picture, _, page = gpt2
    time = page.columns()["time"]
    assert picture.trace.time_us is not None
    assert time[0] == 0
    assert time[-1] == 1_027_698
    assert (np.diff(time) >= 0).all()
    assert classic[0].trace.time_us is not None
    assert "time" not in classic[1].columns()


def test_page_of_a_what_if_replay_has_no_phases(classic: tuple[Picture, Page]) -> None:
    _, page = classic
    assert page.columns()["phase.start"].tolist() == []
    assert "entries 0 to 16 from left to right." in " ".join(page.words.split())


def test_curve_levels_keep_minima_and_maxima(gpt2: tuple[Picture, str, Page]) -> None:
    picture, _, page = gpt2
    columns = page.columns()
    for step in page.about()["levels"]:
        assert columns[f"reserved.high.{step}"].max() == picture.device_run.peak_reserved_bytes
    assert columns["allocated"].tolist() == picture.curve.allocated.tolist()
    assert columns["block.size"].sum() * 512 == picture.lives.blocks.size.sum()


def test_recording_text_cannot_add_markup_to_the_page() -> None:
    recording = oom()
    evil = "</script><script>alert(1)</script>\"'&\x1b[31m"
    table = recording.frame_table
    frames = tuple(Frame(evil, evil, frame.line) for frame in table.frames)
    table = dataclasses.replace(table, frames=frames)
    trace = dataclasses.replace(recording.devices[0], frame_table=table)
    hostile = dataclasses.replace(recording, path=evil, frame_table=table, devices=(trace,))
    picture, shortages, case = looked_at(hostile)
    answers = answers_of_run(case.prepared, picture.device_run)
    page = Page(html_report([DevicePage(picture, shortages, None, (), answers)]))
    assert any(evil.replace("\x1b", "\\x1b") in row[0] for table in page.tables for row in table)
    assert (page.wrong, page.open) == ([], [])
    assert set(page.scripts) == {"script", "about-0", "columns-0"}
    assert "alert(1)" not in page.scripts["script"]
    assert "\x1b" not in page.words
    assert picture.run.path == evil


def test_table_of_a_short_run_has_a_row_for_each_entry(classic: tuple[Picture, Page]) -> None:
    """Each row of the table is for one entry, not for a range of entries."""
    _, page = classic
    memory = next(table for table in page.tables if table[0][0] == "entries")
    assert [row[0] for row in memory[1:]] == [str(entry) for entry in range(16)]
    assert memory[9] == ["8", "60.00 MiB", "54.00 MiB", "54.00 MiB", "54.00 MiB"]
    assert "every 1 entries" not in page.words


def test_embedded_owners_name_the_line_of_each_block() -> None:
    """In the map, lines of code beyond the first six share a colour, but keep their names."""
    _, page = page_of(load(OOM))
    about = page.about()
    owners = [about["owners"][int(i)] for i in page.columns()["block.owner"]]
    assert "other lines" not in owners
    assert len(set(owners)) == len(about["owners"])


def test_page_of_a_run_without_errors_says_so() -> None:
    recording = load(OOM.with_name("gpt2-side-stream-torch2.15.pickle.gz"))
    _, page = page_of(recording)
    assert "No request failed." in page.words
    assert "Other settings were not replayed" in page.words
    assert page.wrong == []


def test_embedded_columns_unpack_to_the_same_numbers() -> None:
    packer = Packer()
    columns = {
        "small": np.array([3, 1, 2]),
        "none": np.empty(0, dtype=np.int64),
        "large": np.array([2**52, 0, -(2**40)]),
        "steps": np.arange(0, 10**9, 10**6),
    }
    for name, values in columns.items():
        packer.add(name, values)
    data = gzip.decompress(base64.b64decode(packer.text()))
    for name, values in columns.items():
        kind, length, offset = packer.index[name]
        assert isinstance(length, int)
        assert isinstance(offset, int)
        found = np.frombuffer(data, TYPES[str(kind)], length, offset).astype(np.float64)
        assert np.cumsum(found).tolist() == values.tolist()
    assert [packer.index[name][0] for name in columns] == ["int8", "int8", "float64", "int32"]
    with pytest.raises(ValueError, match="column huge has numbers above"):
        packer.add("huge", np.array([2**53 + 2]))
