"""Convert the recorded entries of one device to columns of numbers.

The entries have one of three forms: a list with a dictionary per entry, as PyTorch writes it; a
dictionary with a list per field, which `allocsim fit` writes in a third of the time; or `Packed`,
which straight.py reads from the bytes of a pickle.
"""

# Each column is converted in one pass that assumes valid values. If the pass fails, the entries are
# checked one by one, so that the error names the invalid entry. Stacks and pool ids are looked up
# by object identity first, since entries of a pickle share objects, and then by value, since those
# of JSON share none.

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from allocsim.recording.fields import INT64_MAX, UINT64_MAX, Fields, describe
from allocsim.recording.frames import StackReader
from allocsim.recording.packed import Packed, PackedReader
from allocsim.recording.recording import markers_in
from allocsim.recording.trace import ACTION_CODES, Action, Trace
from allocsim.state import PoolId, SegmentState


def read_trace(
    path: str,
    device: int,
    entries: Entries,
    segments: tuple[SegmentState, ...],
    stacks: StackReader,
) -> tuple[Trace, set[str]]:
    """Return the trace of `device`, and the markers in its entries.

    Markers are names of fields and actions that old PyTorch releases do not write, and the word
    "entries" if there are any entries (`Marker`).

    path: name of the file, for errors.
    segments: segments of the device after the last entry.
    stacks: reader that numbers the stacks of the whole file.
    """
    where = f"the entry of device {device}"
    reader = (
        PackedReader(path, where, entries)
        if isinstance(entries, Packed)
        else _ColumnReader(path, where, entries)
    )
    action = reader.actions()
    times = reader.integers("time_us", 0, INT64_MAX) if reader.has_times() else None
    texts: dict[str, int] = {}
    pool_ids: dict[PoolId, int] = {}

    def text_numbers(name: str) -> NDArray[np.int32] | None:
        if name not in reader.names:
            return None
        return reader.numbered(name, lambda row: texts.setdefault(row.text(name), len(texts)))

    trace = Trace(
        device=device,
        action=action,
        addr=reader.addresses(action),
        size=reader.integers("size", 0, INT64_MAX).view(np.int64),
        stream=reader.integers("stream", 0, UINT64_MAX),
        time_us=None if times is None else times.view(np.int64),
        frames=reader.stacks(stacks),
        pool_id=reader.numbered(
            "pool_id", lambda row: pool_ids.setdefault(row.pool_id("pool_id"), len(pool_ids))
        ),
        compile_context=text_numbers("compile_context"),
        user_metadata=text_numbers("user_metadata"),
        segments=segments,
        pool_ids=tuple(pool_ids),
        texts=tuple(texts),
    )
    return trace, _markers(reader.names, action)


def _markers(names: set[str], action: NDArray[np.uint8]) -> set[str]:
    actions = {
        f"action {Action(code).text}" for code in np.flatnonzero(np.bincount(action)).tolist()
    }
    places = {"entries"} if len(action) else set()
    return (actions | names).intersection(markers_in("entries")) | places


def _address(row: Fields) -> int:
    # For an oom entry the column has the free bytes of the device; the entry's address is unused.
    name = "device_free" if row.text("action") == "oom" and "device_free" in row else "addr"
    return row.integer(name, 0, UINT64_MAX)


class _ColumnReader:
    __slots__ = ("path", "where", "entries", "names")

    def __init__(self, path: str, where: str, entries: EntryRows | Columns) -> None:
        self.path, self.where = path, where
        self.entries = entries
        if (other := entries.other()) is not None:
            self.row(other)  # raises RecordingError: the entry is no dictionary
        self.names = entries.names()

    def row(self, index: int) -> Fields:
        return Fields(self.path, self.where, self.entries.row(index), entry=index)

    def actions(self) -> NDArray[np.uint8]:
        try:
            codes = list(map(ACTION_CODES.__getitem__, self.entries.column("action")))
        except (KeyError, TypeError):
            for index in range(len(self.entries)):
                row = self.row(index)
                if row.text("action") not in ACTION_CODES:
                    row.wrong("action", row.text("action"), f"one of {', '.join(ACTION_CODES)}")
            raise
        return np.array(codes, dtype=np.uint8)

    def addresses(self, action: NDArray[np.uint8]) -> NDArray[np.uint64]:
        values = self.entries.column("addr")
        for index in np.flatnonzero(action == Action.OOM).tolist():
            values[index] = _address(self.row(index))
        return self._sound(values, UINT64_MAX, _address)

    def integers(self, name: str, low: int, high: int) -> NDArray[np.uint64]:
        return self._sound(
            self.entries.column(name), high, lambda row: row.integer(name, low, high)
        )

    def _sound(
        self, values: list[Any], high: int, check: Callable[[Fields], object]
    ) -> NDArray[np.uint64]:
        try:
            sound = set(map(type, values)) <= {int}
            column = np.array(values if sound else [], dtype=np.uint64)
            sound = sound and (not len(column) or int(column.max()) <= high)
        except OverflowError:
            sound = False
        if not sound:
            self._find_culprit(check)
        return column

    def has_times(self) -> bool:
        values = self.entries.column("time_us")
        return bool(values) and MISSING not in values

    def stacks(self, stacks: StackReader) -> NDArray[np.int32]:
        keys = list(map(id, self.entries.column("frames")))
        return self._by_key(keys, id(MISSING), stacks.read)

    def numbered(self, name: str, number: Callable[[Fields], int]) -> NDArray[np.int32]:
        values = self.entries.column(name)
        if not set(map(type, values)) <= {tuple, str, object}:
            # JSON has lists in place of pairs.  Other types are refused by `_find_culprit`.
            values = [
                tuple(map(id, value)) if isinstance(value, list) else value for value in values
            ]
            if not set(map(type, values)) <= {tuple, str, object}:
                self._find_culprit(lambda row: name not in row or number(row))
        return self._by_key(values, MISSING, number)

    def _by_key(
        self, keys: list[Any], missing: object, number: Callable[[Fields], int]
    ) -> NDArray[np.int32]:
        count = len(keys)
        first = dict(zip(reversed(keys), range(count - 1, -1, -1), strict=True))
        first.pop(missing, None)
        numbers: dict[Any, int] = {missing: -1}
        for key, index in sorted(first.items(), key=lambda item: item[1]):
            numbers[key] = number(self.row(index))
        return np.fromiter(map(numbers.__getitem__, keys), dtype=np.int32, count=count)

    def _find_culprit(self, check: Callable[[Fields], object]) -> NoReturn:
        for index in range(len(self.entries)):
            check(self.row(index))
        raise AssertionError("a column was refused, but none of its entries")


MISSING = object()
"""Value in a column for an entry that lacks the field."""


class EntryRows:
    """Entries of one device, read from a list with one dictionary per entry."""

    __slots__ = ("_rows",)

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def other(self) -> int | None:
        if set(map(type, self._rows)) <= {dict}:
            return None
        return next(index for index, row in enumerate(self._rows) if type(row) is not dict)

    def names(self) -> set[str]:
        return set(chain.from_iterable(self._rows))

    def column(self, name: str) -> list[Any]:
        try:
            # itemgetter is twice as fast as dict.get, and most fields are in every entry.
            return list(map(itemgetter(name), self._rows))
        except KeyError:
            return [row.get(name, MISSING) for row in self._rows]

    def row(self, index: int) -> Any:
        return self._rows[index]


class Columns:
    """Entries of one device, read from a dictionary with one list per field."""

    __slots__ = ("_columns", "_count")

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns
        self._count = max(map(len, columns.values()), default=0)

    def __len__(self) -> int:
        return self._count

    def other(self) -> None:
        pass

    def names(self) -> set[str]:
        return set(self._columns)

    def column(self, name: str) -> list[Any]:
        column = self._columns.get(name, [None] * self._count)
        return [MISSING if value is None else value for value in column]

    def row(self, index: int) -> dict[str, Any]:
        values = ((name, column[index]) for name, column in self._columns.items())
        return {name: value for name, value in values if value is not None}


Entries = EntryRows | Columns | Packed


def entries_of(path: str, device: int, value: object) -> Entries:
    """Return the entries of `device`, whose fields are not checked yet.

    path: name of the file, for errors.
    value: item `device` of the snapshot's device_traces, in one of the three forms.
    """
    if isinstance(value, Packed):
        return value
    where = f"device_traces[{device}]"
    fields = Fields(path, where, value if isinstance(value, dict) else {})
    if isinstance(value, list):
        return EntryRows(value)
    if not isinstance(value, dict):
        fields.refuse(f"{where} is {describe(value)}, expected a list")
    columns = {name: fields.items(name) for name in value if isinstance(name, str)}
    lengths = sorted(set(map(len, columns.values())))
    if len(lengths) > 1:
        fields.refuse(f"{where} has columns of {lengths[0]} and of {lengths[-1]} entries")
    return Columns(columns)
