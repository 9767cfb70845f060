"""Pauses Python's cycle collector while many objects are made that stay.

Rule: it is left as it was found, whatever happens meanwhile.  Nothing but the standard library is
imported: the recorder of `allocsim record` loads this file by its path, in an interpreter that need
not have allocsim.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["collector_paused"]


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Without the collector, which would walk millions of objects that live on again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
