"""Convert the codes of packed entries to the numbers that a trace stores.

An invalid value raises `OtherForm` or RecordingError.  The caller then reads the file again as
Python objects, so that the error message names the invalid entry.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from allocsim.recording.action import ACTION_CODES
from allocsim.recording.fast_pickle.packed import MISSING_CODE, Packed
from allocsim.recording.fast_pickle.window import OtherForm
from allocsim.recording.fields import INT64_MAX, UINT64_MAX, Fields
from allocsim.recording.frames import StackReader
from allocsim.state import PoolId

__all__ = ["PackedReader"]


class PackedReader:
    """Reader of the columns of `Packed` entries.

    It overwrites the columns, so call each method only once per field.
    """

    __slots__ = ("names", "_entries", "_path", "_where")

    def __init__(self, path: str, where: str, entries: Packed) -> None:
        self._path, self._where, self._entries = path, where, entries
        self.names: set[str] = entries.names

    def actions(self) -> NDArray[np.uint8]:
        """Return the code of each entry's action."""
        column = self._numbered("action", self._action)
        if np.any(column < 0):
            raise OtherForm("an entry without action")
        return column.astype(np.uint8)

    def addresses(self, _: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """Return the addr of each entry; for an oom, its device_free in bytes."""
        return self.integers("addr", 0, UINT64_MAX)

    def integers(self, name: str, low: int, high: int) -> NDArray[np.uint64]:
        """Return field `name` of each entry; OtherForm if one is not from `low` to `high`."""
        column = self._entries.numbers(name)
        if column is None or (len(column) and not low <= int(column.max()) <= high):
            raise OtherForm(f"{name} out of its range")
        return column

    def times(self) -> NDArray[np.int64] | None:
        """Return the time_us of each entry; None if any entry lacks it."""
        column = self._entries.numbers("time_us")
        if column is None:
            return None
        if int(column.max()) > INT64_MAX:
            raise OtherForm("time_us out of its range")
        return column.view(np.int64)

    def stacks(self, stacks: StackReader) -> NDArray[np.int32]:
        """Return the stack number of each entry."""
        return self._numbered("frames", stacks.read)

    def pools(self, pool_ids: dict[PoolId, int]) -> NDArray[np.int32]:
        """Return the index in `pool_ids` of each entry's pool, -1 if it has none; add new pools."""
        return self._numbered(
            "pool_id", lambda row: pool_ids.setdefault(row.pool_id("pool_id"), len(pool_ids))
        )

    def texts(self, name: str, texts: dict[str, int]) -> NDArray[np.int32] | None:
        """Return the index in `texts` of each entry's text, -1 if it has none; add new texts.

        name: field of the text.  Return None if no entry has the field.
        """
        if name not in self.names:
            return None
        return self._numbered(name, lambda row: texts.setdefault(row.text(name), len(texts)))

    @staticmethod
    def _action(row: Fields) -> int:
        text = row.text("action")
        if text not in ACTION_CODES:
            raise OtherForm("no action")
        return ACTION_CODES[text]

    def _numbered(self, name: str, number: Callable[[Fields], int]) -> NDArray[np.int32]:
        """Return a number for each entry, equal for equal codes of field `name`, -1 if missing.

        number: called for the first entry with each code, in entry order.
        """
        codes, objects = self._entries.codes(name), self._entries.objects
        # NumPy keeps the last of several assignments, so reversing finds the first entry.  The
        # extra element receives the entries with code -1.
        first = np.full(len(objects) + 1, MISSING_CODE, dtype=np.int64)
        first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
        table = np.full(len(objects) + 1, -1, dtype=np.int32)
        for code in np.argsort(first[:-1], kind="stable").tolist():
            if first[code] >= 0:
                row, index = {name: objects[code]}, int(first[code])
                table[code] = number(Fields(self._path, self._where, row, entry=index))
        codes[:] = table[codes]
        return codes
