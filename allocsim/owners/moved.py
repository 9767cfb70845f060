"""Pairs lines of code of two runs that differ in their numbers only.

Rule: two names are of one line if they differ in nothing but line numbers, and both runs have
equally many such names; these are paired in the order of their numbers.  Where lines were added to
the very function, which of them is new is not known, and none is paired.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

__all__ = ["LINE", "moved_lines"]

LINE = re.compile(r":(\d+)")
"""The number of a line in the name of an owner."""


def moved_lines(before: Iterable[str], now: Iterable[str]) -> dict[str, str]:
    """Of the names that only one side has, those of before by the names that they have now."""
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
