"""Every command refuses a wrong `-o` before it reads anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

COMMANDS = {
    "report": ["report", "{a}"],
    "plot": ["plot", "memory", "{a}"],
    "compare": ["compare", "{a}", "{b}"],
    "ranks": ["ranks", "{a}", "{b}"],
    "scale": ["scale", "{a}", "--at", "n=2", "{b}", "--at", "n=3", "--to", "n=4"],
    "synth": ["synth", "oom"],
}
ENDINGS = {
    "report": ".html",
    "plot": ".svg",
    "compare": ".svg",
    "ranks": ".html",
    "scale": ".npz",
    "synth": ".npz",
}
"""Ending of the output file of each command."""
OF_TWO = [name for name, words in COMMANDS.items() if "{b}" in words]


def command(name: str, *files: Path) -> list[str]:
    """Return the command line for `files`."""
    a, *more = files
    return [each.format(a=a, b=more[0] if more else a) for each in COMMANDS[name]]


def refused(done: Any, sentence: str) -> None:
    """Assert that the error is exactly this sentence."""
    assert (done.code, done.out, done.err) == (2, "", f"allocsim: {sentence}\n")


@pytest.mark.parametrize(
    ("name", "files"),
    [
        *((name, lambda read, _: (read,)) for name in ("report", "plot")),
        *((name, lambda read, other: (read, other)) for name in OF_TWO),
        *((name, lambda read, other: (other, read)) for name in OF_TWO),
    ],
)
def test_output_does_not_overwrite_an_input(
    cli: Cli, tmp_path: Path, name: str, files: Callable[[Path, Path], tuple[Path, ...]]
) -> None:
    """The output may be another name of the input file; a recording cannot be made again."""
    recording = tmp_path / f"run{ENDINGS[name]}"
    link = tmp_path / f"link{ENDINGS[name]}"
    recording.write_text("not looked at")
    link.symlink_to(recording)
    for output in (recording, link):
        done = cli(*command(name, *files(recording, tmp_path / "none")), "-o", output)
        refused(done, f"output file {output} is also the input; expected another name")
    assert recording.read_text() == "not looked at"


@pytest.mark.parametrize("name", COMMANDS)
def test_refuse_output_rejects_a_directory_before_reading_files(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    output = tmp_path / f"here{ENDINGS[name]}"
    output.mkdir()
    done = cli(*command(name, tmp_path / "none"), "-o", output)
    refused(done, f"{output} is a directory; expected the name of a file")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("plot", "x.pdf: a figure's name must end in .png or .svg"),
        ("compare", "x.pdf does not end in .html, .png or .svg"),
        ("ranks", "x.pdf does not end in .html"),
        ("scale", "x.pdf does not end in .pickle, .pkl, .pickle.gz, .pkl.gz or .npz"),
        ("synth", "x.pdf does not end in .pickle, .pkl, .pickle.gz, .pkl.gz or .npz"),
    ],
)
def test_refuse_output_rejects_a_wrong_ending_before_reading_files(
    cli: Cli, tmp_path: Path, name: str, sentence: str
) -> None:
    refused(cli(*command(name, tmp_path / "none"), "-o", "x.pdf"), sentence)


def test_report_accepts_a_page_of_any_name(cli: Cli, tmp_path: Path) -> None:
    done = cli(*command("report", tmp_path / "none"), "-o", tmp_path / "page")
    assert "none: does not exist" in done.err
