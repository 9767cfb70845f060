"""Change of an owner's memory between two moments or recordings, as one word."""

from __future__ import annotations

__all__ = ["status_of"]


def status_of(change: int, *, was_there: bool, is_there: bool) -> str:
    """Return "new", "gone", "larger", "smaller" or "same".

    change: change of the owner's bytes.
    was_there, is_there: True if the owner has blocks before and after; they may have 0 bytes.
    """
    if not was_there:
        return "new"
    if not is_there:
        return "gone"
    if not change:
        return "same"
    return "larger" if change > 0 else "smaller"
