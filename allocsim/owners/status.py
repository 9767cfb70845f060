"""How an owner changed between two moments, in a word.

Rule: one that held blocks of no bytes was there; so whether it was is passed in, not told from
bytes.
"""

from __future__ import annotations

__all__ = ["status_of"]


def status_of(change: int, *, was_there: bool, is_there: bool) -> str:
    """ "new", "gone", "larger", "smaller" or "same".  change: by how many bytes it holds more."""
    if not was_there:
        return "new"
    if not is_there:
        return "gone"
    if not change:
        return "same"
    return "larger" if change > 0 else "smaller"
