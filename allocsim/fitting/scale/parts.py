"""Insertions as further copies of a part of the program.

Rule: the additional rows of a larger program are copies of adjacent rows: the layer before or
    after. If they match neither, the program did not grow; PyTorch ran other kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from allocsim.fitting.scale.alignment import Insertion, shared_rows
from allocsim.fitting.scale.likeness import Likeness

__all__ = ["Part", "parts_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """An insertion, and how far the rows before and after it continue its pattern.

    before, after: number of shared rows directly before and after it whose kind and stack equal
        those of the rows one insertion length later and earlier.
    """

    insertion: Insertion
    before: int
    after: int

    @property
    def is_repeated(self) -> bool:
        """True if each row of the insertion repeats a row before or after it."""
        return self.before + self.after >= len(self.insertion)

    def counterparts(self, row: int) -> list[int]:
        """Return the rows that a row of the insertion repeats, the row on the longer side first."""
        length, each = len(self.insertion), self.insertion
        found = []
        if row - length >= each.start - self.before:
            found.append(row - length)
        if row + length < each.stop + self.after:
            found.append(row + length)
        return found[::-1] if self.after > self.before else found


def parts_of(found: Sequence[Insertion], long: Likeness) -> list[Part]:
    """Return each insertion of the program `long` with the matching rows on both sides."""
    shared = shared_rows(len(long.form), found) >= 0
    return [part for each in found for part in _split(each, long, shared)]


def _split(each: Insertion, long: Likeness, shared: NDArray[np.bool_]) -> tuple[Part, ...]:
    """Split an insertion that is the last copy of one part and the first copy of another.

    If X X Y Y became X X X Y Y Y, one insertion of X Y is possible as well. It repeats nothing
    adjacent, while X repeats the rows before it and Y the rows after it. Rows of equal bytes show
    this; if bytes grow with every copy, equal kinds and stacks have to suffice.
    """
    whole = _part(each, long.form, shared)
    if _part(each, long.exact, shared).is_repeated:
        return (whole,)
    for numbers in (long.exact, long.form):
        if numbers is long.form and whole.is_repeated:
            return (whole,)
        for place in _positions(each, long, shared):
            if (middle := _middle(place, numbers)) is not None:
                first, second = replace(place, stop=middle), replace(place, start=middle)
                return _part(first, long.form, shared), _part(second, long.form, shared)
    return (whole,)


def _part(each: Insertion, numbers: NDArray[np.int64], shared: NDArray[np.bool_]) -> Part:
    """Return the insertion with the number of matching rows on each side.

    numbers: number for the form of each row.
    """
    n, length = len(numbers), len(each)
    before = after = 0
    while (row := each.start - 1 - before) >= 0 and shared[row]:
        if numbers[row] != numbers[row + length]:
            break
        before += 1
    while (row := each.stop + after) < n and shared[row]:
        if numbers[row] != numbers[row - length]:
            break
        after += 1
    return Part(each, before, after)


def _positions(each: Insertion, long: Likeness, shared: NDArray[np.bool_]) -> Iterator[Insertion]:
    """Yield the other places at which the insertion leaves the same shared rows."""
    yield each
    exact, n = long.exact, len(long.exact)
    place = each
    while place.start and shared[row := place.start - 1] and exact[row] == exact[place.stop - 1]:
        yield (place := place.moved(-1))
    place = each
    while place.stop < n and shared[place.stop] and exact[place.start] == exact[place.stop]:
        yield (place := place.moved(1))


def _middle(place: Insertion, numbers: NDArray[np.int64]) -> int | None:
    """Return the row between a copy of the rows before and one of the rows after, or None."""
    for middle in range(place.start + 1, place.stop):
        first, second = middle - place.start, place.stop - middle
        if first > place.start or place.stop + second > len(numbers):
            continue
        is_first = np.array_equal(
            numbers[place.start : middle], numbers[place.start - first : place.start]
        )
        if is_first and np.array_equal(
            numbers[middle : place.stop], numbers[place.stop : place.stop + second]
        ):
            return middle
    return None
