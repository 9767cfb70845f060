"""Convert snapshots of PyTorch's memory history, from any PyTorch release, to recordings.

A snapshot is untrusted: every used value is checked, and the size of the file limits the number of
created objects.

The entries of a device become columns of numbers.  They have one of three forms: a list with a
dictionary per entry, as PyTorch writes it; a dictionary with a list per field, which `allocsim fit`
writes in a third of the time; or `Packed`, which straight.py reads from the bytes of a pickle.
"""

# Each column is converted in one pass that assumes valid values. If the pass fails, the entries are
# checked one by one, so that the error names the invalid entry. Stacks and pool ids are looked up
# by object identity first, since entries of a pickle share objects, and then by value, since those
# of JSON share none.

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import chain
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import RecordingError
from allocsim.recording.fields import INT64_MAX, UINT64_MAX, Fields, describe
from allocsim.recording.frames import StackReader
from allocsim.recording.packed import Packed, PackedReader
from allocsim.recording.provenance import marked, read_annotations, read_provenance
from allocsim.recording.recording import Recording, markers_in
from allocsim.recording.segments import RecordedSettings, SegmentReader, read_settings
from allocsim.recording.trace import ACTION_CODES, Action, Trace
from allocsim.state import PoolId, SegmentState

_MAX_DEVICES = 1024


def read_snapshot(path: str, value: object, size: int) -> Recording:
    """Convert a snapshot to a recording.

    path: name of the file, for errors.
    value: plain Python values that a pickle or JSON file contains.
    size: bytes of the file, which limit the number of entries, segments, blocks and frames.
    """
    markers: set[str] = set()
    if isinstance(value, list):
        top = Fields(path, "the segment list", {"segments": value})
    elif isinstance(value, dict):
        top = Fields(path, "the snapshot", value)
        markers.add("snapshot")
        markers.update(name for name in markers_in("snapshot") if name in top)
    else:
        raise RecordingError(
            path, f"holds {describe(value)}, expected a snapshot's dictionary or segment list"
        )
    if "segments" not in top:
        _refuse_without_segments(top)
    stacks = StackReader(size)
    reader = SegmentReader(path, stacks.read, size)
    states = reader.read(top.items("segments"))
    markers |= reader.markers
    settings = _settings(top, markers)
    traces = _traces(top, size)
    devices = []
    for device in sorted({*states, *(i for i, entries in enumerate(traces) if len(entries))}):
        entries = traces[device] if device < len(traces) else EntryRows([])
        trace, found = _read_trace(path, device, entries, states.get(device, ()), stacks)
        devices.append(trace)
        markers |= found
    table = stacks.table()
    is_old = "segments" in markers and "segment_pool_id" not in markers
    layout = "snapshot 2.0" if is_old else "snapshot"
    return Recording(
        path=path,
        layout=layout if isinstance(value, dict) else "segment list",
        devices=marked(
            top, size, (dataclasses.replace(trace, frame_table=table) for trace in devices)
        ),
        settings=settings,
        frame_table=table,
        annotations=read_annotations(top, size),
        markers=frozenset(markers),
        n_device_traces=len(traces),
        provenance=read_provenance(top),
        wrong_sums=tuple(reader.wrong_sums),
    )


def _refuse_without_segments(top: Fields) -> NoReturn:
    keys = top.keys()
    if any(key.startswith("allocated_bytes.") for key in keys):
        top.refuse("holds the figures of torch.cuda.memory_stats(), and no requests or segments")
    named = ", ".join(map(describe, keys[:3])) if keys else "none"
    top.refuse(
        "holds a dictionary without segments, expected a PyTorch memory snapshot (it has the keys "
        f"{named}{', …' * (len(keys) > 3)})"
    )


def _traces(top: Fields, size: int) -> list[Entries]:
    if "device_traces" not in top:
        return []
    traces = top.items("device_traces")
    if len(traces) > _MAX_DEVICES:
        top.wrong("device_traces", traces, f"at most {_MAX_DEVICES} devices")
    entries = [_entries_of(top.path, device, trace) for device, trace in enumerate(traces)]
    total = sum(map(len, entries))
    if total > size:
        top.refuse(f"device_traces holds {total} entries, more than its {size} bytes can hold")
    return entries


def _settings(top: Fields, markers: set[str]) -> RecordedSettings | None:
    if "allocator_settings" not in top:
        return None
    value = top.value("allocator_settings", "a dictionary")
    fields = Fields(top.path, "allocator_settings", value)
    markers.add("settings")
    markers.update(name for name in markers_in("settings") if name in fields)
    return read_settings(fields)


def _read_trace(
    path: str,
    device: int,
    entries: Entries,
    segments: tuple[SegmentState, ...],
    stacks: StackReader,
) -> tuple[Trace, set[str]]:
    """Return a pair: the trace of `device`, and the set of markers in its entries.

    Markers show which PyTorch releases can have written the file.  They are names of fields and
    actions that older releases do not write, and the word "entries" if there are any entries.

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


def _entries_of(path: str, device: int, value: object) -> Entries:
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
