"""Where one program has the rows of another and more between them.

Rule: every row of the shorter program is a row of the longer one, in the same order and of the
same form; what remains of the longer one are the insertions.  Of all such ways the cheapest is
taken: few insertions, rows with the same bytes, frees that mean the same block in their order.
An insertion can often lie a little earlier or later (of three layers any may be the new one);
the last of these costs is what settles it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.questions.scale.likeness import Likeness

__all__ = ["Insertion", "insertions", "shared_rows"]

_INSERTION = 40
_OTHER_SIZE = 16
"""What each costs.  Other bytes cost once more for each of the two rows whose own bytes the other
program has somewhere.  A free whose block is not as young among its like costs 1, and 1 more if it
is not as old either."""

_IMPOSSIBLE = 1 << 30

_EVERY = 256
"""Rows between those whose costs are kept; those between are worked out anew on the way back."""

_MOST_CELLS = 1 << 31
"""Rows of one program times rows that the other has more: some minutes."""


@dataclass(frozen=True, slots=True)
class Insertion:
    """Rows [start, stop) of the longer program, before row `at` of the shorter one."""

    at: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def moved(self, by: int) -> Insertion:
        """The same length, `by` rows later."""
        return Insertion(self.at + by, self.start + by, self.stop + by)


def insertions(short: Likeness, long: Likeness) -> list[Insertion] | None:
    """What `long` has more than `short`; None if it is not that, or too much to compare."""
    more = len(long.form) - len(short.form)
    if more <= 0 or len(short.form) * more > _MOST_CELLS:
        return None
    return _Search(short, long, more).run()


def shared_rows(n_long: int, found: Iterable[Insertion]) -> NDArray[np.int64]:
    """By row of the longer program, the row of the shorter one; -1 in insertions."""
    is_shared = np.ones(n_long, dtype=bool)
    for each in found:
        is_shared[each.start : each.stop] = False
    return np.where(is_shared, np.cumsum(is_shared) - 1, -1)


class _Search:
    """The cheapest alignment by rows of the shorter program and rows inserted before them.

    costs[d]: the least so far with d rows inserted.  _short_price, _long_price: by row, its share
    of what a counterpart with other bytes costs.
    """

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
        return self._way_back(costs, kept)

    def _same_at_start(self) -> int:
        """Rows at the start that are the same in all respects."""
        n = len(self._short.form)
        names = ("exact", "younger", "older")
        same = np.ones(n, dtype=bool)
        for name in names:
            same &= getattr(self._short, name) == getattr(self._long, name)[:n]
        return n if same.all() else int(np.argmin(same))

    def _after(self, row: int, costs: NDArray[np.int32]) -> NDArray[np.int32]:
        """The costs when `row` has found its place."""
        short, long = self._short, self._long
        there = slice(row, row + self._more + 1)
        found = _with_insertion(costs)
        is_other = long.younger[there] != short.younger[row]
        found += is_other
        found += is_other & (long.older[there] != short.older[row])
        is_other = long.exact[there] != short.exact[row]
        found += is_other * (self._short_price[row] + self._long_price[there])
        found[long.form[there] != short.form[row]] = _IMPOSSIBLE
        return np.minimum(found, _IMPOSSIBLE)

    def _way_back(
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
        """The costs before each of rows [start, stop]."""
        rows = {start: kept[start]}
        for row in range(start, stop):
            rows[row + 1] = self._after(row, rows[row])
        return rows


def _with_insertion(costs: NDArray[np.int32]) -> NDArray[np.int32]:
    """The costs where rows may be inserted before the next."""
    found = costs.copy()
    found[1:] = np.minimum(found[1:], np.minimum.accumulate(costs)[:-1] + _INSERTION)
    return found
