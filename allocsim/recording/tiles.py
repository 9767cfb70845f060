"""Blocks of all segments of a device, as columns.

In a valid state the blocks of each segment cover it without gaps, and no segments overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import error as StructError  # noqa: N812  (it is a class)

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import address_column, int_column
from allocsim.state import INACTIVE, PENDING, BlockState, SegmentState

__all__ = ["Tiles"]


@dataclass(frozen=True, slots=True)
class Tiles:
    """Blocks in the order of their segments; each column has one item per block.

    address, size, requested_size: as in `BlockState`, in bytes.
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
