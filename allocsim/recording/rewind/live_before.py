"""Reconstruct the live blocks before an entry by undoing all allocations and frees at once.

The result equals undoing them one by one (start_state.py).  If entries contradict each other, the
result is None, and undoing them one by one then finds the wrong entry.  At one address alloc,
free_requested and free_completed alternate, so after sorting by address the entries of a block are
adjacent.  A million entries take 0.1 s.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.recording.by_address import ByAddress, Tiles, Turn
from allocsim.recording.rewind.slack import Live
from allocsim.recording.trace import Trace
from allocsim.state import ALLOCATED, PENDING, BlockState

_FOLLOWS = np.zeros((4, 4), dtype=bool)
"""_FOLLOWS[first, second] is True if `second` may be the next turn of the same address."""
_FOLLOWS[Turn.ALLOC, [Turn.FREE_REQUESTED, Turn.FREE_COMPLETED, Turn.FREE]] = True
_FOLLOWS[Turn.FREE_REQUESTED, Turn.FREE_COMPLETED] = True
_FOLLOWS[[Turn.FREE_COMPLETED, Turn.FREE], Turn.ALLOC] = True


def live_after(trace: Trace) -> dict[int, Live]:
    """Return the live blocks after the last entry, by address."""
    blocks = (block for segment in trace.segments for block in segment.blocks)
    return {block.address: _alive(block) for block in blocks if block.is_active}


def live_before(trace: Trace, entry: int) -> dict[int, Live] | None:
    """Return the live blocks before entry `entry`, by address; None if entries contradict."""
    tiles = trace.tiles
    if tiles is None or not tiles.are_sound:
        return None
    turns = trace.by_address.since(entry)
    size = trace.size.take(turns.entry)
    left = _left(tiles, turns, size)
    if left is None or not _fits(turns, size):
        return None
    is_untouched = tiles.is_active.copy()
    is_untouched[left] = False
    untouched = (tiles.blocks[number] for number in np.flatnonzero(is_untouched).tolist())
    before = {block.address: _alive(block) for block in untouched}
    # The first turn of a block that is older than `entry` is a free or a part of one.
    is_first = np.ones(len(turns), dtype=bool)
    is_first[1:] = ~turns.goes_on[:-1]
    first = np.flatnonzero(is_first & ~any_of(turns.kind, (Turn.ALLOC,)))
    is_pending = any_of(turns.kind[first], (Turn.FREE_COMPLETED,))
    waits = any_of(turns.kind[first], (Turn.FREE_REQUESTED,))
    ends = ~waits | turns.goes_on[first]
    death = turns.entry[np.minimum(first + waits, max(len(turns) - 1, 0))]
    columns = (turns.addr[first], size[first], is_pending, ends, death)
    for at, held, pending, is_over, index in zip(*(c.tolist() for c in columns), strict=True):
        if is_over:
            before[at] = Live(held, None, PENDING if pending else ALLOCATED, -1, index)
        else:
            number = int(np.searchsorted(tiles.address, np.uint64(at)))
            before[at] = replace(_alive(tiles.blocks[number]), state=ALLOCATED)
    return before


def _alive(block: BlockState) -> Live:
    return Live(block.requested_size, block.size, block.state, block.frames)


def _fits(turns: ByAddress, size: NDArray[np.int64]) -> bool:
    """Return True if allocations and frees alternate at each address, with equal sizes.

    size: bytes of the entry of each turn.
    """
    before, after, goes_on = turns.kind[:-1], turns.kind[1:], turns.goes_on[:-1]
    may_follow = _FOLLOWS.ravel()[4 * before + after]
    is_same = any_of(after, (Turn.ALLOC,)) | (size[1:] == size[:-1])
    return bool(((may_follow & is_same) | ~goes_on).all())


def _left(tiles: Tiles, turns: ByAddress, size: NDArray[np.int64]) -> NDArray[np.intp] | None:
    """Return the indices in `tiles` of the live final blocks that `turns` allocated or changed.

    size: bytes of the entry of each turn.
    Return None if the final blocks contradict the last turns of their addresses.
    """
    last = np.flatnonzero(~turns.goes_on)
    kind, addr = turns.kind[last], turns.addr[last]
    at = np.searchsorted(tiles.address, addr)
    at_block = np.minimum(at, max(len(tiles.address) - 1, 0))
    is_there = np.zeros(len(last), dtype=bool)
    if len(tiles.address):
        is_there = (tiles.address[at_block] == addr) & tiles.is_active[at_block]
    is_left = any_of(kind, (Turn.ALLOC, Turn.FREE_REQUESTED))
    if not np.array_equal(is_left, is_there):
        return None
    left = at_block[is_left]
    is_asked = tiles.requested_size[left] == size[last[is_left]]
    waits = any_of(kind[is_left], (Turn.FREE_REQUESTED,))
    if not is_asked.all() or not tiles.is_pending[left][waits].all():
        return None
    return left
