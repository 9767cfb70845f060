"""Log errors of a capture instead of raising them in the program.

Rule: a wrapped function returns None instead of raising.  Only exceptions that are not errors, such
as a KeyboardInterrupt, reach the program.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any

LOG = logging.getLogger("allocsim.capture")
_said: set[str] = set()


def say_once(what: str, *values: object) -> None:
    """Log the warning `what` with `values`, unless `what` was logged before in this process."""
    if what not in _said:
        _said.add(what)
        with contextlib.suppress(Exception):  # a handler of the program may fail
            LOG.warning(what, *values)


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` so that its errors are logged and not raised."""

    @functools.wraps(function)
    def wrapped(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except Exception as error:
            name = function.__name__.strip("_")
            say_once(
                f"allocsim: {name} failed, the program goes on: %s: %s", type(error).__name__, error
            )
            return None

    return wrapped
