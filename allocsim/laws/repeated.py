"""Requests and frees of a program, with parts of it that come as often as a number says.

Rule: a row of a part stands for one in each of its copies.  A row's value, of a request its bytes,
of a free how many younger blocks of its kin there are to the one that is freed, is
p + q·copy + r·copies; so no row names a block, and a copy more changes none of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import ConfigError

__all__ = ["BEFORE", "MOST_ROWS", "Repeated", "Unrolled", "blocks_of", "refuse_too_long"]

BEFORE = -1
"""The kin of the blocks that were there before the program."""

MOST_ROWS = 1 << 23
"""Of a program: some minutes and gigabytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Unrolled:
    """A program with a number of copies; row i is its row i.

    row: of the program with one copy, which it is.
    value: bytes of a request, younger blocks of a free.
    block: the number of the block that it requests or frees, by request; below 0 those that were
        there before, 0 in other rows.
    """

    row: NDArray[np.int64]
    value: NDArray[np.int64]
    block: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """A program with one copy of each part; its columns have a row for each of its rows.

    is_request, is_free, is_end: what a row does; a free that is asked for and completes later is no
        end of its block before that.
    kin: of a request, a number that it shares with those like it; of a free that of its block.
    value, by_copy, by_copies: see the rule.
    parts: first row and the row after the last of each part, in the order of the program.
    n_before: blocks that were there before the program.
    """

    is_request: NDArray[np.bool_]
    is_free: NDArray[np.bool_]
    is_end: NDArray[np.bool_]
    kin: NDArray[np.int64]
    value: NDArray[np.int64]
    by_copy: NDArray[np.int64]
    by_copies: NDArray[np.int64]
    parts: Sequence[tuple[int, int]]
    n_before: int = 0

    def with_copies(self, copies: int) -> Unrolled:
        """The program with so many copies of each part, 0 or more.

        Raises ConfigError if it is too long.  A free that means no block that is there is a
        LookupError, with its row.
        """
        row, value = self.rows_with(copies)
        flags = self.is_request[row], self.is_free[row], self.is_end[row]
        try:
            block = blocks_of(*flags, self.kin[row], value, self.n_before)
        except LookupError as error:
            raise LookupError(int(row[error.args[0]])) from None
        return Unrolled(row, value, block)

    def rows_with(self, copies: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`row` and `value` of the program with so many copies, whose blocks are not looked up.

        Raises ConfigError if it is too long.
        """
        row, copy = self._rows(copies)
        return row, self.value[row] + self.by_copies[row] * (copies - 1) + self.by_copy[row] * copy

    def _rows(self, copies: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows in the order of the program, and how many copies came before."""
        n, more = len(self.value), sum(stop - start for start, stop in self.parts)
        refuse_too_long(n + more * (copies - 1))
        rows, counts, last = [], [], 0
        for start, stop in self.parts:
            between, inside = np.arange(last, start), np.arange(start, stop)
            rows += [between, np.tile(inside, copies)]
            counts += [
                np.zeros(len(between), np.int64),
                np.repeat(np.arange(copies), stop - start),
            ]
            last = stop
        rest = np.arange(last, n)
        return (
            np.concatenate([*rows, rest]),
            np.concatenate([*counts, np.zeros(len(rest), dtype=np.int64)]),
        )


def refuse_too_long(rows: int) -> None:
    """Raises ConfigError for a program of so many rows, if they are more than `MOST_ROWS`."""
    if rows > MOST_ROWS:
        raise ConfigError(
            f"{rows:,} steps are more than can be replayed; expected {MOST_ROWS:,} or fewer"
        )


def blocks_of(  # noqa: PLR0917  (columns)
    is_request: NDArray[np.bool_],
    is_free: NDArray[np.bool_],
    is_end: NDArray[np.bool_],
    kin: NDArray[np.int64],
    value: NDArray[np.int64],
    n_before: int = 0,
) -> NDArray[np.int64]:
    """By row, the block that it requests or frees, as `Unrolled.block`.

    The arguments are those of `Repeated`, a row for each row of the program.
    A free that means no block that is there is a LookupError, with the number of its row.
    """
    alive: defaultdict[int, list[int]] = defaultdict(list)
    alive[BEFORE] = list(range(-n_before, 0))
    found, count = np.zeros(len(kin), dtype=np.int64), 0
    columns = (is_request, is_free, is_end, kin, value)
    for i, (asks, frees, ends, by, younger) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if asks:
            found[i] = count
            alive[by].append(count)
            count += 1
        elif frees:
            like = alive[by]
            if not 0 <= younger < len(like):
                raise LookupError(i)
            found[i] = like[-1 - younger]
            if ends:
                del like[-1 - younger]
    return found
