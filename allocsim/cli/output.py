"""Standard streams of the process, the progress bar, and output to a terminal, a pipe or a file.

A character that the encoding of the output lacks, or that a terminal would interpret as a command,
is written as an escape.  No output overwrites an input.
"""

# A closed descriptor (0 to 2) is opened on the null device. Otherwise the next opened file would
# get its number, and libraries and child processes would write into that file.

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TextIO, cast

from allocsim.cli.options import UsageError

if TYPE_CHECKING:
    from allocsim.recording import Recording
    from allocsim.report import Answer


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
    """Send buffered output to the null device, so that Python's exit does not write it again."""
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


SCHEMA_VERSION = 1
"""Version of the JSON documents, raised when a key is removed or changes its meaning; see
docs/reference/versioning.md."""

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
"""Control characters except tab and line feed, and characters that reorder or hide text."""


def write(text: str) -> None:
    sys.stdout.write(shown(text, sys.stdout.encoding))


def shown(text: str, encoding: str | None) -> str:
    """Return `text` with escapes for characters that an output with this encoding cannot show."""
    encoding = encoding or "utf-8"
    text = _OBEYED.sub(lambda match: ascii(match[0])[1:-1], text)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def versioned(document: object) -> object:
    """Return `document`, or each document of a list, with `schema_version` as its first key."""
    if isinstance(document, list):
        return [versioned(each) for each in document]
    assert isinstance(document, dict)
    return {"schema_version": SCHEMA_VERSION, **document}


def write_json(document: object, *, indent: int | None = 2) -> None:
    """Write a JSON document of allocsim, with `schema_version`, to standard output."""
    write_other_json(versioned(document), indent=indent)


def write_other_json(document: object, *, indent: int | None = 2) -> None:
    """Write a JSON document in the format of another tool, without `schema_version`."""
    import json

    write(json.dumps(document, indent=indent) + "\n")


def write_warnings(warnings: Iterable[str]) -> None:
    for each in warnings:
        say(shown(f"allocsim: {each}\n", sys.stderr.encoding))


_STYLES = {"good": "bold green", "failure": "bold red", "paste": "bold cyan"}
"""Style (of the package rich) for each tone of a line; lines of other tones are plain."""


def write_screen(answer: Answer) -> None:
    if not sys.stdout.isatty():
        write(str(answer))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for line, tone in answer.lines:
        console.print(Text(shown(line, sys.stdout.encoding), style=_STYLES.get(tone, "")))


def write_report(
    arguments: argparse.Namespace, report: ModuleType, *result: object, **shown: object
) -> None:
    """Write the result of a command: as JSON with --json, else as text.

    report: module of `allocsim.report` that formats the result. If it has a function `screen` for a
        short answer, the full text is printed only with --verbose.
    shown: arguments that the text needs and the JSON does not, such as a number of rows.
    """
    if arguments.json:
        write_json(report.document(*result))
    elif arguments.__dict__.get("verbose", True) or not hasattr(report, "screen"):
        write(report.text(*result, **shown))
    else:
        write_screen(report.screen(*result, **shown))


@contextmanager
def writing(output: str | Path) -> Iterator[None]:
    """Turn an OSError in the `with` block into a UsageError that names the file `output`."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{output} cannot be written ({error.strerror})") from None


def save_page(page: str, output: str) -> None:
    with writing(output):
        Path(output).write_text(page, encoding="utf-8")


def refuse_output(output: str, read: Iterable[str] = (), suffixes: tuple[str, ...] = ()) -> None:
    """Raise UsageError if a command must not write the file `output`.

    read: files that the command will read.
    suffixes: allowed endings of `output`; () for any ending.
    """
    for each in read:
        refuse_input(output, each)
    if suffixes and not output.endswith(suffixes):
        *most, last = suffixes
        names = f"{', '.join(most)} or {last}" if most else last
        raise UsageError(f"{output} does not end in {names}")
    if Path(output).is_dir():
        raise UsageError(f"{output} is a directory; expected the name of a file")


def refuse_name(output: str, read: Iterable[str] = ()) -> None:
    """Raise UsageError if a command must not write a recording to the file `output`.

    The reason is that it is in `read`, has a wrong suffix, or is in a folder that does not exist.

    read: files that the command will read, and must not overwrite.
    """
    from allocsim.workload import SUFFIXES

    refuse_output(output, read, SUFFIXES)
    if not Path(output).absolute().parent.is_dir():
        raise UsageError(f"{output} cannot be written: its folder does not exist")


def save_recording(recording: Recording, output: str) -> None:
    from allocsim.workload import write_recording

    with writing(output):
        write_recording(recording, output)


def refuse_input(output: str, read: str) -> None:
    try:
        is_same = Path(output).samefile(read)
    except (OSError, ValueError):  # one of the files does not exist, or its name is impossible
        return
    if is_same:
        raise UsageError(f"output file {output} is also the input; expected another name")


_PATIENCE = 0.5
"""Seconds of work before the progress bar appears."""


class ProgressBar:
    """Progress bar on one line of a terminal, with the name of the work; a context manager."""

    def __init__(self) -> None:
        self._is_wanted = sys.stderr.isatty()
        self._begin = time.monotonic()
        self._resources = ExitStack()
        self._update: Callable[..., None] | None = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def stage(self, name: str) -> Callable[[int, int], None] | None:
        """Return a callback for (done, total) that shows progress; None if stderr is no terminal.

        name: name of the work, shown before the bar.
        """
        if not self._is_wanted:
            return None

        def show(done: int, total: int) -> None:
            if self._update is None and time.monotonic() - self._begin > _PATIENCE:
                self._open()
            if self._update is not None:
                self._update(description=name, completed=done, total=total)

        return show

    def trying(self, conf: str, more: str = "") -> Callable[[int, int], None] | None:
        return self.stage(f"trying {conf[:32] or 'the defaults'}{more}")

    def counted(self, describe: Callable[[int, int, float], str]) -> Callable[[int, int], None]:
        """Return a callback for (done, total) that shows progress with a text.

        describe: function from (done, total, items per second) to the text.
        """
        begin = time.monotonic()

        def show(done: int, total: int) -> None:
            rate = done / max(time.monotonic() - begin, 1e-9)
            if stage := self.stage(describe(done, total, rate)):
                stage(done, total)

        return show

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn

        columns = ("{task.description}", BarColumn(bar_width=16), TaskProgressColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._resources.enter_context(bar)
        self._update = partial(bar.update, bar.add_task(""))
