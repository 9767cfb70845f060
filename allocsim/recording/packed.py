"""Entries of one device as columns, read from a pickle's bytes without creating dictionaries.

The column of an integer field has the integers.  The column of any other field has codes: indices
into a list of the objects that `pickle` would create for the field.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import distinct
from allocsim.recording.fields import UINT64_MAX, Fields
from allocsim.recording.frames import StackReader
from allocsim.recording.pickle_rows import NEW, REFERENCE, OtherForm, RowBatch
from allocsim.recording.trace import ACTION_CODES

MISSING_CODE = -1
"""Code in a column for an entry that lacks the field."""

_NUMBERS = ("addr", "size", "stream", "time_us")
_CODES = ("action", "frames", "pool_id", "compile_context", "user_metadata")


class Objects:
    """Objects that a pickle creates, keyed by memo number (the pickle's own index of an object).

    values: objects that entries refer to; the index of an object in this list is its code.
    """

    __slots__ = ("values", "_codes", "_count", "_fetched", "_memo", "_pairs", "_stacks")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._count = 0
        # Code of each memo number.  Entries, and values that they create, are not in `_memo`.
        self._codes = np.full(1 << 12, MISSING_CODE, dtype=np.int32)
        self._pairs: dict[tuple[int, int], int] = {}
        self._stacks: dict[bytes, int] = {}
        self._fetched: set[int] = set()

    def memoize(self, value: object) -> None:
        self._memo[self._count] = value
        self._count += 1

    def get(self, number: int) -> Any:
        if number in self._memo:
            value = self._memo[number]
        else:
            is_known = number < min(self._count, len(self._codes))
            code = int(self._codes[number]) if is_known else MISSING_CODE
            if code == MISSING_CODE:
                raise KeyError(number)
            value = self.values[code]
        if type(value) in (dict, list):
            self._fetched.add(id(value))
        return value

    def is_fetched(self, value: object) -> bool:
        # Returns True if `get` has returned this list or dictionary, so that it has two references.
        return id(value) in self._fetched

    def add_to(self, entries: Packed, batch: RowBatch, rows: slice, data: bytes) -> None:
        memos = batch.memos[rows]
        own = self._count + np.cumsum(memos) - memos
        self._count += int(memos.sum())
        if self._count > len(self._codes):
            more = np.full(self._count * 5 // 4 - len(self._codes), MISSING_CODE, dtype=np.int32)
            self._codes = np.concatenate([self._codes, more])
        codes = {}
        for name, column in batch.known.items():
            known = column[rows]
            is_new = known == NEW
            if np.any(known >= own):
                raise OtherForm("a value from before it was made")
            if is_new.any():
                new = np.flatnonzero(is_new)
                found, before = self._made(name, batch, rows, new, data)
                known = known.copy()
                known[new] = numbers = own[new] + before
                self._codes[numbers] = found
            codes[name] = self._known(known)
        values = {name: column[rows] for name, column in batch.numbers.items()}
        entries.add_block(len(own), values, codes)

    def _known(self, numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        codes = self._codes[numbers]
        unknown = codes == MISSING_CODE
        if unknown.any():
            for number in distinct(numbers[unknown]).tolist():
                self._codes[number] = self._add(self.get(number))
            codes = self._codes[numbers]
        return codes

    def _add(self, value: object) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _made(
        self, name: str, batch: RowBatch, rows: slice, new: NDArray[np.int64], data: bytes
    ) -> tuple[list[int] | NDArray[np.int32], NDArray[np.int64]]:
        first, second, before = (part[rows][new] for part in batch.made[name])
        if name == "frames":
            places = zip(first.tolist(), second.tolist(), strict=True)
            return self._lists([data[begin:end] for begin, end in places]), before
        pairs, inverse = np.unique(first << 8 | second, return_inverse=True)
        known = [self._pair(pair >> 8, pair & 0xFF) for pair in pairs.tolist()]
        return np.array(known, dtype=np.int32)[inverse], before

    def _pair(self, first: int, second: int) -> int:
        code = self._pairs.get((first, second))
        if code is None:
            code = self._pairs[first, second] = self._add((first, second))
        return code

    def _lists(self, contents: list[bytes]) -> list[int]:
        codes = list(map(self._stacks.get, contents))
        if None not in codes:
            return codes  # type: ignore[return-value]
        for content in contents:
            if content not in self._stacks:
                numbers = (one or four for one, four in REFERENCE.findall(content))
                members = [self.get(int.from_bytes(each, "little")) for each in numbers]
                self._stacks[content] = self._add(members)
        return [self._stacks[content] for content in contents]


class Packed:
    """Columns of the entries of one device, to which a reader appends.

    names: fields that at least one entry has.
    objects: values of the fields that are not integers; columns have indices into this list.
    """

    __slots__ = ("names", "objects", "_codes", "_count", "_numbers")

    def __init__(self, objects: Objects) -> None:
        self.names: set[Any] = set()
        self.objects = objects.values
        self._count = 0
        # array.array grows in place; a NumPy array would be copied at each growth.
        self._numbers = {name: array("Q") for name in _NUMBERS}
        self._codes = {name: array("i") for name in _CODES}

    def __len__(self) -> int:
        return self._count

    def add_rows(self, rows: Iterable[object]) -> None:
        for row in rows:
            if type(row) is not dict:
                raise OtherForm("an entry that is none")
            self.names.update(row)
            self._count += 1
            for name, column in list(self._numbers.items()):
                self._add_number(row, name, column)
            for name, codes in self._codes.items():
                codes.append(len(self.objects) if name in row else MISSING_CODE)
                if name in row:
                    self.objects.append(row[name])

    def _add_number(self, row: dict[Any, Any], name: str, column: array[int]) -> None:
        # An oom entry has no address; the column stores device_free in its place.
        is_free = name == "addr" and row.get("action") == "oom" and "device_free" in row
        key = "device_free" if is_free else name
        if key not in row:
            del self._numbers[name]
        elif type(row[key]) is not int or not 0 <= row[key] <= UINT64_MAX:
            raise OtherForm(f"{name} that is no number")
        else:
            column.append(row[key])

    def add_block(
        self,
        count: int,
        numbers: dict[str, NDArray[np.uint64]],
        codes: dict[str, NDArray[np.int32]],
    ) -> None:
        self.names.update(numbers, codes)
        self._count += count
        for name, column in list(self._numbers.items()):
            if name in numbers:
                column.frombytes(numbers[name].tobytes())
            else:
                del self._numbers[name]
        for name, known in self._codes.items():
            missing = codes[name] if name in codes else np.full(count, MISSING_CODE, np.int32)
            known.frombytes(missing.tobytes())

    def numbers(self, name: str) -> NDArray[np.uint64] | None:
        column = self._numbers.get(name)
        return None if column is None else np.frombuffer(column, dtype=np.uint64)

    def codes(self, name: str) -> NDArray[np.int32]:
        return np.frombuffer(self._codes[name], dtype=np.int32)


class PackedReader:
    """Converter from `Packed` columns to `Trace` columns; each field can be read only once."""

    __slots__ = ("names", "_entries", "_path", "_where")

    def __init__(self, path: str, where: str, entries: Packed) -> None:
        self._path, self._where, self._entries = path, where, entries
        self.names: set[str] = entries.names

    def actions(self) -> NDArray[np.uint8]:
        column = self.numbered("action", self._action)
        if np.any(column < 0):
            raise OtherForm("an entry without action")
        return column.astype(np.uint8)

    def addresses(self, _: NDArray[np.uint8]) -> NDArray[np.uint64]:
        # `Packed.add_rows` has stored device_free of an oom as its address.
        return self.integers("addr", 0, UINT64_MAX)

    def integers(self, name: str, low: int, high: int) -> NDArray[np.uint64]:
        column = self._entries.numbers(name)
        if column is None or (len(column) and not low <= int(column.max()) <= high):
            raise OtherForm(f"{name} out of its range")
        return column

    def has_times(self) -> bool:
        return self._entries.numbers("time_us") is not None

    def stacks(self, stacks: StackReader) -> NDArray[np.int32]:
        return self.numbered("frames", stacks.read)

    @staticmethod
    def _action(row: Fields) -> int:
        text = row.text("action")
        if text not in ACTION_CODES:
            raise OtherForm("no action")
        return ACTION_CODES[text]

    def numbered(self, name: str, number: Callable[[Fields], int]) -> NDArray[np.int32]:
        codes, objects = self._entries.codes(name), self._entries.objects
        # For each code, find the first entry: NumPy keeps the last of several assignments, so the
        # entries are reversed.  The extra element is for code -1.
        first = np.full(len(objects) + 1, MISSING_CODE, dtype=np.int64)
        first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
        table = np.full(len(objects) + 1, -1, dtype=np.int32)
        for code in np.argsort(first[:-1], kind="stable").tolist():
            if first[code] >= 0:
                row, index = {name: objects[code]}, int(first[code])
                table[code] = number(Fields(self._path, self._where, row, entry=index))
        codes[:] = table[codes]
        return codes
