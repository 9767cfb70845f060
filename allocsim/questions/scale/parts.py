"""Insertions as further copies of a part of the program.

Rule: what a program does more at a larger size is a copy of what lies beside it, the layer before
or the layer after; one that is like neither is no growth but another way through the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from allocsim.questions.scale.alignment import Insertion, shared_rows
from allocsim.questions.scale.likeness import Likeness

__all__ = ["Part", "parts_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """An insertion and how far what lies beside it goes on like it.

    before, after: rows of both programs just before and after it whose forms are those of the
        rows a whole length further on, or back.
    """

    insertion: Insertion
    before: int
    after: int

    @property
    def is_repeated(self) -> bool:
        """Whether each of its rows has a counterpart beside it."""
        return self.before + self.after >= len(self.insertion)

    def counterparts(self, row: int) -> list[int]:
        """The rows that one of its rows repeats, that of the longer side first."""
        length, each = len(self.insertion), self.insertion
        found = []
        if row - length >= each.start - self.before:
            found.append(row - length)
        if row + length < each.stop + self.after:
            found.append(row + length)
        return found[::-1] if self.after > self.before else found


def parts_of(found: Sequence[Insertion], long: Likeness) -> list[Part]:
    """Each insertion of the program `long`, and its sides."""
    shared = shared_rows(len(long.form), found) >= 0
    return [part for each in found for part in _taken_apart(each, long, shared)]


def _taken_apart(each: Insertion, long: Likeness, shared: NDArray[np.bool_]) -> tuple[Part, ...]:
    """An insertion, or the two that it is: the last of one row of copies, the first of another.

    Where X X Y Y became X X X Y Y Y, one insertion of X Y explains it as well; but that repeats
    nothing, while X repeats what lies before it and Y what lies after.  Rows of the same bytes
    tell it; where bytes grow with every copy, their forms have to.
    """
    whole = _part(each, long.form, shared)
    if _part(each, long.exact, shared).is_repeated:
        return (whole,)
    for numbers in (long.exact, long.form):
        if numbers is long.form and whole.is_repeated:
            return (whole,)
        for place in _places(each, long, shared):
            if (middle := _middle(place, numbers)) is not None:
                first, second = replace(place, stop=middle), replace(place, start=middle)
                return _part(first, long.form, shared), _part(second, long.form, shared)
    return (whole,)


def _part(each: Insertion, numbers: NDArray[np.int64], shared: NDArray[np.bool_]) -> Part:
    """The insertion, and how far what lies beside it has the same numbers."""
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


def _places(each: Insertion, long: Likeness, shared: NDArray[np.bool_]) -> Iterator[Insertion]:
    """Where the insertion can lie as well, with the same rows around it."""
    yield each
    exact, n = long.exact, len(long.exact)
    place = each
    while place.start and shared[row := place.start - 1] and exact[row] == exact[place.stop - 1]:
        yield (place := place.moved(-1))
    place = each
    while place.stop < n and shared[place.stop] and exact[place.start] == exact[place.stop]:
        yield (place := place.moved(1))


def _middle(place: Insertion, numbers: NDArray[np.int64]) -> int | None:
    """Where an insertion ends to be like what lies before it and begins to be like what follows."""
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
