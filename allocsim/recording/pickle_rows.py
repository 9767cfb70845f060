"""Read many entries of a pickled snapshot at once, column by column, as NumPy arrays.

This works because nearly all entries are dictionaries with the same keys in the same order: their
pickle operations are the same short sequence, and only the arguments differ.
"""

# Bytes within a text or number may look like an entry, so the caller uses only entries that begin
# where an operation ends. Python's pickler divides a pickle into frames, which begin with their
# length, and no operation may extend beyond the end of its frame.

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

PAD = 64
"""Number of zero bytes after the data; a read beyond the end finds them in place of operations."""

_STRETCH = 1 << 20
_RESERVE = 1 << 16
_FRAME = 0x95
_HEADER = 9


class OtherForm(Exception):  # noqa: N818  (no error: the file is read another way)
    """Exception for a pickle that this reader does not support; `unpickle` then reads it."""


class Window:
    """Part of a pickle file that is in memory; it moves forward through the file.

    data: operations, followed by PAD zero bytes.
    end: position in `data` where the operations end.
    seams: positions in `data` where frames (chunks of operations) of the pickle begin.
    soft_end: position in `data` after which the caller should call `more` to read on.
    """

    __slots__ = ("data", "end", "seams", "soft_end", "_file", "_in_frame", "_left")

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = file.seek(0, os.SEEK_END) - 2
        file.seek(0)
        head = file.read(2)
        if head not in (b"\x80\x04", b"\x80\x05"):
            raise OtherForm("an older protocol")
        self._in_frame = 0
        self.data, self.end, self.soft_end = bytes(PAD), 0, 0
        self.seams: list[int] = []
        self.more(0)

    def more(self, at: int) -> None:
        """Read more data and drop the data before position `at`, which becomes position 0."""
        parts = [self.data[at : self.end]]
        have = len(parts[0])
        self.seams = [seam - at for seam in self.seams if seam >= at]
        goal = max(_STRETCH, have + _RESERVE)
        while have < goal and self._left:
            if not self._in_frame:
                self.seams.append(have)
                header = self._file.read(_HEADER)
                self._in_frame = int.from_bytes(header[1:], "little")
                self._left -= _HEADER
                is_frame = len(header) == _HEADER and header[0] == _FRAME
                if not is_frame or not 0 < self._in_frame <= self._left:
                    raise OtherForm("not in frames")
            part = self._file.read(min(self._in_frame, goal - have))
            self._in_frame -= len(part)
            self._left -= len(part)
            if not part and self._in_frame:
                raise OtherForm("cut short")
            parts.append(part)
            have += len(part)
        parts.append(bytes(PAD))
        self.data, self.end = b"".join(parts), have
        self.soft_end = max(have - _RESERVE, 1) if self._left else have

    def seam_after(self, begin: int) -> int:
        at = bisect_left(self.seams, begin + 1)
        return self.seams[at] if at < len(self.seams) else self.end


NEW = -1
"""Value in a column of memo numbers (the pickle's indices of earlier objects) for a new object that
the entry itself creates."""

_SORTS = {
    **dict.fromkeys(("addr", "size", "stream", "time_us"), "number"),
    "frames": "stack",
    "pool_id": "pair",
}
"""Forms of values, keyed by field of an entry, for fields whose value the entry may create.

The values of other fields are references to objects that the pickle created before the entry.
"""
_BEGIN = b"}\x94("
_LONG, _MEMOIZE, _SET = (ord(c) for c in "\x8a\x94u")
_EMPTY_LIST, _MARK, _APPEND, _APPENDS = (ord(c) for c in "](ae")
_DEEPEST = 1024
"""Largest number of frames in a stack; entries with deeper stacks are read one by one."""

REFERENCE = re.compile(rb"h(.)|j(.{4})", re.DOTALL)
_REF = rb"(?:h.|j.{4})"
_VALUE = {
    "number": re.compile(rb"K.|M..|J.{4}|\x8a", re.DOTALL),
    "stack": re.compile(
        _REF + rb"|\]\x94(?:\(" + _REF + rb"{1,%d}+e|" % _DEEPEST + _REF + rb"a)?", re.DOTALL
    ),
    "pair": re.compile(_REF + rb"|K.K.\x86\x94", re.DOTALL),
    "known": re.compile(_REF, re.DOTALL),
}

_Places = NDArray[np.int64]
_Words = NDArray[np.uint64]
_U64 = np.uint64


# Tables indexed by operation code: total length of the operation, and mask of its argument in the
# bytes after the code.
_REF_LENGTH, _INT_LENGTH = np.zeros(256, dtype=np.int64), np.zeros(256, dtype=np.int64)
_MASK = np.zeros(256, dtype=np.uint64)
_REF_LENGTH[[*b"hj"]] = 2, 5
_INT_LENGTH[[*b"KMJ"]] = 2, 3, 5
_MASK[[*b"hKMJj"]] = 0xFF, 0xFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF

RowShape = tuple[tuple[bytes, str, str], ...]
"""Fields of an entry in a pickle: (bytes that load the key, name, form of the value).

The form is one of `_SORTS`, or "known" for a reference to an object created before the entry.
"""


class Made(NamedTuple):
    # Values that entries create, one per entry.  first, second: integers of a pair, or begin and
    # end of a list in the window.  before: number of memo numbers that the entry used before it.

    first: _Places
    second: _Places
    before: _Places


@dataclass(slots=True)
class RowBatch:
    """Columns of entries with the same fields, in file order; arrays have one item per entry.

    begin, end: byte positions in the window where each entry begins and ends.
    memos: number of objects that each entry adds to the pickle's memo (its numbered objects).
    last: for each entry, the index of the last entry that follows it without other data between.
    numbers: values of the integer fields, keyed by field.
    known: memo numbers of the values of other fields, keyed by field; NEW for a value that the
        entry itself creates.
    made: values that entries create, keyed by field; valid only where `known` is NEW.
    """

    begin: _Places
    end: _Places
    memos: _Places
    last: _Places
    numbers: dict[str, _Words]
    known: dict[str, _Places]
    made: dict[str, Made]


def read_shape(window: Window, at: int, name_of: Callable[[int], object]) -> RowShape | None:
    """Return the names and forms of the fields of the pickled entry that begins at byte `at`.

    Return None if no entry begins there, or if `read_batch` does not support the entry.

    name_of: function that returns the object with a given memo number, here a field's name.
    """
    data = window.data
    if not data.startswith(_BEGIN, at):
        return None
    at += len(_BEGIN)
    fields = []
    names: set[str] = set()
    while data[at] != _SET:
        key = REFERENCE.match(data, at)
        name = name_of(int.from_bytes(key[1] or key[2], "little")) if key else None
        if key is None or not isinstance(name, str) or name in names:
            return None
        names.add(name)
        sort = _SORTS.get(name, "known")
        value = _VALUE[sort].match(data, key.end())
        if value is None or value.end() > window.end:
            return None
        fields.append((key[0], name, sort))
        at = value.end()
        if data[at - 1] == _LONG and sort == "number":
            at += 1 + data[at]
    needed = {"action", "addr", "size", "stream", "frames"}
    return tuple(fields) if needed <= names and "device_free" not in names else None


def read_batch(window: Window, shape: RowShape) -> RowBatch:
    walk = _Walk(window)
    numbers: dict[str, _Words] = {}
    known: dict[str, _Places] = {}
    made: dict[str, Made] = {}
    for number, (key, name, sort) in enumerate(shape):
        walk.key(key, is_first=not number)
        if sort == "number":
            numbers[name] = walk.number()
        elif sort == "known":
            known[name] = walk.known()
        else:
            known[name], made[name] = walk.stack() if sort == "stack" else walk.pair()
    rows = walk.finish()
    begin, end = walk.begin[rows], walk.at[rows]
    return RowBatch(
        begin=begin,
        end=end,
        memos=walk.memos[rows],
        last=_last_of_runs(window, begin, end),
        numbers={name: column[rows] for name, column in numbers.items()},
        known={name: column[rows] for name, column in known.items()},
        made={name: Made(*(part[rows] for part in parts)) for name, parts in made.items()},
    )


def _last_of_runs(window: Window, begin: _Places, end: _Places) -> _Places:
    data = np.frombuffer(window.data, dtype=np.uint8)
    after = end.copy()
    # pickle writes a list in batches of 1,000 items; operations between two batches do not count as
    # an interruption.
    between = (data[end] == _APPENDS) & (data[end + 1] == _MARK)
    after[between] += len(b"e(")
    # No entry begins at -2, so the last entry always ends a sequence.
    ends = np.flatnonzero(np.append(after, -1)[:-1] != np.append(begin[1:], -2))
    return ends[np.searchsorted(ends, np.arange(len(begin)))]


class _Walk:
    # All entries are read in parallel: `at` is the position in each.  An entry that does not match
    # is moved to the zero bytes after the data, where nothing matches.

    __slots__ = ("begin", "at", "memos", "_data", "_end", "_window", "_words")

    def __init__(self, window: Window) -> None:
        self._window, self._end = window, window.end
        self._data = np.frombuffer(window.data, dtype=np.uint8)
        # The eight bytes at each position, as overlapping words.
        count = len(window.data) - 8
        self._words = np.ndarray((count,), "<u8", window.data, strides=(1,))
        data = self._data[: window.end]
        likely = data[:-2] == _BEGIN[0]
        likely &= data[1:-1] == _BEGIN[1]
        likely &= data[2:] == _BEGIN[2]
        self.begin: _Places = np.flatnonzero(likely)
        self.at: _Places = self.begin + len(_BEGIN)
        self.memos: _Places = np.ones(len(self.at), dtype=np.int64)

    def _lose(self, lost: NDArray[np.bool_]) -> None:
        if lost.any():
            self.at[lost] = self._end
        np.minimum(self.at, self._end, out=self.at)

    def key(self, key: bytes, *, is_first: bool) -> None:
        mask = (1 << 8 * len(key)) - 1
        found = (self._words[self.at] & _U64(mask)) == _U64(int.from_bytes(key, "little"))
        self.at += len(key)
        self._lose(~found)
        if is_first:
            kept = self.at < self._end
            self.begin, self.at, self.memos = self.begin[kept], self.at[kept], self.memos[kept]

    def number(self) -> _Words:
        word = self._words[self.at]
        code = (word & _U64(0xFF)).astype(np.uint8)
        value = (word >> _U64(8)) & _MASK[code]
        length = _INT_LENGTH[code]
        # BININT is signed.
        lost = (length == 0) | ((length == 5) & (value > _U64(0x7FFFFFFF)))
        longs = np.flatnonzero(code == _LONG)
        if len(longs):
            value[longs], length[longs], lost[longs] = self._long(longs, word[longs])
        self.at += length
        self._lose(lost)
        return value

    def _long(self, rows: _Places, word: _Words) -> tuple[_Words, _Places, NDArray[np.bool_]]:
        count = ((word >> _U64(8)) & _U64(0xFF)).astype(np.int64)
        places = self.at[rows] + 2
        value = self._words[places]
        short = np.minimum(count, 8)
        # A shift by 64 is undefined, so integers of no bytes, which are rare, are not supported.
        lost = (count == 0) | (count > 9)
        shift = np.where(lost, 0, 64 - 8 * short).astype(np.uint64)
        value = (value << shift) >> shift
        is_long = count == 9
        top = self._data[np.minimum(places + short - 1, self._end)] >= 0x80
        lost |= top & ~is_long
        lost |= is_long & (self._data[np.minimum(places + 8, self._end)] != 0)
        return value, np.where(lost, 1, 2 + count), lost

    def _reference(self) -> tuple[_Places, NDArray[np.bool_], NDArray[np.uint8]]:
        word = self._words[self.at]
        code = (word & _U64(0xFF)).astype(np.uint8)
        length = _REF_LENGTH[code]
        number = ((word >> _U64(8)) & _MASK[code]).astype(np.int64)
        self.at += length
        return number, length == 0, code

    def known(self) -> _Places:
        number, lost, _ = self._reference()
        self._lose(lost)
        return number

    def pair(self) -> tuple[_Places, Made]:
        number, other, code = self._reference()
        word = self._words[self.at]
        # K first K second TUPLE2 MEMOIZE
        made = (word & _U64(0xFFFF00FF00FF)) == _U64(0x9486004B004B)
        made &= other & (code != 0)
        number[made] = NEW
        first, second = (word >> _U64(8)) & _U64(0xFF), (word >> _U64(24)) & _U64(0xFF)
        pairs = Made(first.astype(np.int64), second.astype(np.int64), self.memos.copy())
        self.memos[made] += 1
        self.at[made] += 6
        self._lose(other & ~made)
        return number, pairs

    def stack(self) -> tuple[_Places, Made]:
        number, other, _ = self._reference()
        begin, end = self.at.copy(), self.at.copy()
        before = self.memos.copy()
        rows = np.flatnonzero(other)
        at = self.at[rows]
        made = (self._data[at] == _EMPTY_LIST) & (self._data[at + 1] == _MEMOIZE)
        rows, at = rows[made], at[made] + 2
        opened = self._data[at] == _MARK
        begin[rows] = at + opened
        stop = self._behind_references(begin[rows])
        count_is_one = self._data[stop] == _APPEND
        count_is_one &= stop - begin[rows] == _REF_LENGTH[self._data[begin[rows]]]
        many = self._data[stop] == _APPENDS
        empty = stop == begin[rows]
        sound = np.where(opened, many & ~empty, count_is_one | empty)
        end[rows] = stop
        number[rows] = NEW
        self.memos[rows] += 1
        self.at[rows] = stop + np.where(~opened & empty, 0, 1)
        other[rows] = ~sound
        self._lose(other)
        return number, Made(begin, end, before)

    def _behind_references(self, begin: _Places) -> _Places:
        stop = begin.copy()
        rows, at = np.arange(len(begin)), begin.copy()
        for _ in range(_DEEPEST):
            length = _REF_LENGTH[self._data[at]]
            at += length
            np.minimum(at, self._end, out=at)
            moving = length != 0
            if not moving.all():
                stop[rows[~moving]] = at[~moving]
                rows, at = rows[moving], at[moving]
                if not len(rows):
                    return stop
        stop[rows] = self._end
        return stop

    def finish(self) -> _Places:
        rows = np.flatnonzero(self._data[self.at] == _SET)
        self.at += 1
        sound = np.ones(len(rows), dtype=bool)
        seams = np.asarray(self._window.seams, dtype=np.int64)
        begin, end = self.begin[rows], self.at[rows]
        crossed = np.flatnonzero(
            np.searchsorted(seams, begin, "right") < np.searchsorted(seams, end, "left")
        )
        for index in crossed.tolist():
            sound[index] = _respects_seams(self._window, int(begin[index]), int(end[index]))
        return rows[sound]


_OPERATION = re.compile(rb"[hK].|M..|[jJ].{4}|\x8a|[}\x94(u\]ea\x86]", re.DOTALL)


def _respects_seams(window: Window, at: int, end: int) -> bool:
    data, seam = window.data, window.seam_after(at)
    while at < end:
        if at == seam:
            seam = window.seam_after(at)
        elif at > seam:
            return False
        match = _OPERATION.match(data, at)
        if match is None:
            return False
        at = match.end()
        if data[at - 1] == _LONG and match[0] == b"\x8a":
            at += 1 + data[at]
    return at <= seam
