"""Allocations and frees of blocks, sorted by address.

At one address allocations and frees alternate, so sorting by address puts the free of each block
directly after its allocation.  A turn is one allocation or free.  PyTorch records a free as two
entries, free_requested and free_completed.  If they are adjacent in the recording, as they nearly
always are, they form one turn.

`Tiles` has the blocks of the final segments as columns, in the order of their addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import error as StructError  # noqa: N812  (it is a class)

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import address_column, any_of, int_column, stable_order
from allocsim.recording.action import BLOCK_ACTIONS, Action
from allocsim.state import INACTIVE, PENDING, BlockState, SegmentState


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
    """Turns (allocations and frees) sorted by address, in recorded order within one address.

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


@dataclass(frozen=True, slots=True)
class Tiles:
    """Blocks in the order of their segments; each column has one item per block.

    address, size: address and bytes of the block.
    requested_size: bytes before rounding.
    is_active: True if allocated or waiting for a free to complete.
    is_pending: True if waiting for a free to complete.
    is_small: True if the segment is in the small pool.
    are_sound: True if the blocks cover their segments without gaps and no segments overlap.
    """

    blocks: Sequence[BlockState]
    address: NDArray[np.uint64]
    size: NDArray[np.int64]
    requested_size: NDArray[np.int64]
    is_active: NDArray[np.bool_]
    is_pending: NDArray[np.bool_]
    is_small: NDArray[np.bool_]
    are_sound: bool

    @classmethod
    def of(cls, segments: Sequence[SegmentState]) -> Tiles | None:
        """Build the columns of `segments`; None if a number does not fit in 64 bits."""
        blocks = [block for segment in segments for block in segment.blocks]
        states = [block.state for block in blocks]
        try:
            addresses = address_column([block.address for block in blocks])
            sizes = int_column([block.size for block in blocks])
            asked = int_column([block.requested_size for block in blocks])
            bases = address_column([segment.address for segment in segments])
            totals = address_column([segment.total_size for segment in segments])
        except StructError:
            return None
        counts = np.array([len(segment.blocks) for segment in segments], dtype=np.int64)
        return cls(
            blocks=blocks,
            address=addresses,
            size=sizes,
            requested_size=asked,
            is_active=np.array([state != INACTIVE for state in states], dtype=bool),
            is_pending=np.array([state == PENDING for state in states], dtype=bool),
            is_small=np.repeat([segment.is_small for segment in segments], counts).astype(bool),
            are_sound=_are_sound(addresses, sizes, bases, totals, counts),
        )


def _are_sound(
    address: NDArray[np.uint64],
    size: NDArray[np.int64],
    base: NDArray[np.uint64],
    total: NDArray[np.uint64],
    count: NDArray[np.int64],
) -> bool:
    """Return True if the blocks cover the segments without gaps and no segments overlap.

    address, size: address and bytes of each block, in the order of their segments.
    base, total, count: address, bytes and number of blocks of each segment.
    """
    ends = base + total
    if not len(base):
        return True
    if not count.all() or not (ends > base).all() or not (ends[:-1] <= base[1:]).all():
        return False
    last = np.cumsum(count)
    expected = address + size.astype(np.uint64)
    expected[1:] = expected[:-1].copy()
    expected[last - count] = base
    reaches = address[last - 1] + size[last - 1].astype(np.uint64) == ends
    return bool((expected == address).all() and (size > 0).all() and reaches.all())
