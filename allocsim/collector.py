"""Pause of Python's cycle collector while many long-lived objects are created.

Only the standard library is imported, because the recorder of `allocsim record` loads this file by
its path in an interpreter that may not have allocsim.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
