"""The standard streams of the process, each of which may be closed.

Rule: a command always has three streams.  A closed standard input reads as empty, what goes to a
closed standard error is dropped, and printing to a closed standard output is a UsageError: a result
that nobody can read is a command that did not do its work.

A closed descriptor is opened on the null device as well, so that no file that is opened later gets
its number and with it the output of a library or of a program that is started.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

from allocsim.cli.usage import UsageError

__all__ = ["discard_output", "say", "standard_streams"]

_ENCODING = "utf-8"


class _NoOutput(io.TextIOBase):
    """A standard output that is closed."""

    encoding = _ENCODING

    def write(self, _text: str) -> int:
        raise UsageError("standard output is closed, so the result cannot be printed")


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Replace the standard streams that are closed; restore them at the end."""
    before = sys.stdin, sys.stdout, sys.stderr
    if None in before:
        _occupy_descriptors()
    with contextlib.ExitStack() as opened:

        def null(mode: str) -> TextIO:
            return cast(
                TextIO, opened.enter_context(Path(os.devnull).open(mode, encoding=_ENCODING))
            )

        if sys.stdin is None:
            sys.stdin = null("r")
        if sys.stdout is None:
            sys.stdout = _NoOutput()
        if sys.stderr is None:
            sys.stderr = null("w")
        try:
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = before


def _occupy_descriptors() -> None:
    """Open the null device on each of the descriptors 0 to 2 that is closed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            os.set_inheritable(descriptor, True)


def discard_output() -> None:
    """Send what standard output still holds to the null device.

    The interpreter flushes once more at exit, and would complain of an output that failed.
    """
    with contextlib.suppress(OSError, ValueError):
        descriptor = sys.stdout.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)


def say(text: str) -> None:
    """Write `text` to standard error; drop it if that cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
