"""Growth of a program with a size, such as the number of layers: the rows that a layer adds.

A row is one request, free or other allocator call.  Two recorded runs are compared; the rows that
only the longer run has must repeat the rows directly before or after them.
"""

# A row's value is the bytes of a request or, for a free, the number of allocated blocks, requested
# from the same Python stack, that were requested after the freed block. If a program has `copies`
# copies of the inserted rows, the value of a row in copy number `copy` (from 0) is
# p + q·copy + r·(copies - 1), where p is its value in the longer recorded run, q is the difference
# between an inserted row and the adjacent row that it repeats, and r is the difference between the
# values of one row in both recorded runs. The formula must reproduce both runs row by row.

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.errors import ConfigError
from allocsim.fitting.laws import BEFORE, Repeated
from allocsim.fitting.scale.alignment import (
    Insertion,
    Likeness,
    insertions,
    likeness_of,
    shared_rows,
)
from allocsim.fitting.scale.law import FREES, SizedProgram, numbered
from allocsim.simulation import StepKind, Steps


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """Repeated part of a program, such as one layer's requests and frees in the forward pass.

    insertion: the n rows (requests, frees, other calls) that only the longer of two programs has.
    before: number of rows directly before `insertion` that equal the rows n places later.
    after: number of rows directly after `insertion` that equal the rows n places earlier.
    """

    insertion: Insertion
    before: int
    after: int

    @property
    def is_repeated(self) -> bool:
        """True if each of the n inserted rows equals the row n places before or after it.

        The inserted rows are then one more copy of rows that both programs have.
        """
        return self.before + self.after >= len(self.insertion)

    def counterparts(self, row: int) -> list[int]:
        """Return the one or two rows that the inserted row `row` repeats.

        If there are two, the row on the side with more repeated rows comes first.
        """
        length, each = len(self.insertion), self.insertion
        found = []
        if row - length >= each.start - self.before:
            found.append(row - length)
        if row + length < each.stop + self.after:
            found.append(row + length)
        return found[::-1] if self.after > self.before else found


def parts_of(found: Sequence[Insertion], long: Likeness) -> list[ProgramPart]:
    """Return the repeated parts, such as a layer's forward pass, that only a longer program has.

    The short and the long program are runs of the same code that differ in one number, such as the
    number of layers.  A row of a program is one request, free or other allocator call.

    found: ranges of rows that only the long program has.
    long: codes of the long program's rows; rows that repeat each other have equal codes.
    """
    shared = shared_rows(len(long.form), found) >= 0
    return [part for each in found for part in _split(each, long, shared)]


def _split(each: Insertion, long: Likeness, shared: NDArray[np.bool_]) -> tuple[ProgramPart, ...]:
    # If X X Y Y became X X X Y Y Y, one insertion of X Y is possible as well. It repeats nothing
    # adjacent, while X repeats the rows before it and Y the rows after it. Rows of equal bytes
    # show this; if bytes grow with every copy, equal kinds and stacks have to suffice.
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


def _part(each: Insertion, numbers: NDArray[np.int64], shared: NDArray[np.bool_]) -> ProgramPart:
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
    return ProgramPart(each, before, after)


def _positions(each: Insertion, long: Likeness, shared: NDArray[np.bool_]) -> Iterator[Insertion]:
    yield each
    exact, n = long.exact, len(long.exact)
    place = each
    while place.start and shared[row := place.start - 1] and exact[row] == exact[place.stop - 1]:
        yield (place := place.moved(-1))
    place = each
    while place.stop < n and shared[place.stop] and exact[place.start] == exact[place.stop]:
        yield (place := place.moved(1))


def _middle(place: Insertion, numbers: NDArray[np.int64]) -> int | None:
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


_HANDLE = 1 << 62
"""First of the addresses that are invented for blocks; the index of a block's request is added."""


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """Rows (allocator calls) that a program adds for each layer, found in two recordings.

    first, second: recorded programs with fewer and with more layers.
    group: code of each request's Python stack, one element per request of `second`.
    parts: ranges of rows that only `second` has, such as one layer's forward pass.
    value: for each row of `second`, the bytes of a request; for a free, the number of allocated
        blocks of the same stack that were requested after the freed block.
    by_copy: increase of `value` from one added copy of a part to the next copy.
    by_copies: increase of `value` in each row, also outside `parts`, if one more copy is added.
    """

    first: SizedProgram
    second: SizedProgram
    group: NDArray[np.int64]
    parts: tuple[ProgramPart, ...]
    value: NDArray[np.int64]
    by_copy: NDArray[np.int64]
    by_copies: NDArray[np.int64]

    @property
    def more_requests(self) -> int:
        return len(self.second.size) - len(self.first.size)

    def program_with(self, copies: int) -> SizedProgram:
        """Return the program `first` with `copies` more copies of each part, such as layers.

        Raises ConfigError if it cannot be determined which block a free of the program frees.
        """
        second = self.second
        try:
            made = self._repeated().with_copies(copies)
        except LookupError as error:
            raise ConfigError(self._no_block(int(error.args[0]), copies)) from None
        row, value, block = made.row, made.value, made.block
        kind = second.kind[row]
        is_request = kind == StepKind.ALLOC
        steps = second.steps
        return SizedProgram(
            prepared=second.prepared,
            steps=Steps(
                kind,
                steps.entry[row],
                self._addresses(row, kind, block),
                np.where(is_request, value, steps.size[row]),
                steps.stream[row],
            ),
            kind=kind,
            block=block,
            stream=numbered(steps.stream[row]),
            argument=second.argument[row],
            size=value[is_request],
            before=second.before,
        )

    def _repeated(self) -> Repeated:
        second, kind, own = self.second, self.second.kind, self.second.block
        is_free = any_of(kind, FREES)
        is_request = kind == StepKind.ALLOC
        group = np.full(len(kind), BEFORE, dtype=np.int64)
        known = (is_request | is_free) & (own >= 0)
        group[known] = self.group[own[known]]
        return Repeated(
            is_request=is_request,
            is_free=is_free,
            is_end=is_free & (kind != StepKind.FREE_REQUEST),
            group=group,
            value=self.value,
            by_copy=self.by_copy,
            by_copies=self.by_copies,
            parts=[(part.insertion.start, part.insertion.stop) for part in self.parts],
            n_before=len(second.before),
        )

    def _addresses(
        self, row: NDArray[np.int64], kind: NDArray[np.uint8], block: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        found = self.second.steps.addr[row].copy()
        is_own = (kind == StepKind.ALLOC) | (any_of(kind, FREES) & (block >= 0))
        found[is_own] = (block[is_own] + _HANDLE).astype(np.uint64)
        return found

    def _no_block(self, row: int, copies: int) -> str:
        return (
            f"which block is freed follows no law with {copies} more of each part: "
            f"{self.second.described(row)}; expected recordings of more of them"
        )


def growth_between(first: SizedProgram, second: SizedProgram) -> Growth | None:
    """Find the requests and frees, such as those of one layer, that `second` adds to `first`.

    Return None if the added calls do not repeat adjacent calls, or if other calls differ.
    """
    plans = first.prepared.plan, second.prepared.plan
    if first.before != second.before or plans[0].changes != plans[1].changes:
        return None
    known: dict[Hashable, int] = {}
    short, long = likeness_of(first, known), likeness_of(second, known)
    found = insertions(short, long)
    if found is None:
        return None
    parts = parts_of(found, long)
    if not all(part.is_repeated for part in parts) or not _is_mostly_the_same(parts, long):
        return None
    value = [_values(program, like) for program, like in ((first, short), (second, long))]
    shared = shared_rows(len(long.form), [part.insertion for part in parts])
    laws = _fitted(parts, shared, *value)
    growth = Growth(first, second, long.group, tuple(parts), value[1], *laws)
    # The fit uses one counterpart per row; only if it reproduces both programs is it proved.
    ends = (growth.program_with(0), first), (growth.program_with(1), second)
    return growth if all(made.first_difference(real) is None for made, real in ends) else None


def _is_mostly_the_same(parts: Sequence[ProgramPart], long: Likeness) -> bool:
    pairs = [(row, other[0]) for row, other in _counterparts(parts)]
    row, other = np.array(pairs).T
    return bool(np.count_nonzero(long.exact[row] == long.exact[other]) * 2 > len(pairs))


def _counterparts(parts: Sequence[ProgramPart]) -> Iterator[tuple[int, list[int]]]:
    for part in parts:
        for row in range(part.insertion.start, part.insertion.stop):
            yield row, part.counterparts(row)


def _values(program: SizedProgram, like: Likeness) -> NDArray[np.int64]:
    found = like.younger.copy()
    found[program.requests] = program.size
    return found


def _fitted(
    parts: Sequence[ProgramPart],
    shared: NDArray[np.int64],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    # A repeated row after an insertion is one copy further in the second program than in the first.
    by_copy = np.zeros(len(second), dtype=np.int64)
    by_copies = np.where(shared >= 0, second - first[shared], 0)
    for row, others in _counterparts(parts):
        other = others[0]
        sign = 1 if other > row else -1
        by_copy[row] = sign * (second[other] - second[row])
        grew = second[other] - first[shared[other]]
        by_copies[row] = grew - by_copy[row] if other > row else grew
    return by_copy, by_copies
