"""Text of a program, configuration or answer is escaped by `record`, `fit` and `plot`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from allocsim import CachingAllocator
from allocsim.fitting import CONFIGURATIONS
from allocsim.fitting.laws.stored import ProgramName
from allocsim.phantom import ProcessRecording, Recorded
from allocsim.phantom.installs import TorchInstall
from allocsim.units import MIB
from tests.cli.conftest import Done
from tests.cli.test_hostile_names import ESCAPES, assert_plain
from tests.fitting.conftest import Pretended, pretend
from tests.report.test_hostile_page import INJECTED, Tags

__all__ = ["pretend"]  # a fixture

Cli = Callable[..., Done]
Pretend = Callable[..., Pretended]

NAMES = (ESCAPES.replace("\0", ""), *(each.replace("/", "") for each in INJECTED))
"""Names that a file can have."""


def a_batch(allocator: CachingAllocator, _: str) -> int:
    allocator.malloc(1024 * MIB)
    return 0


def configured(folder: Path, name: str) -> Path:
    """Write a configuration whose name and texts are `name`."""
    place = folder / name
    place.mkdir()
    config = {**CONFIGURATIONS["gpt2"], "_name_or_path": name, "torch_dtype": name}
    (place / "config.json").write_text(json.dumps(config))
    return place


# -- record ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["", "--json"])
def test_record_escapes_text_of_the_program(
    form: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report has the file, the error, lines that read values back, and missing libraries."""

    def recorded(_: object) -> Recorded:
        process = ProcessRecording(
            tmp_path / f"a{ESCAPES}",
            3,
            stopped_by="",
            oom_text=ESCAPES,
            reads_back=f"{ESCAPES}.py:3",
            guessed=ESCAPES,
        )
        return Recorded(1, (process,), TorchInstall("python", f"2.15{ESCAPES}", "13.2"))

    monkeypatch.setattr("allocsim.phantom.record", recorded)
    options = [form] if form else []
    done = cli("record", "--gpu", "L4", *options, "--", sys.executable, f"x{ESCAPES}.py")
    assert done.code == 1
    assert_plain(done.out + done.err)
    assert "owned" in (done.out if form else done.err)


def test_record_escapes_the_name_of_a_missing_command(cli: Cli) -> None:
    done = cli("record", "--gpu", "L4", "--", f"/nowhere/x{ESCAPES}")
    assert done.code == 2
    assert_plain(done.err)
    done = cli("record", "--gpu", ESCAPES, "--", sys.executable)
    assert done.code == 2
    assert_plain(done.err)


# -- fit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_errors_escape_the_name_of_a_configuration(
    name: str, cli: Cli, pretend: Pretend, tmp_path: Path
) -> None:
    pretended = pretend(a_batch)
    pretended.reads_back = f"{ESCAPES}.py:31"
    place = configured(tmp_path, name)
    for more in ((), ("--json",)):
        done = cli("fit", place, "--gpu", "L4", *more)
        assert done.code == 0, done.err
        assert_plain(done.out + done.err)


def test_last_output_of_a_failed_program_is_escaped(cli: Cli, pretend: Pretend) -> None:
    pretend(a_batch, f"Traceback ...\nValueError: {ESCAPES}\n")
    done = cli("fit", "gpt2", "--gpu", "L4")
    assert done.code == 2
    assert_plain(done.err)
    assert "owned" in done.err


@pytest.mark.parametrize("name", NAMES)
def test_page_of_a_hostile_program_has_no_further_tags(
    name: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ProgramName("gpt2_tied", "fp32", "sgd")
    monkeypatch.setattr("allocsim.fitting.calculator.known_programs", lambda: (one,))
    found = []
    for number, each in enumerate(("plain", name)):
        page = tmp_path / f"{number}.html"
        options = ("--gpu", "A10G", "--dtype", "fp32", "--optimizer", "sgd")
        done = cli("fit", "--html", page, configured(tmp_path, each), *options)
        assert done.code == 0, done.err
        assert_plain(done.out + done.err)
        found.append(Tags(page.read_text()))
    assert found[0].tags == found[1].tags
    assert found[0].attributes == found[1].attributes


# -- plot ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_figure_of_a_hostile_answer_shows_names_as_text(
    name: str, cli: Cli, pretend: Pretend, tmp_path: Path
) -> None:
    pretend(a_batch)
    answer, figure = tmp_path / "answer.json", tmp_path / "fit.svg"
    answer.write_text(cli("fit", configured(tmp_path, name), "--gpu", "L4", "--json").out)
    done = cli("plot", "fit", answer, "-o", figure)
    assert done.code == 0, done.err
    assert_plain(done.err + figure.read_text())
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(figure).iter()}  # noqa: S314
    assert not tags & {"script", "a", "img", "foreignObject"}
