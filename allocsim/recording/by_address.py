"""Allocations and frees of blocks, sorted by address.

At one address allocations and frees alternate, so sorting by address puts the free of each block
directly after its allocation.  A turn is one allocation or free.  PyTorch records a free as two
entries, free_requested and free_completed.  If they are adjacent in the recording, as they nearly
always are, they form one turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of, stable_order
from allocsim.recording.action import BLOCK_ACTIONS, Action

__all__ = ["ByAddress", "Turn", "completes_at_once"]


class Turn(IntEnum):
    """Type of a turn; the first three values equal the codes of `Action`."""

    ALLOC = Action.ALLOC
    FREE_REQUESTED = Action.FREE_REQUESTED
    FREE_COMPLETED = Action.FREE_COMPLETED
    FREE = 3
    """A free_requested directly followed by its free_completed, counted once."""


def completes_at_once(action: NDArray[np.uint8], addr: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask of the free_completed entries that directly follow their free_requested.

    action, addr: columns of all entries; `action` has codes of `Action`.
    """
    at_once = any_of(action, (Action.FREE_COMPLETED,))
    at_once[:1] = False
    at_once[1:] &= any_of(action[:-1], (Action.FREE_REQUESTED,)) & (addr[1:] == addr[:-1])
    return at_once


@dataclass(frozen=True, slots=True)
class ByAddress:
    """Turns sorted by address, in recorded order within one address.

    entry: entry number; for a FREE, the number of its free_completed.
    addr: address of the block.
    kind: code of `Turn`.
    goes_on: True if the next item of the columns has the same address.
    """

    entry: NDArray[np.intp]
    addr: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    goes_on: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.entry)

    @classmethod
    def of(cls, action: NDArray[np.uint8], addr: NDArray[np.uint64]) -> ByAddress:
        """Build the turns from the columns `action` and `addr` of a trace."""
        at_once = completes_at_once(action, addr)
        kind = action + at_once  # a FREE_COMPLETED becomes a FREE
        is_turn = any_of(action, BLOCK_ACTIONS)
        is_turn[:-1] &= ~at_once[1:]
        entry = np.flatnonzero(is_turn)
        entry = entry.take(stable_order(addr.take(entry)))
        return cls._ordered(entry, addr.take(entry), kind.take(entry))

    @classmethod
    def _ordered(
        cls, entry: NDArray[np.intp], addr: NDArray[np.uint64], kind: NDArray[np.uint8]
    ) -> ByAddress:
        goes_on = np.zeros(len(entry), dtype=bool)
        goes_on[:-1] = addr[1:] == addr[:-1]
        return cls(entry, addr, kind, goes_on)

    def since(self, first: int) -> ByAddress:
        """Return the turns of the entries from number `first` on.

        A free that was requested before `first` and completed after it becomes a FREE_COMPLETED.
        """
        if not first:
            return self
        kept = self.entry >= first
        entry, kind = self.entry[kept], self.kind[kept]
        kind[(entry == first) & any_of(kind, (Turn.FREE,))] = Turn.FREE_COMPLETED
        return self._ordered(entry, self.addr[kept], kind)
