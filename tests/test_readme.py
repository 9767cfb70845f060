"""The commands, snippets and outputs of the README are correct.

A ```text block shows the output of the block before it; a line "..." matches any lines. Commands
that set up an environment or run these tests are checked elsewhere (.ci/run).
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
TEST_COMMAND = (
    "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && "
    ".venv/bin/python -m pytest -n 2"
)
SETS_UP = ("python3 -m venv", ".venv/bin/pip install", ".venv/bin/python -m pytest")


@dataclass(frozen=True, slots=True)
class Block:
    """Fenced block, and the output shown after it."""

    language: str
    text: str
    output: str | None


def blocks() -> list[Block]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    following = [*found[1:], ("", "")]
    return [
        Block(language, text, after if next_language == "text" else None)
        for (language, text), (next_language, after) in zip(found, following, strict=True)
    ]


def commands() -> list[tuple[str, str | None]]:
    """Return every allocsim command in a shell block, with its shown output."""
    found = []
    for block in blocks():
        if block.language == "sh":
            for line in block.text.splitlines():
                for part in line.split(" && "):
                    assert part.startswith(("allocsim ", ".venv/bin/allocsim ", *SETS_UP)), part
                    if not part.startswith(SETS_UP):
                        found.append((part, block.output))
    return found


def shows(shown: str, output: str) -> bool:
    """Return True if `output` has the shown lines in order; "..." matches any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in shown.splitlines()
    )
    return re.fullmatch(pattern, output) is not None


def run(arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(("command", "shown"), commands())
def test_commands_do_what_the_readme_shows(command: str, shown: str | None) -> None:
    output = run(["-m", "allocsim", *shlex.split(command)[1:]])
    assert output
    if shown is not None:
        assert shows(shown, output), output


@pytest.mark.parametrize("block", [b for b in blocks() if b.language == "python"])
def test_snippets_print_what_the_readme_shows(block: Block) -> None:
    assert run(["-c", block.text]) == block.output


def test_ci_runs_the_readme_s_own_test_command() -> None:
    assert TEST_COMMAND in README
    assert TEST_COMMAND in (ROOT / ".ci" / "run").read_text()


def test_every_file_that_the_readme_names_is_there() -> None:
    for name in re.findall(r"`((?:traces|tests|benchmarks)/[\w./-]*|[A-Z]+\.md)`", README):
        assert (ROOT / name).exists(), name
