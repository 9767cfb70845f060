"""Closed or unwritable standard streams give at most one sentence, and no internal error."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim.cli import _COMMANDS, main
from tests.cli.command_lines import COMMAND_LINES, words_of

ROOT = Path(__file__).parents[2]
CLOSED = "allocsim: standard output is closed, so the result cannot be printed\n"
LINES = {line.split()[0]: line for line in reversed(COMMAND_LINES)}
"""First line of each command."""
SILENT = {"report", "plot"}
"""Commands that print nothing on success."""
UNABLE = {"record", "crosscheck"}
"""Commands that need a program that is not available here."""


@pytest.fixture
def file(write: Callable[..., Path]) -> Path:
    return write(lambda gpu: [gpu.malloc(1 << 20), gpu.malloc(1 << 21)])


def test_closed_stream_tests_cover_every_command() -> None:
    assert set(LINES) == set(_COMMANDS)


@pytest.mark.parametrize("name", LINES)
def test_closed_standard_output_is_reported_in_a_sentence(
    name: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", said)
    code = main(words_of(LINES[name], file, tmp_path))
    assert sys.stdout is None, "left as it was"
    assert "Traceback" not in said.getvalue()
    if name in SILENT:
        assert (code, said.getvalue()) == (0, "")
    else:
        assert code == 2
        assert said.getvalue().endswith("\n") and said.getvalue().count("allocsim:") == 1
        assert name in UNABLE or said.getvalue() == CLOSED


@pytest.mark.parametrize("name", LINES)
def test_closed_standard_error_does_not_change_the_result(
    name: str,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended() -> tuple[int, str]:
        code = main(words_of(LINES[name], file, tmp_path))
        return code, re.sub(r"\([0-9.]+ s\)", "(TIME)", capsys.readouterr().out)

    before = ended()
    monkeypatch.setattr(sys, "stderr", None)
    assert ended() == before
    assert before[0] in ((2,) if name in UNABLE else (0, 1, 3))


class Full(io.StringIO):
    """Standard error on a full disk: every write fails."""

    def write(self, _text: str) -> int:
        raise OSError(28, "No space left on device")


def test_full_standard_error_does_not_change_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    assert main(["replay", str(tmp_path / "missing.pickle")]) == 2


def shell(line: str) -> Any:
    """Run a shell command line that contains `allocsim`."""
    line = line.replace("allocsim", f"{sys.executable} -m allocsim")
    return subprocess.run(
        ["/bin/sh", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ("allocsim --help >&-", 2, "", CLOSED),
        ("allocsim stats {file} >&-", 2, "", CLOSED),
        ("allocsim stats {file} >&- 2>&- <&-", 2, "", ""),
        ("allocsim lint {file} 2>&- | head -c 7", 0, "Verdict", ""),
        ("allocsim report {file} -o {out} --no-what-if >&- 2>&-", 0, "", ""),
        ("allocsim replay missing 2>&-", 2, "", ""),
        ("allocsim step <&-", 0, "", ""),
        (
            "allocsim stats {file} 1</dev/null",
            2,
            "",
            "allocsim: the output cannot be written (Bad file descriptor)\n",
        ),
    ],
)
def test_shell_closes_the_streams_of_a_command(  # noqa: PLR0917  (a row of the table)
    file: Path, tmp_path: Path, line: str, code: int, out: str, err: str
) -> None:
    done = shell(line.format(file=file, out=tmp_path / "page.html"))
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


def test_opened_file_never_gets_the_number_of_a_closed_stream(file: Path, tmp_path: Path) -> None:
    """The output of a started program must not go into the file."""
    code = (
        "import os; from allocsim.cli.output import standard_streams\n"
        "with standard_streams():\n"
        "    is_null = os.fstat(1).st_rdev == os.stat('/dev/null').st_rdev\n"
        f"    number = open({str(file)!r}).fileno()\n"
        f"    print(number > 2, is_null, file=open({str(tmp_path / 'said')!r}, 'w'))\n"
    )
    subprocess.run(
        ["/bin/sh", "-c", f'"{sys.executable}" -c "{code}" >&- 2>&- <&-'], cwd=ROOT, check=True
    )
    assert (tmp_path / "said").read_text() == "True True\n"
