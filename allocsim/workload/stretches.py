"""Program as a table of allocator calls, and a search for ranges of calls that repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import numbered
from allocsim.core import FREE, MALLOC, SMALL_SIZE, FreeBlockOrder, ReplayAllocator
from allocsim.simulation import Period, longest_period

_Ints = NDArray[np.int64]

EMPTY_CACHE = 9
"""Value in `KnownProgram.kind` for a call of empty_cache; the others are MALLOC and FREE."""

_SPANS = (1, 2)
"""Distances, in stretches (ranges of calls), at which an equal earlier stretch is searched: 1 is
the previous stretch.  Distance 2 helps if two blocks swap their addresses in every stretch."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownProgram:
    """Requests, frees and empty_cache calls of a program, as columns with one row per call.

    kind: MALLOC, FREE or EMPTY_CACHE.
    block: index of the block; blocks are numbered from 0 in the order of their requests.
    size: bytes of a request.
    stack: stack index of a request; -1 for other calls.
    stretches: boundaries of consecutive ranges of rows that may repeat, such as decoding steps: the
        first row of each range, then the end of the last range.
    """

    kind: NDArray[np.integer[Any]]
    block: _Ints
    size: _Ints
    stack: NDArray[np.integer[Any]]
    stretches: Sequence[int] = ()


def period_of(program: KnownProgram) -> Period | None:
    """Return the longest part of a program that consists of one range of calls, repeated.

    Return None if no range repeats directly after itself.  The lengths to try are the distances
    between successive stretches (`KnownProgram.stretches`) with equal numbers of calls.
    """
    rows = np.arange(len(program.kind))
    asks = program.kind == MALLOC
    age = rows - np.flatnonzero(asks)[program.block]
    codes = 2 * np.where(asks, program.size, age) + asks
    codes[program.kind == EMPTY_CACHE] = -1 - rows[program.kind == EMPTY_CACHE]
    starts, counts = np.array(program.stretches[:-1]), np.diff(program.stretches)
    alike = (starts[counts == count] for count in set(counts.tolist()))
    return longest_period(codes, {length for each in alike for length in np.diff(each).tolist()})


class Repeats:
    """Search for stretches (ranges of calls) of a program whose small requests repeat earlier ones.

    places: dictionary from the index of a stretch to a value that identifies the free blocks of the
        small pool at its beginning (`small_places`); the caller fills it.
    is_small: mask of the calls that concern the small pool.
    """

    def __init__(self, program: KnownProgram, allocator: ReplayAllocator) -> None:
        self._program = program
        asks = program.kind == MALLOC
        sizes, which = numbered(program.size[asks])
        rounded = np.array([allocator.round_size(size) for size in sizes.tolist()], dtype=np.int64)
        self._rounded = rounded[which]
        """Rounded size of each block."""
        of_small = self._rounded <= SMALL_SIZE
        self._number = np.cumsum(of_small)
        """For each block, the number of small blocks among this and all earlier blocks."""
        self.is_small = (program.kind != EMPTY_CACHE) & of_small[program.block]
        self._asked_before = np.cumsum(asks)
        frees = program.kind == FREE
        self._freed = np.full(len(which), len(asks))
        """For each block, index of the call that frees it; the number of all calls if none does."""
        self._freed[program.block[frees]] = np.flatnonzero(frees)
        self.places: dict[int, object] = {}
        self._keys: dict[int, tuple[bytes, ...]] = {}
        counts_objects = allocator.release.free_block_order is FreeBlockOrder.CREATION
        self._may = allocator.collects_garbage_above is None and not counts_objects

    def span(self, number: int) -> int:
        last = len(self._program.stretches) - 1
        for span in _SPANS if self._may else ():
            if self.places.get(number - span) != self.places[number] or number + span > last:
                continue
            pairs = [(number + i, number + i - span) for i in range(span)]
            if all(self._key(one) == self._key(other) for one, other in pairs):
                return span
        return 0

    def come_back(self, number: int, span: int) -> None:
        for one in range(number + 1, number + span):
            self.places[one] = self.places[one - span]

    def _key(self, number: int) -> tuple[bytes, ...]:
        if number not in self._keys:
            program = self._program
            start, stop = program.stretches[number], program.stretches[number + 1]
            small = start + np.flatnonzero(self.is_small[start:stop])
            block = program.block[small]
            n_before = int(self._asked_before[start - 1]) if start else 0
            of_small = int(self._number[n_before - 1]) if n_before else 0
            columns = program.kind[small], self._rounded[block], self._number[block] - of_small
            self._keys[number] = tuple(column.tobytes() for column in columns)
        return self._keys[number]

    def replaced(
        self, small: _Ints, address: NDArray[np.uint64], requested: _Ints
    ) -> dict[int, int] | None:
        # `small` are the small calls of a repeated stretch.  It frees some older blocks, and leaves
        # new ones at the same addresses.  Returns a dictionary from old to new blocks; None if they
        # do not match.
        program = self._program
        asks = program.kind[small] == MALLOC
        asked, freed = program.block[small[asks]], program.block[small[~asks]]
        # Blocks are numbered by request, so blocks older than a stretch have lower numbers.
        older = freed[freed < self._asked_before[small[0] - 1]]
        younger = asked[self._freed[asked] > small[-1]]
        older = older[np.argsort(address[older])]
        younger = younger[np.argsort(address[younger])]
        if len(older) != len(younger):
            return None
        for column in (address, requested):
            if not np.array_equal(column[older], column[younger]):
                return None
        return dict(zip(older.tolist(), younger.tolist(), strict=True))
