"""Match code lines of two runs whose line numbers changed.

Names that differ only in line numbers are paired in the order of the numbers, if both runs have
equally many of them.  If the counts differ, it is unknown which lines are new, and none is paired.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

__all__ = ["LINE", "moved_lines"]

LINE = re.compile(r":(\d+)")
"""Line number in the name of an owner."""


def moved_lines(before: Iterable[str], now: Iterable[str]) -> dict[str, str]:
    """Return the old name for each new name, among the names that only one side has."""
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
