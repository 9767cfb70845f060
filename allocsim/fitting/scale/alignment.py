"""Alignment of two programs, such as models with 2 and 3 layers: rows that only the longer has.

A row is one request, free or other allocator call.  Every row of the shorter program is in the
longer one, in the same order; the cheapest alignment of the two gives the inserted rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.fitting.laws import BEFORE
from allocsim.fitting.scale.law import FREES, SizedProgram
from allocsim.simulation import StepKind


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """Codes of a program's rows (requests, frees, other calls): equal codes mean similar rows.

    form: equal for rows with the same kind, stream, argument and Python stack; frees must also
        agree in the stack that requested the block.
    exact: equal for rows with the same `form` and bytes.
    group: code of each request's Python stack, one element per request.
    younger, older: for a free, the number of allocated blocks of the same stack that were
        requested after the freed block, and before it; 0 in other rows.
    """

    form: NDArray[np.int64]
    exact: NDArray[np.int64]
    group: NDArray[np.int64]
    younger: NDArray[np.int64]
    older: NDArray[np.int64]


def likeness_of(program: SizedProgram, known: dict[Hashable, int]) -> Likeness:
    """Return the codes by which a program's rows are compared with the rows of other programs.

    known: dictionary of all codes in use, shared by the compared programs; new codes are added.
    """
    stack = _stacks(program, known)
    group = stack[program.requests]
    form = np.zeros(len(stack), dtype=np.int64)
    exact = form.copy()
    columns = (program.kind, program.stream, program.argument, stack, program.block)
    for row, (kind, stream, argument, by, block) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        identity: tuple[int, ...] = (kind, stream, argument, by)
        size = 0
        if kind == StepKind.ALLOC or kind in FREES:
            identity += (int(group[block]) if block >= 0 else block,)
            size = int(program.size[block]) if block >= 0 else 0
        form[row] = known.setdefault(identity, len(known))
        exact[row] = known.setdefault((*identity, size), len(known))
    return Likeness(form, exact, group, *_orders(program, group))


def _stacks(program: SizedProgram, known: dict[Hashable, int]) -> NDArray[np.int64]:
    trace, entry = program.prepared.trace, program.steps.entry
    number = np.where(entry < 0, -1, trace.frames[entry])
    present, index = np.unique(number, return_inverse=True)
    stacks = (trace.frame_table.stack(each) for each in present.tolist())
    named = np.array([known.setdefault(stack, len(known)) for stack in stacks], dtype=np.int64)
    found: NDArray[np.int64] = named[index]
    return found


def _orders(
    program: SizedProgram, group: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    alive: defaultdict[int, list[int]] = defaultdict(list)
    alive[BEFORE] = list(range(-len(program.before), 0))
    younger = np.zeros(len(program.kind), dtype=np.int64)
    older = younger.copy()
    for row, (kind, block) in enumerate(
        zip(program.kind.tolist(), program.block.tolist(), strict=True)
    ):
        if kind == StepKind.ALLOC:
            alive[int(group[block])].append(block)
        elif kind in FREES:
            same_group = alive[int(group[block]) if block >= 0 else BEFORE]
            older[row] = same_group.index(block)
            younger[row] = len(same_group) - 1 - older[row]
            if kind != StepKind.FREE_REQUEST:
                same_group.pop(int(older[row]))
    return younger, older


_INSERTION = 40
_OTHER_SIZE = 16
"""Cost of aligning two rows with different bytes; `_INSERTION` is the cost of an inserted range.

The cost doubles if one of the two rows equals a row elsewhere in the other program, and triples if
each of them does. Two aligned frees cost 1 if `Likeness.younger` differs, and another 1 if
`Likeness.older` differs too.
"""

_IMPOSSIBLE = 1 << 30

_EVERY = 256
"""Number of rows from one stored cost to the next; costs in between are recomputed if needed."""

_MOST_CELLS = 1 << 31
"""Limit on the number of rows of the shorter program times the number of inserted rows.

A comparison at this limit takes some minutes.
"""


@dataclass(frozen=True, slots=True)
class Insertion:
    """Consecutive rows, `start` to `stop` - 1, that only the longer of two programs has.

    A row is one request, free or other allocator call; rows are counted from 0.

    at: row of the shorter program before which the rows are inserted.
    """

    at: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def moved(self, by: int) -> Insertion:
        """Return a copy of the insertion that is `by` rows later in both programs."""
        return Insertion(self.at + by, self.start + by, self.stop + by)


def insertions(short: Likeness, long: Likeness) -> list[Insertion] | None:
    """Return the ranges of requests, frees and other calls that only the program `long` has.

    Return None if `long` lacks a call of `short`, or if the comparison would take too long.
    """
    more = len(long.form) - len(short.form)
    if more <= 0 or len(short.form) * more > _MOST_CELLS:
        return None
    return _Search(short, long, more).run()


def shared_rows(n_long: int, found: Iterable[Insertion]) -> NDArray[np.int64]:
    """Return the row of the shorter program for each row of the longer; -1 for an inserted row.

    n_long: number of rows (requests, frees, other calls) of the longer program.
    found: rows that only the longer program has.
    """
    is_shared = np.ones(n_long, dtype=bool)
    for each in found:
        is_shared[each.start : each.stop] = False
    return np.where(is_shared, np.cumsum(is_shared) - 1, -1)


class _Search:
    # In the methods, costs[d] is the least cost up to a row if d rows were inserted before it.
    def __init__(self, short: Likeness, long: Likeness, more: int) -> None:
        self._short, self._long, self._more = short, long, more
        self._first = self._same_at_start()
        known = np.isin(short.exact, long.exact), np.isin(long.exact, short.exact)
        self._short_price = _OTHER_SIZE * (1 + known[0].astype(np.int32))
        self._long_price = _OTHER_SIZE * known[1].astype(np.int32)

    def run(self) -> list[Insertion] | None:
        end = len(self._short.form)
        costs = np.full(self._more + 1, _IMPOSSIBLE, dtype=np.int32)
        costs[0] = 0
        kept = {}
        for row in range(self._first, end):
            if (row - self._first) % _EVERY == 0:
                kept[row] = costs
            costs = self._after(row, costs)
        if _with_insertion(costs)[-1] >= _IMPOSSIBLE:
            return None
        return self._trace_back(costs, kept)

    def _same_at_start(self) -> int:
        n = len(self._short.form)
        names = ("exact", "younger", "older")
        same = np.ones(n, dtype=bool)
        for name in names:
            same &= getattr(self._short, name) == getattr(self._long, name)[:n]
        return n if same.all() else int(np.argmin(same))

    def _after(self, row: int, costs: NDArray[np.int32]) -> NDArray[np.int32]:
        short, long = self._short, self._long
        window = slice(row, row + self._more + 1)
        found = _with_insertion(costs)
        is_other = long.younger[window] != short.younger[row]
        found += is_other
        found += is_other & (long.older[window] != short.older[row])
        is_other = long.exact[window] != short.exact[row]
        found += is_other * (self._short_price[row] + self._long_price[window])
        # Row `row` of the short program meets row `row + d` of the long one after d insertions.
        found[long.form[window] != short.form[row]] = _IMPOSSIBLE
        return np.minimum(found, _IMPOSSIBLE)

    def _trace_back(
        self, costs: NDArray[np.int32], kept: dict[int, NDArray[np.int32]]
    ) -> list[Insertion]:
        found = []
        row, inserted = len(self._short.form), self._more
        rows = {row: costs}
        while True:
            if row not in rows:
                rows = self._between(max(each for each in kept if each <= row), row, kept)
            costs = rows[row]
            least = _with_insertion(costs)[inserted]
            # An insertion before this row was cheaper than none: take it and go on before it.
            if costs[inserted] != least:
                fewer = int(np.flatnonzero(costs[:inserted] == least - _INSERTION)[-1])
                found.append(Insertion(row, row + fewer, row + inserted))
                inserted = fewer
            if row == self._first:
                return found[::-1]
            row -= 1

    def _between(
        self, start: int, stop: int, kept: dict[int, NDArray[np.int32]]
    ) -> dict[int, NDArray[np.int32]]:
        rows = {start: kept[start]}
        for row in range(start, stop):
            rows[row + 1] = self._after(row, rows[row])
        return rows


def _with_insertion(costs: NDArray[np.int32]) -> NDArray[np.int32]:
    found = costs.copy()
    found[1:] = np.minimum(found[1:], np.minimum.accumulate(costs)[:-1] + _INSERTION)
    return found
