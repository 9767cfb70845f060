"""When each block of a recording was in use, as columns.

Rule: row i is one block, in use from entry `start[i]` up to, not including, entry `end[i]`; a
block from before the recording starts at -1, one that outlives it ends at its length.  A block is
in use until its free is completed, since until then its memory can be used again only after a wait
for a stream.  For a lower bound of any allocator it ends earlier, when the free is requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import any_of, stable_order
from allocsim.core import MIN_BLOCK_SIZE
from allocsim.state import ALLOCATED, PENDING
from allocsim.trace import Action, Trace, Turn

__all__ = ["Lifetimes", "lifetimes_of"]


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Blocks with their sizes in bytes, requests rounded up to 512; columns are read-only.

    in_order_of: those of another sort that come and go in the same order, where there are such.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    size: NDArray[np.int64]
    in_order_of: Lifetimes | None = None

    def __post_init__(self) -> None:
        for column in (self.start, self.end, self.size):
            column.flags.writeable = False

    def __len__(self) -> int:
        return len(self.start)

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use at once: no allocator needs less."""
        return self._peak_of(self.size)

    def peak_bytes_among(self, is_one: NDArray[np.bool_]) -> int:
        """The same of some of the blocks; is_one: whether each is one of them."""
        return self._peak_of(np.where(is_one, self.size, 0))

    def _peak_of(self, size: NDArray[np.int64]) -> int:
        moved = np.concatenate((size, -size))
        return int(np.cumsum(moved[self.turns]).max(initial=0))

    @cached_property
    def turns(self) -> NDArray[np.intp]:
        """The rows' starts, then their ends, numbered as one column, in the order of their moments.

        At one moment ends come first: the next block may take the same place.
        """
        if self.in_order_of is not None:
            return self.in_order_of.turns
        turn = 2 * np.concatenate((self.start, self.end))
        turn[: len(self)] += 1
        # What was there before and what outlives the recording, one behind the other, as if each
        # had a moment of its own: an entry has one, so that mostly no two turns are equal then.
        older = np.flatnonzero(self.start < 0)
        turn[older] = np.arange(-len(older), 0)
        last = np.flatnonzero(turn == turn.max(initial=0))
        turn[last] += np.arange(len(last))
        return stable_order(turn)

    @property
    def moments(self) -> NDArray[np.int64]:
        """The entry of each of the turns."""
        moments: NDArray[np.int64] = np.concatenate((self.start, self.end))[self.turns]
        return moments

    def take(self, rows: NDArray[np.intp]) -> Lifetimes:
        """These rows, in this order."""
        return Lifetimes(self.start[rows], self.end[rows], self.size[rows])


_WHOLE: WeakKeyDictionary[Trace, dict[Action, Lifetimes]] = WeakKeyDictionary()
"""Of recordings as long as they are kept, by `until`: many figures are of these same columns."""


def lifetimes_of(
    trace: Trace,
    stop: int | None = None,
    answered: Sequence[int] = (),
    *,
    until: Action = Action.FREE_COMPLETED,
) -> Lifetimes:
    """The blocks of a trace, of its first `stop` entries if that is given.

    answered: `oom` entries that a replay could answer; it gave such a block back at once.
    until: the entry that ends a life; FREE_REQUESTED for an allocator that waits for streams
    whenever that helps, as a caching one does before it gives up.
    """
    if stop in (None, len(trace)) and not len(answered):
        known = _WHOLE.setdefault(trace, {})
        if until not in known:
            known[until] = _whole_lifetimes(trace, until)
        return known[until]
    return _lifetimes_of(trace, len(trace) if stop is None else stop, answered, until)


def _whole_lifetimes(trace: Trace, until: Action) -> Lifetimes:
    """Where no free waits, a life ends with the request an entry before it ends with the end."""
    tiles = trace.tiles
    waits = any_of(trace.by_address.kind, (Turn.FREE_REQUESTED, Turn.FREE_COMPLETED)).any()
    waits |= tiles is None or tiles.is_pending.any()
    if until != Action.FREE_REQUESTED or waits:
        return _lifetimes_of(trace, len(trace), (), until)
    whole = lifetimes_of(trace)
    return Lifetimes(whole.start, whole.end - (whole.end < len(trace)), whole.size, whole)


def _lifetimes_of(trace: Trace, stop: int, answered: Sequence[int], until: Action) -> Lifetimes:
    turns = trace.by_address
    is_free = any_of(turns.kind, (Turn.FREE,))
    # The two entries of such a free follow one another.
    order = turns.entry - is_free if until == Action.FREE_REQUESTED else turns.entry
    counts = (is_free | any_of(turns.kind, (Turn.ALLOC, until))) & (order < stop)
    order, addr, kind = (each.compress(counts) for each in (order, turns.addr, turns.kind))
    is_alloc = any_of(kind, (Turn.ALLOC,))
    is_ended = np.zeros(len(order), dtype=bool)
    is_ended[:-1] = is_alloc[:-1] & ~is_alloc[1:] & (addr[1:] == addr[:-1])
    ends_older = ~is_alloc
    ends_older[1:] &= ~is_ended[:-1]
    first = np.flatnonzero(is_alloc)
    born, older = order.take(first), order.compress(ends_older)
    end = np.where(is_ended.take(first), order.take(first + 1, mode="clip"), stop)
    outlives = [ALLOCATED] if until == Action.FREE_REQUESTED else [ALLOCATED, PENDING]
    kept = (
        _kept(trace, order.compress(is_alloc & ~is_ended), outlives) if stop == len(trace) else []
    )
    brief = np.array(answered, dtype=np.int64)
    asked = np.maximum(trace.size.take(np.concatenate((born, older))), 1)
    size = (asked + (MIN_BLOCK_SIZE - 1)) & -MIN_BLOCK_SIZE
    return Lifetimes(
        np.concatenate((born, np.full(len(older) + len(kept), -1), brief)),
        np.concatenate((end, older, np.full(len(kept), stop), brief + 1)),
        np.concatenate((size, np.array(kept, dtype=np.int64), trace.size[brief])),
    )


def _kept(trace: Trace, unfreed: NDArray[np.intp], states: Sequence[str]) -> list[int]:
    """Sizes of the blocks that are older than the recording and outlive it."""
    younger = set(trace.addr[unfreed].tolist())
    return [
        block.size
        for segment in trace.segments
        for block in segment.blocks
        if block.state in states and block.address not in younger
    ]
