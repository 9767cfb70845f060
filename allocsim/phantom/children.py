"""Let child processes of a program write their recordings before they end.

Rule: this file runs in the program's interpreter, loaded by the hook from its path, so it imports
only the standard library.

A process that `multiprocessing` forked ends without the functions of atexit.  A server terminates
its engine and kills it seconds later, or immediately, which can be before the recording is written.
While a process records, a file named after it marks that it must not be killed yet.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WRITE_S = 120.0
"""Longest time to wait for a recording."""
_POLL_S = 0.02


def begin(folder: str) -> None:
    """Create a file in `folder` which marks that this process records."""
    with contextlib.suppress(OSError):
        _marker(folder, os.getpid()).touch()


def end(folder: str) -> None:
    """Remove the file in `folder` that marks that this process records, if there is one."""
    with contextlib.suppress(OSError):
        _marker(folder, os.getpid()).unlink()


def _marker(folder: str, pid: int) -> Path:
    return Path(folder) / f"{pid}.recording"


def wait_before_kill(folder: str) -> None:
    """Patch os.kill so that a child process can write its recording before it is killed.

    folder: folder with the marks of the processes that record.
    """
    kill, terminated = os.kill, set()

    @functools.wraps(kill)
    def kill_later(pid: int, number: int) -> None:
        if number == signal.SIGTERM:
            terminated.add(pid)
        elif number == signal.SIGKILL and pid in terminated:
            until = time.monotonic() + WRITE_S
            while _marker(folder, pid).exists() and time.monotonic() < until and _is_alive(pid):
                time.sleep(_POLL_S)
        kill(pid, number)

    os.kill = kill_later


def _is_alive(pid: int) -> bool:
    """Return False if process `pid` has ended, although its parent may not have noticed."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def call_in_forks(owner: Any, function: Callable[[Any], None], util: Any) -> None:
    """Call `function(owner)` at the end of each process that multiprocessing forks.

    util: the module multiprocessing.util.
    """

    def at_end(owner: Any) -> None:
        util.Finalize(None, function, (owner,), exitpriority=0)

    util.register_after_fork(owner, at_end)
