"""A progress bar on standard error.

Rule: nothing is drawn unless standard error is a terminal and the work has gone on for a while.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

__all__ = ["ProgressBar"]

_PATIENCE = 0.5
"""Seconds of work before the bar appears."""


class ProgressBar:
    """One line that shows the stage of the work; a context manager that wipes it at the end."""

    def __init__(self) -> None:
        self._is_wanted = sys.stderr.isatty()
        self._begin = time.monotonic()
        self._resources = ExitStack()
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def stage(self, name: str) -> Callable[[int, int], None] | None:
        """What to call with (done, total) during the stage `name`; None without a terminal."""
        if not self._is_wanted:
            return None

        def show(done: int, total: int) -> None:
            if self._bar is None and time.monotonic() - self._begin > _PATIENCE:
                self._open()
            if self._bar is not None and self._task is not None:
                self._bar.update(self._task, description=name, completed=done, total=total)

        return show

    def trying(self, conf: str, more: str = "") -> Callable[[int, int], None] | None:
        """The stage in which the setting `conf` is replayed."""
        return self.stage(f"trying {conf[:32] or 'the defaults'}{more}")

    def counted(self, describe: Callable[[int, int, float], str]) -> Callable[[int, int], None]:
        """What to call with (done, total) where `describe(done, total, done a second)` names the
        stage."""
        begin = time.monotonic()

        def show(done: int, total: int) -> None:
            rate = done / max(time.monotonic() - begin, 1e-9)
            if stage := self.stage(describe(done, total, rate)):
                stage(done, total)

        return show

    def _open(self) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, TaskProgressColumn  # noqa: PLC0415
        from rich.progress import Progress as RichProgress  # noqa: PLC0415

        columns = ("{task.description}", BarColumn(bar_width=16), TaskProgressColumn())
        bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self._bar = self._resources.enter_context(bar)
        self._task = bar.add_task("")
