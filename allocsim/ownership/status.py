"""Change of an owner between two moments, as one word.

An owner may hold blocks of zero bytes, so its presence is passed in and not derived from bytes.
"""

from __future__ import annotations

__all__ = ["status_of"]


def status_of(change: int, *, was_there: bool, is_there: bool) -> str:
    """Return "new", "gone", "larger", "smaller" or "same".

    change: difference in bytes.
    """
    if not was_there:
        return "new"
    if not is_there:
        return "gone"
    if not change:
        return "same"
    return "larger" if change > 0 else "smaller"
