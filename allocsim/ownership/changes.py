"""Compare the owners of two moments or recordings.

`status_of` gives the change of an owner as one word.  `moved_lines` matches owners whose names
differ only in line numbers: they are paired in the order of the line numbers, if both recordings
have equally many of them.  If the counts differ, it is unknown which lines are new, and none of the
names are paired.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

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


def status_of(change: int, *, was_there: bool, is_there: bool) -> str:
    """Return "new", "gone", "larger", "smaller" or "same".

    change: change of the owner's bytes.
    was_there, is_there: True if the owner has blocks before and after; they may have 0 bytes.
    """
    if not was_there:
        return "new"
    if not is_there:
        return "gone"
    if not change:
        return "same"
    return "larger" if change > 0 else "smaller"
