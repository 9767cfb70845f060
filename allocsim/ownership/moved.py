"""Match owners of two recordings whose names differ only in line numbers.

Such names are paired in the order of the line numbers, if both recordings have equally many of
them. If the counts differ, it is unknown which lines are new, and none of the names are paired.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

__all__ = ["LINE", "moved_lines"]

LINE = re.compile(r":(\d+)")
"""Line number in the name of an owner."""


def moved_lines(before: Iterable[str], now: Iterable[str]) -> dict[str, str]:
    """Return a dict from names that only `now` has to their old names, which only `before` has."""
    known = set(before), set(now)
    alone: list[dict[str, list[str]]] = [defaultdict(list), defaultdict(list)]
    for side, other, found in zip(known, known[::-1], alone, strict=True):
        for name in sorted(side - other, key=_numbers):
            found[LINE.sub("", name)].append(name)
    return {
        new: old
        for name, names in alone[1].items()
        if len(alone[0].get(name, ())) == len(names)
        for new, old in zip(names, alone[0][name], strict=True)
    }


def _numbers(name: str) -> list[int]:
    return [int(number) for number in LINE.findall(name)]
