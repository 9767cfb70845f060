"""A history's entries as a list for each field instead of a dictionary for each entry.

Rule: runs in the program's interpreter, loaded by the hook from its path; only the standard library
is imported.  Nothing is lost: `allocsim.trace.entries` makes the same recording of both.

Equal stacks and equal texts become one object, which a pickle writes once: the file has a third of
the size, and is written and read in a third of the time.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

__all__ = ["columns_of"]

_TEXTS = {"compile_context", "user_metadata"}
"""Fields whose text PyTorch makes anew for each entry."""


def columns_of(entries: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The columns of one device's entries; None in a row where that entry has no such field."""
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
    """One list for equal ones.

    They are told by the numbers of objects: PyTorch has one list for the entries of a block, one
    dictionary for a line of code, and all of them are alive in here.
    """
    stacks: dict[tuple[int, ...], Any] = {}
    unique = {id(frames): frames for frames in lists if frames is not None}
    one = {
        number: stacks.setdefault(tuple(map(id, frames)), frames)
        for number, frames in unique.items()
    }
    return [one.get(id(frames)) for frames in lists]
