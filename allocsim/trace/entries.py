"""The entries of one device as a file holds them: a dictionary each, or a list for each field.

PyTorch writes dictionaries.  A dictionary of lists is what `allocsim fit` has its own runs write,
in a third of the time and space: row i of every list is entry i, None where that entry has no
such field.

A third form, `Packed`, comes straight from the bytes of a pickle of dictionaries.

Rule: all are looked at by field, never by entry, unless an entry has to be named; a column is a
list of its own, with `MISSING` where an entry lacks the field.
"""

from __future__ import annotations

from itertools import chain
from operator import itemgetter
from typing import Any

from allocsim.trace.fields import Fields, describe
from allocsim.trace.packed import Packed

__all__ = ["MISSING", "Columns", "Entries", "Rows", "entries_of"]

MISSING = object()
"""Stands in a column for an entry without that field."""


class Rows:
    """A dictionary for each entry."""

    __slots__ = ("_rows",)

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def other(self) -> int | None:
        """The first entry that is no dictionary, if there is one."""
        if set(map(type, self._rows)) <= {dict}:
            return None
        return next(index for index, row in enumerate(self._rows) if type(row) is not dict)

    def names(self) -> set[str]:
        """The fields that any entry has."""
        return set(chain.from_iterable(self._rows))

    def column(self, name: str) -> list[Any]:
        """A field of every entry."""
        try:
            # Half the time of asking with a default, and most fields are in every entry.
            return list(map(itemgetter(name), self._rows))
        except KeyError:
            return [row.get(name, MISSING) for row in self._rows]

    def row(self, index: int) -> Any:
        """The fields of one entry."""
        return self._rows[index]


class Columns:
    """A list for each field."""

    __slots__ = ("_columns", "_count")

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns
        self._count = max(map(len, columns.values()), default=0)

    def __len__(self) -> int:
        return self._count

    def other(self) -> None:
        """None: an entry is made of its fields."""

    def names(self) -> set[str]:
        """The fields that any entry has."""
        return set(self._columns)

    def column(self, name: str) -> list[Any]:
        """A field of every entry."""
        column = self._columns.get(name, [None] * self._count)
        return [MISSING if value is None else value for value in column]

    def row(self, index: int) -> dict[str, Any]:
        """The fields of one entry."""
        values = ((name, column[index]) for name, column in self._columns.items())
        return {name: value for name, value in values if value is not None}


Entries = Rows | Columns | Packed


def entries_of(path: str, device: int, value: object) -> Entries:
    """The entries of `device` in a file; RecordingError if they are neither the one nor the other.

    The rows are not looked at yet.
    """
    if isinstance(value, Packed):
        return value
    where = f"device_traces[{device}]"
    fields = Fields(path, where, value if isinstance(value, dict) else {})
    if isinstance(value, list):
        return Rows(value)
    if not isinstance(value, dict):
        fields.refuse(f"{where} is {describe(value)}, expected a list")
    columns = {name: fields.items(name) for name in value if isinstance(name, str)}
    lengths = sorted(set(map(len, columns.values())))
    if len(lengths) > 1:
        fields.refuse(f"{where} has columns of {lengths[0]} and of {lengths[-1]} entries")
    return Columns(columns)
