"""Convert a memory history from a dictionary per entry to a list per field.

Rule: this file runs in the program's interpreter, loaded by the hook from its path, so it imports
only the standard library.  allocsim reads both forms to the same recording.

Equal stacks and equal texts become one object, which a pickle stores once.  The file, and the time
to write and read it, are a third of those for dictionaries.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

__all__ = ["columns_of"]

_TEXTS = {"compile_context", "user_metadata"}
"""Fields for which PyTorch creates a new string object in each entry."""


def columns_of(entries: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the columns of one device's entries; None marks a field that an entry lacks."""
    columns = {
        name: [entry.get(name) for entry in entries]
        for name in dict.fromkeys(chain.from_iterable(entries))
    }
    if "frames" in columns:
        columns["frames"] = _shared(columns["frames"])
    for name in _TEXTS & columns.keys():
        one = {text: text for text in columns[name]}
        columns[name] = [one[text] for text in columns[name]]
    return columns


def _shared(lists: list[Any]) -> list[Any]:
    """Return the stacks with equal stacks replaced by one object.

    Frames are compared by identity, because PyTorch has one dictionary for each line of code, and
    one list of frames for all entries of a block.
    """
    stacks: dict[tuple[int, ...], Any] = {}
    unique = {id(frames): frames for frames in lists if frames is not None}
    one = {
        number: stacks.setdefault(tuple(map(id, frames)), frames)
        for number, frames in unique.items()
    }
    return [one.get(id(frames)) for frames in lists]
