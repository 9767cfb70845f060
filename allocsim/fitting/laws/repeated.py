"""Program with repeated parts: ranges of requests and frees that occur once for every layer.

A free does not store the index of its block.  It stores how many blocks of the same Python stack
were requested later and are still allocated.  So one more layer does not change the calls of other
layers.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import ConfigError

BEFORE = -1
"""Value of `Repeated.group` for blocks that were allocated before the program began."""

MOST_ROWS = 1 << 23
"""Maximum number of allocator calls of a program; its replay takes minutes and gigabytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Unrolled:
    """Allocator calls of a program, with those of every layer, as arrays with one row per call."""

    # Index of the row in `Repeated`, where the rows of the layers occur once.
    row: NDArray[np.int64]
    # Bytes of a request; for a free, the number of allocated blocks of the same Python stack that
    # were requested after the freed block.
    value: NDArray[np.int64]
    # Index of the request that allocated the row's block; negative for a block from before the
    # program, 0 in rows that are neither requests nor frees.
    block: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """Program as arrays, one row per allocator call; the rows of equal layers are stored once."""

    # Each array has one element per row: a request, a free or another allocator call.
    is_request: NDArray[np.bool_]
    # Also True for a row that completes a free.
    is_free: NDArray[np.bool_]
    # False for a free that a later row completes, because another stream still uses the block.
    is_end: NDArray[np.bool_]
    # Index of the Python stack that requested the row's block.
    group: NDArray[np.int64]
    # Bytes of a request; for a free, the number of allocated blocks in its group that were
    # requested after the freed block.
    value: NDArray[np.int64]
    # If the ranges occur `copies` times, by_copy * copy + by_copies * (copies - 1) is added to each
    # value; `copy` counts the occurrences from 0, and is 0 outside the ranges.
    by_copy: NDArray[np.int64]
    by_copies: NDArray[np.int64]
    # First row of each repeated range and the row after its last, in order.
    parts: Sequence[tuple[int, int]]
    # Number of blocks that were allocated before the program began.
    n_before: int = 0

    def with_copies(self, copies: int) -> Unrolled:
        """Return all calls of the program if each range in `parts` occurs `copies` times.

        Raises LookupError with the index of a free that has no matching block.
        """
        row, value = self.rows_with(copies)
        flags = self.is_request[row], self.is_free[row], self.is_end[row]
        try:
            block = blocks_of(*flags, self.group[row], value, self.n_before)
        except LookupError as error:
            raise LookupError(int(row[error.args[0]])) from None
        return Unrolled(row, value, block)

    def rows_with(self, copies: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the arrays `row` and `value` of `Unrolled`, with `copies` copies of each part.

        The blocks of the frees are not determined.
        """
        row, copy = self._rows(copies)
        return row, self.value[row] + self.by_copies[row] * (copies - 1) + self.by_copy[row] * copy

    def _rows(self, copies: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
    if rows > MOST_ROWS:
        raise ConfigError(
            f"{rows:,} steps are more than can be replayed; expected {MOST_ROWS:,} or fewer"
        )


def blocks_of(  # noqa: PLR0917  (columns)
    is_request: NDArray[np.bool_],
    is_free: NDArray[np.bool_],
    is_end: NDArray[np.bool_],
    group: NDArray[np.int64],
    value: NDArray[np.int64],
    n_before: int = 0,
) -> NDArray[np.int64]:
    """Return, for each call, the index of the request that allocated the call's block.

    Each array has one item per call of the whole program.  A free names its block by the request's
    Python stack (`group`) and the number of live blocks of this stack that are younger (`value`).
    Raises LookupError with the index of a free without a block.

    is_request, is_free: True for a request; True for a free and for the completion of a free.
    is_end: False for a free that a later call completes.
    n_before: number of blocks that were allocated before the program began.
    """
    alive: defaultdict[int, list[int]] = defaultdict(list)
    alive[BEFORE] = list(range(-n_before, 0))
    found, count = np.zeros(len(group), dtype=np.int64), 0
    columns = (is_request, is_free, is_end, group, value)
    for i, (requests, frees, ends, by, younger) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if requests:
            found[i] = count
            alive[by].append(count)
            count += 1
        elif frees:
            same_group = alive[by]
            if not 0 <= younger < len(same_group):
                raise LookupError(i)
            found[i] = same_group[-1 - younger]
            if ends:
                del same_group[-1 - younger]
    return found


_NOT_OWN = -1

_NONE = 1 << 62
"""Number of later blocks in `Links.older` that marks a free whose block does not exist."""


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Links from frees to the requests of their blocks, in a part of a program, such as a step."""

    # For each row, the index of its block's request within the part; 0 if it has none there.
    block: NDArray[np.int64]
    # For each row, True if its block is requested within the part.
    is_own: NDArray[np.bool_]
    # Frees of blocks from before the part: row, index of the stack that requested the block, and
    # number of blocks of this stack that were requested after the freed block and before the part.
    older: tuple[tuple[int, int, int], ...]
    # Requests of the part whose blocks are still allocated at its end, by index of the stack.
    left: Mapping[int, list[int]]
    n_requests: int


def links_of(
    is_request: NDArray[np.bool_],
    is_free: NDArray[np.bool_],
    group: NDArray[np.int64],
    value: NDArray[np.int64],
) -> Links:
    """Find the request of each freed block in a part of a program, such as a training step.

    Each array has one element per row: a request, a free or another call.

    group: index of the Python stack that requested the row's block.
    value: for a free, the number of allocated blocks of the same stack that were requested after
        the freed block.
    """
    own: defaultdict[int, list[int]] = defaultdict(list)
    freed: defaultdict[int, list[int]] = defaultdict(list)
    block = [_NOT_OWN] * len(group)
    older, count = [], 0
    columns = (is_request, is_free, group, value)
    for i, (requests, frees, of, younger) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if requests:
            block[i] = count
            own[of].append(count)
            count += 1
        elif frees and 0 <= younger < len(own[of]):
            # The block was requested within the part, so the link holds at every occurrence.
            block[i] = own[of].pop(-1 - younger)
        elif frees:
            depth = younger - len(own[of]) if younger >= 0 else _NONE
            # Shift the depth by the earlier blocks above it that this part has freed, ascending.
            for each in freed[of]:
                if each > depth:
                    break
                depth += 1
            insort(freed[of], depth)
            older.append((i, of, depth))
    found = np.array(block, dtype=np.int64)
    is_own = found != _NOT_OWN
    return Links(np.where(is_own, found, 0), is_own, tuple(older), dict(own), count)


class Alive:
    """Blocks that are allocated at the end of a program to which parts are appended."""

    def __init__(self) -> None:
        self._of: defaultdict[int, list[int]] = defaultdict(list)
        self._count = 0

    def blocks(self, links: Links) -> NDArray[np.int64]:
        """Append a part to the program; return the index of each call's block.

        Blocks are counted from 0 in the order of their requests in the whole program. Raises
        LookupError with the index of a free without a block.

        links: result of `links_of` for the part.
        """
        found = np.where(links.is_own, self._count + links.block, 0)
        for row, group, depth in links.older:
            if not 0 <= depth < len(self._of[group]):
                raise LookupError(row)
            found[row] = self._of[group][-1 - depth]
        freed = {(group, depth) for _, group, depth in links.older}
        # Deeper blocks first: their removal does not change the depth of the others.
        for group, depth in sorted(freed, reverse=True):
            del self._of[group][-1 - depth]
        for group, left in links.left.items():
            self._of[group] += [self._count + each for each in left]
        self._count += links.n_requests
        return found
