"""Checked access to the values of an untrusted file.

Each method checks the type and range of a value; for a wrong value it raises RecordingError.
"""

from __future__ import annotations

from typing import Any, NoReturn, cast

from allocsim.errors import RecordingError
from allocsim.state import PoolId

UINT64_MAX = (1 << 64) - 1
INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
_SHOWN = 60


def describe(value: object) -> str:
    if isinstance(value, str):
        text = ascii(value[:_SHOWN])
        return text if len(value) <= _SHOWN else f"{text}… ({len(value)} characters)"
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else f"a {value.bit_length()}-bit integer"
    if isinstance(value, dict | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


class Fields:
    """Dictionary read from a file, with its position in the file for error messages.

    where: position of the dictionary as text, e.g. "segments[3]".
    entry: index of the recorded entry that the dictionary describes; None if it is no entry.
    """

    __slots__ = ("path", "where", "entry", "_values")

    def __init__(self, path: str, where: str, value: object, *, entry: int | None = None) -> None:
        self.path, self.where, self.entry = path, where, entry
        if not isinstance(value, dict):
            self._values: dict[Any, Any] = {}
            self.refuse(f"{where} is {describe(value)}, expected a dictionary")
        self._values = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def keys(self) -> list[str]:
        return [key for key in self._values if isinstance(key, str)]

    def refuse(self, what: str) -> NoReturn:
        raise RecordingError(self.path, what, entry=self.entry)

    def value(self, name: str, expected: str) -> object:
        """Return the value of the field `name`.

        expected: description of the value, for the error if the field is missing.
        """
        if name not in self._values:
            self.refuse(f"{self.where} has no {name}, expected {expected}")
        return cast(object, self._values[name])

    def wrong(self, name: str, value: object, expected: str) -> NoReturn:
        self.refuse(f"{self.where} has {name} {describe(value)}, expected {expected}")

    def integer(self, name: str, low: int, high: int) -> int:
        expected = f"an integer from {low} to {high}"
        value = self.value(name, expected)
        if type(value) is not int or not low <= value <= high:
            self.wrong(name, value, expected)
        return value

    def number(self, name: str) -> float:
        value = self.value(name, "a number")
        if type(value) is int and value.bit_length() <= 64:
            return float(value)
        if type(value) is not float:
            self.wrong(name, value, "a number")
        return value

    def text(self, name: str) -> str:
        value = self.value(name, "text")
        if type(value) is not str:
            self.wrong(name, value, "text")
        return value

    def boolean(self, name: str) -> bool:
        value = self.value(name, "True or False")
        if type(value) is not bool:
            self.wrong(name, value, "True or False")
        return value

    def pool_id(self, name: str) -> PoolId:
        """Return the pool id in the field `name` as a tuple; JSON files have a list."""
        expected = "a pool id of two integers"
        value = self.value(name, expected)
        if not isinstance(value, list | tuple) or len(value) != 2:
            self.wrong(name, value, expected)
        for part in value:
            if type(part) is not int or not 0 <= part <= UINT64_MAX:
                self.wrong(name, value, expected)
        return value[0], value[1]

    def items(self, name: str) -> list[object]:
        value = self.value(name, "a list")
        if not isinstance(value, list | tuple):
            self.wrong(name, value, "a list")
        return cast(list[object], value)
