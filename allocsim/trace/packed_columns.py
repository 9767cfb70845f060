"""The entries of one device, from packed rows to columns of numbers.

Rule: what is unsound is `Unlike`, never named here; the file is then read as objects, where the
culprit is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim.state import PoolId
from allocsim.trace.fields import INT64_MAX, UINT64_MAX, Fields
from allocsim.trace.frames import StackReader
from allocsim.trace.packed import MISSING_CODE, Packed
from allocsim.trace.trace import Action
from allocsim.trace.window import Unlike

__all__ = ["PackedReader"]

_CODES = {action.text: int(action) for action in Action}


class PackedReader:
    """Reads columns, each once: they are the entries' own, and not copied."""

    __slots__ = ("names", "_entries", "_path", "_where")

    def __init__(self, path: str, where: str, entries: Packed) -> None:
        self._path, self._where, self._entries = path, where, entries
        self.names: set[str] = entries.names

    def actions(self) -> NDArray[np.uint8]:
        """Codes of the actions."""
        column = self._numbered("action", lambda _, value: _action(value))
        if np.any(column < 0):
            raise Unlike("an entry without action")
        return column.astype(np.uint8)

    def addresses(self, _: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """addr, or device_free for oom."""
        return self.integers("addr", 0, UINT64_MAX)

    def integers(self, name: str, low: int, high: int) -> NDArray[np.uint64]:
        """A column of integers from `low` to `high`."""
        column = self._entries.numbers(name)
        if column is None or (len(column) and not low <= int(column.max()) <= high):
            raise Unlike(f"{name} out of its range")
        return column

    def times(self) -> NDArray[np.int64] | None:
        """time_us, or None if any entry lacks it."""
        column = self._entries.numbers("time_us")
        if column is None:
            return None
        if int(column.max()) > INT64_MAX:
            raise Unlike("time_us out of its range")
        return column.view(np.int64)

    def stacks(self, stacks: StackReader) -> NDArray[np.int32]:
        """Numbers of the stacks."""

        def number(index: int, value: object) -> int:
            row = {"frames": value}
            return stacks.read(Fields(self._path, self._where, row, entry=index))

        return self._numbered("frames", number)

    def pools(self, pool_ids: dict[PoolId, int]) -> NDArray[np.int32]:
        """Numbers of the pool ids in `pool_ids`."""
        return self._numbered(
            "pool_id", lambda _, value: pool_ids.setdefault(_pool_id(value), len(pool_ids))
        )

    def texts(self, name: str, texts: dict[str, int]) -> NDArray[np.int32] | None:
        """Numbers of a text field in `texts`, or None if no entry has it."""
        if name not in self.names:
            return None
        return self._numbered(name, lambda _, value: texts.setdefault(_text(value), len(texts)))

    def _numbered(self, name: str, number: Callable[[int, Any], int]) -> NDArray[np.int32]:
        """`number` of the first entry with each object and the object, in their order."""
        codes, objects = self._entries.codes(name), self._entries.objects
        # The last of several items wins, which is the first entry here; the last place is for -1.
        first = np.full(len(objects) + 1, MISSING_CODE, dtype=np.int64)
        first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
        table = np.full(len(objects) + 1, -1, dtype=np.int32)
        for code in np.argsort(first[:-1], kind="stable").tolist():
            if first[code] >= 0:
                table[code] = number(int(first[code]), objects[code])
        codes[:] = table[codes]
        return codes


def _action(value: object) -> int:
    text = _text(value)
    if text not in _CODES:
        raise Unlike("no action")
    return _CODES[text]


def _text(value: object) -> str:
    if type(value) is not str:
        raise Unlike("no text")
    return value


def _pool_id(value: Any) -> PoolId:
    sound = type(value) is tuple and len(value) == 2
    if not sound or not all(type(n) is int and 0 <= n <= UINT64_MAX for n in value):
        raise Unlike("no pool id")
    return value[0], value[1]
