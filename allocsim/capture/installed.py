"""Capturing by environment variables, for programs that one may not edit.

Rule: without ALLOCSIM_CAPTURE nothing happens; what is wrong in a variable is logged, and the
program runs without a capture.

| variable | of `capture` |
|---|---|
| ALLOCSIM_CAPTURE | path |
| ALLOCSIM_CAPTURE_ON | on, commas between |
| ALLOCSIM_CAPTURE_STEPS | steps: one number for one of so many, or several with commas between |
| ALLOCSIM_CAPTURE_MAX_ENTRIES | max_entries |
| ALLOCSIM_CAPTURE_STACKS | stacks, "none" for None |
| ALLOCSIM_CAPTURE_MAX_DISK | max_disk |
"""

from __future__ import annotations

import os
from typing import Any

from allocsim.capture.quiet import quiet
from allocsim.capture.session import Capture, capture

__all__ = ["PREFIX", "install"]

PREFIX = "ALLOCSIM_CAPTURE"
_INSTALLED: list[Capture] = []


@quiet
def install() -> Capture | None:
    """Capture this program to its end, as the environment says; once, however often it is called.

    Returns the capture, None where ALLOCSIM_CAPTURE is not set or a variable is wrong.
    """
    path = os.environ.get(PREFIX)
    if not path or _INSTALLED:
        return _INSTALLED[0] if _INSTALLED else None
    installed = capture(path, **_options())
    installed.start()
    _INSTALLED.append(installed)
    return installed


def _options() -> dict[str, Any]:
    told = {
        name: os.environ[f"{PREFIX}_{name.upper()}"]
        for name in ("on", "steps", "max_entries", "stacks", "max_disk")
        if os.environ.get(f"{PREFIX}_{name.upper()}")
    }
    options: dict[str, Any] = dict(told)
    if "on" in told:
        options["on"] = told["on"].split(",")
    if "steps" in told:
        numbers = [int(text) for text in told["steps"].split(",")]
        options["steps"] = numbers if len(numbers) > 1 else numbers[0]
    if "max_entries" in told:
        options["max_entries"] = int(told["max_entries"])
    if told.get("stacks") == "none":
        options["stacks"] = None
    return options
