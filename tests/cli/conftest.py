"""Two words for the tests of the command line: `traces`, where the recordings are, and `cli`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from allocsim.cli import main


@dataclass(frozen=True, slots=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def traces() -> Path:
    """The folder of the recordings in the tree."""
    return Path(__file__).parents[2] / "traces"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs a command line in this process."""

    def run(*argv: object) -> Done:
        capsys.readouterr()
        code = main([str(argument) for argument in argv])
        return Done(code, *capsys.readouterr())

    return run
