"""The place of a key in a sorted list, in the quickest way for each form of the core.

Rule: `find` is `bisect.bisect_left`.  In plain Python it is that very function, written in C;
the compiled form has its own loop, which compares machine words and not objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocsim.core.constants import IS_COMPILED

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["find"]


def find(keys: list[int], key: int, low: i64 = 0, high: i64 = -1) -> int:
    """The first index in [low, high) whose key is not below `key`; high: -1 for the end."""
    middle: i64
    if high < 0:
        high = len(keys)
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


if not IS_COMPILED:
    from bisect import bisect_left as find  # type: ignore[assignment]
