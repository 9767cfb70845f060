"""Progress bar on standard error.

Rule: the bar appears only if standard error is a terminal, and after half a second of work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

_PATIENCE = 0.5
"""Seconds of work before the bar appears."""


class ProgressBar:
    """Context manager of a bar on one line, with the name of the stage; removed at the end."""

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
        """Return a function of (done, total) that shows a stage; None without a terminal."""
        if not self._is_wanted:
            return None

        def show(done: int, total: int) -> None:
            if self._update is None and time.monotonic() - self._begin > _PATIENCE:
                self._open()
            if self._update is not None:
                self._update(description=name, completed=done, total=total)

        return show

    def trying(self, conf: str, more: str = "") -> Callable[[int, int], None] | None:
        """Return `stage("trying CONF")` for the replay of the setting `conf`."""
        return self.stage(f"trying {conf[:32] or 'the defaults'}{more}")

    def counted(self, describe: Callable[[int, int, float], str]) -> Callable[[int, int], None]:
        """Return a function of (done, total) that shows `describe(done, total, rate)`.

        The rate is the number of items done per second.
        """
        begin = time.monotonic()

        def show(done: int, total: int) -> None:
            rate = done / max(time.monotonic() - begin, 1e-9)
            if stage := self.stage(describe(done, total, rate)):
                stage(done, total)

        return show

    def _open(self) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, Progress, TaskProgressColumn  # noqa: PLC0415

        columns = ("{task.description}", BarColumn(bar_width=16), TaskProgressColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._resources.enter_context(bar)
        self._update = partial(bar.update, bar.add_task(""))
