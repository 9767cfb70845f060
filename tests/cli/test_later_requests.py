"""Caveat that requests after a recorded error are not proved, in the answers of every command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
CAVEAT = "Later requests are not proved: the recording ends 4 entries after"


def answer(outcome: Any) -> str:
    assert outcome.err == ""
    lines = outcome.out.splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    return " ".join(outcome.out.split())


TUNE = ("tune", "--try", "expandable_segments:True")
RISK = ("risk", "--try", "expandable_segments:True")


@pytest.mark.parametrize("command", [("explain",), ("replay",), TUNE, RISK])
def test_first_screens_say_that_later_requests_are_not_proved(
    cli: Cli, traces: Path, command: tuple[str, ...]
) -> None:
    shown = answer(cli(*command, traces / "gpt2-ragged-oom-torch2.15.pickle.gz"))
    assert CAVEAT in shown
    assert "Held by" in shown


@pytest.mark.parametrize("command", [TUNE, RISK])
def test_recordings_without_an_error_have_no_caveat(
    cli: Cli, traces: Path, command: tuple[str, ...]
) -> None:
    path = traces / "gpt2-ragged-torch2.15.pickle.gz"
    assert "Later requests" not in answer(cli(*command, path))


def test_the_smallest_device_has_the_caveat_if_no_setting_helps(cli: Cli, traces: Path) -> None:
    shown = answer(cli(*RISK, traces / "gpt2-expandable-oom-torch2.15.pickle.gz"))
    assert "Later requests are not proved" in shown
