"""Start a capture from environment variables, for programs that cannot be edited.

Rule: without ALLOCSIM_CAPTURE nothing happens.  An invalid variable is logged, and the program runs
without a capture.

| variable | option of `capture` |
|---|---|
| ALLOCSIM_CAPTURE | path |
| ALLOCSIM_CAPTURE_ON | on, separated by commas |
| ALLOCSIM_CAPTURE_STEPS | steps: one number for every nth step, or several separated by commas |
| ALLOCSIM_CAPTURE_MAX_ENTRIES | max_entries |
| ALLOCSIM_CAPTURE_STACKS | stacks, "none" for None |
| ALLOCSIM_CAPTURE_MAX_DISK | max_disk |
"""

from __future__ import annotations

import os
from typing import Any

from allocsim.capture.recorder import quiet
from allocsim.capture.session import Capture, capture

PREFIX = "ALLOCSIM_CAPTURE"
_INSTALLED: list[Capture] = []


@quiet
def install() -> Capture | None:
    """Capture this program to its end with the options in the environment.

    Return the capture; None if ALLOCSIM_CAPTURE is not set or a variable is invalid.
    """
    path = os.environ.get(PREFIX)
    if not path or _INSTALLED:
        return _INSTALLED[0] if _INSTALLED else None
    installed = capture(path, **_options())
    installed.start()
    _INSTALLED.append(installed)
    return installed


def _options() -> dict[str, Any]:
    given = {
        name: os.environ[f"{PREFIX}_{name.upper()}"]
        for name in ("on", "steps", "max_entries", "stacks", "max_disk")
        if os.environ.get(f"{PREFIX}_{name.upper()}")
    }
    options: dict[str, Any] = dict(given)
    if "on" in given:
        options["on"] = given["on"].split(",")
    if "steps" in given:
        numbers = [int(text) for text in given["steps"].split(",")]
        options["steps"] = numbers if len(numbers) > 1 else numbers[0]
    if "max_entries" in given:
        options["max_entries"] = int(given["max_entries"])
    if given.get("stacks") == "none":
        options["stacks"] = None
    return options
