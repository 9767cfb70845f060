"""Count the differences between two sequences of entries; an inserted entry counts once.

Two recordings of one program are equal over long stretches.  Between two such stretches, entries
outside the longest common subsequence differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
from numpy.typing import NDArray

__all__ = ["Codes", "Differences", "differences", "run_order"]

_Side = tuple[int, Counter[int]]
"""Length of a difference in one sequence, and the entries that the other sequence lacks."""

Codes = NDArray[np.int64]
"""A number per entry; equal entries have equal numbers."""

_WINDOWS = (64, 512, 4096)
"""Numbers of entries after a difference to search for equal entries, tried in this order."""
_STRETCH = 16
"""Number of consecutive equal entries that end a difference."""
_STEP = 4096
"""Number of entries that are compared at once."""


@dataclass(frozen=True, slots=True)
class Differences:
    """Counts of entries that differ.

    missing: number of entries of the first sequence that the second lacks.
    added: number of entries of the second sequence that the first lacks.
    moved: number of entries that both sequences have nearby, in a different order.
    """

    missing: int
    added: int
    moved: int


def differences(first: Codes, second: Codes) -> Differences:
    """Count the entries that are missing, added and moved from `first` to `second`.

    An entry counts as moved only inside one difference: its two places are at most 4,096 entries
    apart.  If no equal entries follow a difference, the rest is compared without regard
    to order.
    """
    missing = added = moved = i = j = 0
    while True:
        n = _equal(first[i:], second[j:])
        i, j = i + n, j + n
        if i == len(first) and j == len(second):
            return Differences(missing, added, moved)
        removed, inserted = _difference(first[i:], second[j:])
        i, j = i + removed[0], j + inserted[0]
        missing += (removed[1] - inserted[1]).total()
        added += (inserted[1] - removed[1]).total()
        moved += (removed[1] & inserted[1]).total()


def run_order(codes: Codes, is_in_run: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the positions that sort, within each group of neighbours, the entries by their code.

    is_in_run: True for the entries that are sorted with their neighbours.
    """
    groups = 2 * np.cumsum(~is_in_run) + is_in_run
    return np.lexsort((codes, groups))


def _equal(first: Codes, second: Codes) -> int:
    """Return the number of leading entries that are equal."""
    n = min(len(first), len(second))
    for begin in range(0, n, _STEP):
        end = min(begin + _STEP, n)
        other = np.flatnonzero(first[begin:end] != second[begin:end])
        if len(other):
            return begin + int(other[0])
    return n


def _difference(first: Codes, second: Codes) -> tuple[_Side, _Side]:
    """Return the difference with which two sequences begin, for each of the sequences."""
    for window in _WINDOWS:
        head, other = first[:window].tolist(), second[:window].tolist()
        matches = SequenceMatcher(None, head, other, autojunk=False).get_matching_blocks()
        is_whole = len(head) == len(first) and len(other) == len(second)
        end = next((k for k, match in enumerate(matches) if match.size >= _STRETCH), None)
        if end is None and not is_whole:
            continue
        inside, at = (matches, matches[-1]) if end is None else (matches[:end], matches[end])
        starts = [(match.a, match.b, match.size) for match in inside]
        removed = _side(head[: at.a], [(a, n) for a, _, n in starts])
        return removed, _side(other[: at.b], [(b, n) for _, b, n in starts])
    return (len(first), Counter(first.tolist())), (len(second), Counter(second.tolist()))


def _side(entries: Sequence[int], matched: Sequence[tuple[int, int]]) -> _Side:
    """Return a side whose (start, length) in `matched` are common to both."""
    others = Counter(entries)
    for start, size in matched:
        others -= Counter(entries[start : start + size])
    return len(entries), others
