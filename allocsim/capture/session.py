"""Context manager that captures a program: it decides when to write the history, and where.

`capture` raises an exception for invalid arguments.  The returned `Capture` never raises one.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from allocsim.capture.files import AT_ERROR, About, Files, Written, described, rank_of
from allocsim.capture.recorder import LOG, RECORDER, Ring, quiet, say_once
from allocsim.units import format_size, parse_size

MAX_ENTRIES = 200_000
"""Default number of entries per device; docs/commands/capture.md gives the cost of an entry."""
MAX_DISK = "4GiB"
OCCASIONS = ("oom", "exit", "step")
PHASES = ("setup", "forward", "backward", "optimizer")
STACKS = ("python", "all", None)

_F = TypeVar("_F", bound=Callable[..., Any])
_LOCK = threading.RLock()
_ACTIVE: list[Capture] = []
_CHAINED: list[Any] = []
"""This module's sys.excepthook and the function that it replaced; empty if not installed."""


def capture(
    path: str | os.PathLike[str],
    on: str | Collection[str] = "oom",
    steps: int | Iterable[int] | None = None,
    max_entries: int = MAX_ENTRIES,
    stacks: str | None = "python",
    *,
    max_disk: int | str = MAX_DISK,
) -> Capture:
    """Return a context manager and decorator that records PyTorch's memory history to files.

        with capture("run.pickle", on=("step", "exit"), steps=100) as recording:
            for batch in batches:
                recording.step()
                ...

    path: file name, to which rank and occasion are added ("run-rank0-step3-oom.pickle"), or a
        folder.
    on: one or several occasions on which to write a file: "oom", "exit" and "step".  At an
        out-of-memory error, a file is always written, before PyTorch raises the exception.
    steps: for on="step", the numbers of the training steps to write, or an integer n to write every
        nth step.  The file of a step is written when the next step begins.
    max_entries: number of entries that each device's history can hold; when it is full, the oldest
        entries are overwritten.
    stacks: stacks to record: "python", "all" (also C++ stacks, which take far longer) or None.
    max_disk: largest total size of all files, in bytes or as text such as "4GiB"; the oldest files
        are removed to make room for new ones.

    Raises ValueError for an invalid argument.  The returned object raises no exceptions.
    """
    ring = Ring(max_entries, stacks)
    return Capture(path, on=on, steps=steps, ring=ring, max_disk=max_disk)


class Capture:
    """Recorder of the memory history of a running program: a context manager and decorator.

    Methods `start` and `stop` can be called in place of a `with` statement, also repeatedly.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        on: str | Collection[str],
        steps: int | Iterable[int] | None,
        ring: Ring,
        max_disk: int | str,
    ) -> None:
        self.on = (on,) if isinstance(on, str) else tuple(on)
        if not self.on or not set(self.on) <= set(OCCASIONS):
            raise ValueError(f"on is {on!r}, expected one or several of {', '.join(OCCASIONS)}")
        if ring.stacks not in STACKS:
            raise ValueError(f"stacks is {ring.stacks!r}, expected 'python', 'all' or None")
        if type(ring.max_entries) is not int or ring.max_entries < 1:
            raise ValueError(f"max_entries is {ring.max_entries!r}, expected 1 or more")
        self.steps = steps if steps is None or isinstance(steps, int) else frozenset(steps)
        if ("step" in self.on) != (steps is not None) or (isinstance(steps, int) and steps < 1):
            raise ValueError(
                f"steps is {steps!r}, expected step numbers with on='step', and None without it"
            )
        self.path = path
        self.ring = ring
        self._first_pid = 0
        self.max_disk = parse_size(max_disk) if isinstance(max_disk, str) else int(max_disk)
        self._clear()

    def _clear(self) -> None:
        self._files = Files(self.path, self.max_disk)
        self._pid = 0
        self._step: int | None = None
        self._phase = ""
        self._n_ooms = 0
        self._at_error: Written | None = None
        self._rank = ""
        self.exit_code: int | None = None

    @property
    def files(self) -> list[str]:
        """Paths of the written files that still exist, oldest first."""
        return [str(written.path) for written in self._files.written]

    @property
    def is_active(self) -> bool:
        return self._pid == os.getpid()

    @quiet
    def start(self) -> None:
        """Start to record now, or later when the program initialises the GPU."""
        if self.is_active:
            return
        self._clear()
        self._pid = self._first_pid = os.getpid()
        with _LOCK:
            if not _ACTIVE:
                _watch_exceptions()
            _ACTIVE.append(self)
        RECORDER.attach(self, self.ring)

    @quiet
    def stop(self) -> None:
        """Stop recording; first write files for the last step and the exit if `on` names them."""
        if not self.is_active:
            return
        try:
            self._end_step()
            if "exit" in self.on:
                self._save("at the end", "exit")
        finally:
            self._pid = 0
            with _LOCK:
                _ACTIVE[:] = [other for other in _ACTIVE if other is not self]
                if not _ACTIVE:
                    _unwatch_exceptions()
            RECORDER.detach(self)

    @quiet
    def step(self, number: int | None = None) -> None:
        """Mark the start of a training step.

        number: number of the step, from 1; None to add 1 to the number of the previous step.
        """
        if self.is_active:
            self._end_step()
            self._step = (self._step or 0) + 1 if number is None else int(number)
            self._phase = ""
            RECORDER.note("step", self._step)

    @quiet
    def phase(self, name: str) -> None:
        """Mark the start of a training phase: "setup", "forward", "backward" or "optimizer"."""
        if self.is_active and name in PHASES:
            self._phase = name
            RECORDER.note("phase", name)

    @quiet
    def save(self, label: str = "") -> str | None:
        """Write the history up to now and return the path of the file; None if nothing is recorded.

        label: text added to the end of the file name, after rank and step.
        """
        written = self._save("on request", label) if self.is_active else None
        return None if written is None else str(written.path)

    @quiet
    def failed(self, error: BaseException | None) -> None:
        """Add the text of an out-of-memory error to its file; do nothing for other errors.

        error: exception of the program; its causes are searched for the out-of-memory error.
        """
        text = _text_of(error)
        if text is None or not self.is_active:
            return
        if self._at_error is None:  # PyTorch has no callback for errors of this device
            self._on_error(-1, None)
        if self._at_error is not None:
            self._at_error.put_text(text)

    @quiet
    def on_out_of_memory(self, device: int, free: int) -> None:
        if self.is_active:
            self._on_error(device, free)

    def on_device(self) -> None:
        """Reset the capture if this process was forked, when it begins to use the GPU."""
        if not self.is_active:
            self._clear()
            self._pid = os.getpid()

    def moment(self) -> list[tuple[str, object]]:
        step = [] if self._step is None else [("step", self._step)]
        return [*step, *([("phase", self._phase)] if self._phase else [])]

    def __enter__(self) -> Capture:
        self.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.failed(error)
        self.stop()

    def __call__(self, function: _F) -> _F:
        """Return `function` wrapped in a new capture for each call (use as a decorator)."""

        def again() -> Capture:
            on, steps = self.on, self.steps
            return Capture(self.path, on=on, steps=steps, ring=self.ring, max_disk=self.max_disk)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **named: Any) -> Any:
                with again():
                    return await function(*args, **named)

            return awaited  # type: ignore[return-value]

        @functools.wraps(function)
        def called(*args: Any, **named: Any) -> Any:
            with again():
                return function(*args, **named)

        return called  # type: ignore[return-value]

    def _end_step(self) -> None:
        number = self._step
        if "step" not in self.on or number is None or self.steps is None:
            return
        is_wanted = (
            number % self.steps == 0 if isinstance(self.steps, int) else number in self.steps
        )
        if is_wanted:
            self._save("at the end", "")

    def _on_error(self, device: int, free: int | None) -> None:
        self._n_ooms += 1
        label = "oom" if self._n_ooms == 1 else f"oom{self._n_ooms}"
        written = self._save(AT_ERROR, label, device, free)
        if written is not None:
            self._at_error = written
            next_ = f"next: allocsim explain {written.path}"
            LOG.warning("allocsim: out of memory; wrote %s; %s", written.path, next_)

    def _save(
        self, occasion: str, label: str, device: int = -1, free: int | None = None
    ) -> Written | None:
        with _LOCK:
            began = time.monotonic()
            history = RECORDER.history()
            if history is None:
                return None
            self._rank = rank_of(RECORDER.torch) or self._rank
            step = "" if self._step is None or label == "exit" else f"step{self._step}"
            about = About(
                occasion=f"{occasion} of step {self._step:,}" if step else occasion,
                device=device,
                free=free,
                rank=self._rank,
                max_entries=self.ring.max_entries,
                exit_code=self.exit_code,
            )
            name = self._files.name(self._process(), step, label)
            written = self._files.save(name, history.snapshot, partial(described, about, history))
            self._say(written, time.monotonic() - began)
            return written

    def _say(self, written: Written, seconds: float) -> None:
        LOG.info(
            "allocsim: wrote %s: %s entries, %s, in %.1f s",
            *(written.path, f"{written.n_entries:,}", format_size(written.size), seconds),
        )
        if written.path.parent != self._files.folder:
            say_once(
                "allocsim: %s cannot be written to; captures go to %s",
                *(self._files.folder, written.path.parent),
            )
        if written.n_dropped:
            say_once(
                "allocsim: %s lacks its oldest %s entries: no room (limit %s, or half of the disk)",
                *(written.path, f"{written.n_dropped:,}", format_size(self.max_disk)),
            )
        if self._files.n_removed:
            say_once(
                "allocsim: captures reached their limit of %s; the oldest are removed",
                format_size(self.max_disk),
            )

    def _process(self) -> str:
        if self._rank:
            return f"rank{self._rank}"
        processes = sys.modules.get("multiprocessing.process")
        is_child = processes is not None and processes.parent_process() is not None
        is_child = is_child or os.getpid() != self._first_pid
        return f"process{os.getpid()}" if is_child else ""


def _text_of(error: BaseException | None) -> str | None:
    seen: set[int] = set()
    text = None
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if type(error).__name__ == "OutOfMemoryError":
            text = str(error)
        error = error.__cause__ or error.__context__
    return text


def _watch_exceptions() -> None:
    before = sys.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        for active in tuple(_ACTIVE):
            active.failed(error)
            if not isinstance(error, KeyboardInterrupt):  # Python then exits by a signal
                active.exit_code = 1
        before(kind, error, trace)

    _CHAINED[:] = [excepthook, before]
    sys.excepthook = excepthook


def _unwatch_exceptions() -> None:
    if _CHAINED and sys.excepthook is _CHAINED[0]:
        sys.excepthook = _CHAINED[1]
    _CHAINED.clear()


def _at_exit() -> None:
    for active in tuple(_ACTIVE):
        active.stop()


atexit.register(_at_exit)
