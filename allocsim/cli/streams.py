"""Standard streams of the process, some of them possibly closed.

Rule: a command always has three streams. A closed standard input reads as empty. Text for a closed
standard error is dropped. Printing to a closed standard output raises UsageError, because nobody
can read the result.

A closed descriptor (0 to 2) is opened on the null device. Otherwise the next opened file would get
its number, and libraries and child processes would write their output into that file.
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

_ENCODING = "utf-8"


class _NoOutput(io.TextIOBase):
    """Stand-in for a closed standard output; writing to it raises UsageError."""

    encoding = _ENCODING

    def write(self, _text: str) -> int:
        raise UsageError("standard output is closed, so the result cannot be printed")


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Replace closed standard streams in a `with` block; restore them at its end."""
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
    """Send the buffered text of standard output to the null device.

    Otherwise the interpreter would write it at exit, and report the same error again.
    """
    with contextlib.suppress(OSError, ValueError):
        descriptor = sys.stdout.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)


def say(text: str) -> None:
    """Write `text` to standard error; drop it if that fails."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
