"""Read a pickled snapshot directly to columns, without creating an object for each entry.

If this module cannot read a file, `unpickle` reads it with the same result, and reports errors.
Nothing in the file is executed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from allocsim.recording.packed import Objects, Packed
from allocsim.recording.pickle_rows import (
    OtherForm,
    RowBatch,
    RowShape,
    Window,
    read_batch,
    read_shape,
)

_STOP, _LONGEST = 0x2E, 9
_SHORTEST_RUN = 16
_MOST_SHAPES = 4


def read_straight(file: BinaryIO, operations: int) -> object:
    """Return the value pickled in `file`, with `Packed` columns in place of lists of entries.

    operations: largest number of pickle operations to read singly.

    Raises OtherForm if more operations must be read singly, or if the pickle is not of plain values
    in protocol 4 or 5, with frames (chunks of operations).
    """
    machine = _Machine(Window(file), operations)
    try:
        value = machine.run()
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise OtherForm(str(error)) from None
    return _with_columns(value, machine.packed)


def _with_columns(value: object, packed: dict[int, tuple[list[Any], Packed]]) -> object:
    if not packed:
        return value
    traces = value.get("device_traces") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(traces, list):
        raise OtherForm("rows in another place")
    host = value.get("host_traces")
    numbers = [id(trace) for trace in (*traces, host)]
    if sorted(packed) != sorted(n for n in numbers if n in packed):
        raise OtherForm("rows in another place")
    for rest, entries in packed.values():
        entries.add_rows(rest)
    found = [packed.get(id(trace), (trace, trace))[1] for trace in (*traces, host)]
    host_found = {"host_traces": found[-1]} if id(host) in packed else {}
    return value | {"device_traces": found[:-1]} | host_found


class _Machine:
    # `_stack` has the values above the newest MARK operation, `_below` the values under each MARK.
    # `packed` is for lists whose first entries were moved to columns: it is a dictionary from the
    # id() of the list to the list and its columns.

    __slots__ = (
        "objects", "packed", "_at", "_below", "_budget", "_parsed", "_seam",
        "_shapes", "_stack", "_window",
    )  # fmt: skip

    def __init__(self, window: Window, budget: int) -> None:
        self.objects = Objects()
        self.packed: dict[int, tuple[list[Any], Packed]] = {}
        self._window, self._budget, self._at, self._seam = window, budget, 0, 0
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._shapes: list[RowShape] = []
        self._parsed: dict[RowShape, RowBatch] = {}

    def _table(self) -> dict[int, Callable[[], None]]:
        def push(value: object) -> Callable[[], None]:
            return lambda: self._stack.append(value)

        return {
            ord("}"): self._dict_or_rows,
            ord("]"): lambda: self._stack.append([]),
            ord(")"): push(()),
            ord("("): self._mark,
            ord("a"): self._append,
            ord("e"): self._appends,
            ord("s"): self._set_item,
            ord("u"): self._set_items,
            0x94: lambda: self.objects.memoize(self._stack[-1]),
            ord("h"): lambda: self._get(1),
            ord("j"): lambda: self._get(4),
            ord("K"): lambda: self._stack.append(self._argument(1)[0]),
            ord("M"): lambda: self._stack.append(int.from_bytes(self._argument(2), "little")),
            ord("J"): lambda: self._stack.append(_signed(self._argument(4))),
            0x8A: self._long,
            ord("G"): lambda: self._stack.append(struct.unpack(">d", self._argument(8))[0]),
            0x8C: lambda: self._text(1),
            ord("X"): lambda: self._text(4),
            0x86: self._pair,
            ord("N"): push(None),
            0x88: push(True),
            0x89: push(False),
        }

    def run(self) -> Any:
        # The table is a local variable: on `self`, it would form a cycle that keeps the memo alive.
        window, operations = self._window, self._table()
        while True:
            if self._at >= window.soft_end:
                self._move()
            code = window.data[self._at]
            if code == _STOP:
                break
            operation = operations.get(code)
            self._budget -= 1
            if operation is None or self._budget < 0:
                raise OtherForm("an operation of another sort, or too many")
            self._at += 1
            operation()
        (value,) = self._stack
        if self._below:
            raise OtherForm("an open mark")
        return value

    def _move(self) -> None:
        self._window.more(self._at)
        self._at = self._seam = 0
        self._parsed.clear()

    def _argument(self, length: int) -> bytes:
        begin, self._at = self._at, self._at + length
        if self._at > self._seam:
            # An operation's code directly precedes its argument, in the same frame.
            self._seam = self._window.seam_after(begin - 1)
            if self._at > self._seam:
                raise OtherForm("an operation beyond its frame")
        return self._window.data[begin : self._at]

    def _long(self) -> None:
        data = self._argument(1)
        begin = self._at - 2
        if data[0] > _LONGEST:
            raise OtherForm("a number beyond all sizes")
        number = self._argument(data[0])
        self._same_frame(begin)
        self._stack.append(_signed(number))

    def _text(self, width: int) -> None:
        begin = self._at - 1
        length = int.from_bytes(self._argument(width), "little")
        data = self._argument(length)
        self._same_frame(begin)
        self._stack.append(str(data, "utf-8", "surrogatepass"))

    def _same_frame(self, begin: int) -> None:
        if self._window.seam_after(begin) < self._at:
            raise OtherForm("an operation beyond its frame")

    def _get(self, width: int) -> None:
        value = self.objects.get(int.from_bytes(self._argument(width), "little"))
        if id(value) in self.packed:
            raise OtherForm("rows that something else refers to")
        self._stack.append(value)

    def _pair(self) -> None:
        second, first = self._stack.pop(), self._stack.pop()
        if type(first) is not int or type(second) is not int:
            raise OtherForm("a tuple of something else")
        self._stack.append((first, second))

    def _mark(self) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _items(self) -> list[Any]:
        items, self._stack = self._stack, self._below.pop()
        return items

    def _growing(self, kind: type[Any]) -> Any:
        value = self._stack[-1]
        if type(value) is not kind or self.objects.is_fetched(value):
            raise OtherForm("items of what is no container of its own")
        return value

    def _append(self) -> None:
        value = self._stack.pop()
        self._growing(list).append(value)

    def _appends(self) -> None:
        items = self._items()
        self._growing(list).extend(items)

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._growing(dict)[key] = value

    def _set_items(self) -> None:
        items = self._items()
        self._growing(dict).update(zip(items[::2], items[1::2], strict=True))

    def _dict_or_rows(self) -> None:
        if not (self._below and type(self._below[-1][-1]) is list and self._rows()):
            self._stack.append({})

    def _rows(self) -> bool:
        at = self._at - 1
        for shape in self._shapes:
            batch = self._parsed.get(shape)
            if batch is None:
                batch = self._parsed[shape] = read_batch(self._window, shape)
            first = int(np.searchsorted(batch.begin, at))
            if first < len(batch.begin) and batch.begin[first] == at:
                last = int(batch.last[first])
                if last - first < _SHORTEST_RUN:
                    return False
                rows = slice(first, last + 1)
                self.objects.add_to(self._columns(), batch, rows, self._window.data)
                self._at = int(batch.end[last])
                return True
        if len(self._shapes) < _MOST_SHAPES:
            new = read_shape(self._window, at, self.objects.get)
            if new is not None and new not in self._shapes:
                self._shapes.append(new)
                return self._rows()
        return False

    def _columns(self) -> Packed:
        filled = self._below[-1][-1]
        if self.objects.is_fetched(filled):
            raise OtherForm("rows that something else refers to")
        _, entries = self.packed.setdefault(id(filled), (filled, Packed(self.objects)))
        entries.add_rows(filled)
        entries.add_rows(self._stack)
        filled.clear()
        self._stack.clear()
        return entries


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)
