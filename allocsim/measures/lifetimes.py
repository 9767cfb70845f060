"""When each block of a recording was in use, as columns.

Rule: row i is one block, in use from entry `start[i]` up to, not including, entry `end[i]`; a
block from before the recording starts at -1, one that outlives it ends at its length.  A block is
in use until its free is completed, since until then its memory can be used again only after a wait
for a stream.  For a lower bound of any allocator it ends earlier, when the free is requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import any_of, stable_order
from allocsim.core import MIN_BLOCK_SIZE
from allocsim.state import ALLOCATED, PENDING
from allocsim.trace import Action, Trace

__all__ = ["Lifetimes", "lifetimes_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """Blocks with their sizes in bytes, requests rounded up to 512."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    size: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use at once: no allocator needs less."""
        moved = np.concatenate((self.size, -self.size))
        return int(np.cumsum(moved[self.turns]).max(initial=0))

    @property
    def turns(self) -> NDArray[np.intp]:
        """The rows' starts, then their ends, numbered as one column, in the order of their moments.

        At one moment ends come first: the next block may take the same place.
        """
        moment = np.concatenate((self.start, self.end))
        return stable_order(2 * moment + (np.arange(len(moment)) < len(self)))

    def take(self, rows: NDArray[np.intp]) -> Lifetimes:
        """These rows, in this order."""
        return Lifetimes(self.start[rows], self.end[rows], self.size[rows])


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
    stop = len(trace) if stop is None else stop
    entries = np.flatnonzero(any_of(trace.action[:stop], (Action.ALLOC, until)))
    order = entries[stable_order(trace.addr[entries])]
    is_alloc = trace.action[order] == Action.ALLOC
    # Sorted by (address, entry), a block's end comes right after its start.
    same = np.zeros(len(order), dtype=bool)
    same[:-1] = trace.addr[order[1:]] == trace.addr[order[:-1]]
    ended = np.zeros(len(order), dtype=bool)
    ended[:-1] = is_alloc[:-1] & ~is_alloc[1:] & same[:-1]
    end = np.full(len(order), stop, dtype=np.int64)
    end[:-1][ended[:-1]] = order[1:][ended[:-1]]
    older = ~is_alloc
    older[1:] &= ~ended[:-1]
    size = -(-np.maximum(trace.size[order], 1) // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE
    start, end, size = (
        np.concatenate((order[is_alloc], np.full(int(older.sum()), -1))),
        np.concatenate((end[is_alloc], order[older])),
        np.concatenate((size[is_alloc], size[older])),
    )
    outlives = [ALLOCATED] if until == Action.FREE_REQUESTED else [ALLOCATED, PENDING]
    kept = _kept(trace, order[is_alloc & ~ended], outlives) if stop == len(trace) else []
    brief = np.array(answered, dtype=np.int64)
    return Lifetimes(
        np.concatenate((start, np.full(len(kept), -1), brief)).astype(np.int64),
        np.concatenate((end, np.full(len(kept), stop), brief + 1)).astype(np.int64),
        np.concatenate((size, np.array(kept, dtype=np.int64), trace.size[brief])).astype(np.int64),
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
