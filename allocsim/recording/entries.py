"""Entries of one device in the three forms that readers return.

PyTorch writes a list of dictionaries (`Rows`).  `allocsim fit` writes a dictionary of lists
(`Columns`), which needs a third of the time and space: item i of every list belongs to entry i, and
is None where the entry lacks the field.  `Packed` is read directly from the bytes of a pickle.

`column` returns one field of all entries as a new list, with `MISSING` where an entry lacks it.
"""

from __future__ import annotations

from itertools import chain
from operator import itemgetter
from typing import Any

from allocsim.recording.fast_pickle.packed import Packed
from allocsim.recording.fields import Fields, describe

__all__ = ["MISSING", "Columns", "Entries", "Rows", "entries_of"]

MISSING = object()
"""Column value of an entry that lacks the field."""


class Rows:
    """Entries as a list of dictionaries."""

    __slots__ = ("_rows",)

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def other(self) -> int | None:
        """Return the number of the first entry that is not a dictionary, or None."""
        if set(map(type, self._rows)) <= {dict}:
            return None
        return next(index for index, row in enumerate(self._rows) if type(row) is not dict)

    def names(self) -> set[str]:
        """Return the names of the fields that any entry has."""
        return set(chain.from_iterable(self._rows))

    def column(self, name: str) -> list[Any]:
        """Return one field of every entry."""
        try:
            # Twice as fast as dict.get, and most fields are in every entry.
            return list(map(itemgetter(name), self._rows))
        except KeyError:
            return [row.get(name, MISSING) for row in self._rows]

    def row(self, index: int) -> Any:
        """Return the fields of one entry."""
        return self._rows[index]


class Columns:
    """Entries as one list per field."""

    __slots__ = ("_columns", "_count")

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns
        self._count = max(map(len, columns.values()), default=0)

    def __len__(self) -> int:
        return self._count

    def other(self) -> None:
        """Return None, since every row is a dictionary by construction."""

    def names(self) -> set[str]:
        """Return the names of the fields that any entry has."""
        return set(self._columns)

    def column(self, name: str) -> list[Any]:
        """Return one field of every entry."""
        column = self._columns.get(name, [None] * self._count)
        return [MISSING if value is None else value for value in column]

    def row(self, index: int) -> dict[str, Any]:
        """Return the fields of one entry."""
        values = ((name, column[index]) for name, column in self._columns.items())
        return {name: value for name, value in values if value is not None}


Entries = Rows | Columns | Packed


def entries_of(path: str, device: int, value: object) -> Entries:
    """Return the entries of `device` without checking their fields.

    path: file name for error messages.
    value: item `device` of the snapshot's device_traces.
    Raises RecordingError if `value` is neither a list nor a dictionary of equally long lists.
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
