"""Live blocks before a given entry of a recording, and a check that no two blocks overlap.

Live blocks are found by undoing the later entries: `live_before` undoes all at once.  Module
`start_state.py` undoes them one by one, which is slower but names an entry that contradicts others.
"""

# At one address the entries alloc, free_requested and free_completed alternate, so sorting by
# address brings the entries of each block together.
# For a block that existed before the recording, only the requested size is recorded. The addresses
# from its end to the next live block are slack or free space; slack is at most 1 MiB
# (semantics 1.7). If allocations begin at these addresses while the block is live, the first shows
# the end of the block, because the allocator merges adjacent free blocks and allocates from their
# front. Without such an allocation, few addresses are taken for slack, and many for free space.

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.recording.trace import ByAddress, Tiles, Trace, Turn
from allocsim.state import ALLOCATED, PENDING, BlockState, SegmentState
from allocsim.units import MIB

_MAX_LARGE_SLACK = MIB
_MAX_SLACK = 511
_LAST_ADDRESS = (1 << 64) - 1


@dataclass(slots=True)
class Live:
    """Block that is live before a given entry.

    size: bytes of the block; None if only the requested size is known.
    state: "active_allocated" or "active_pending_free".
    frames: stack index; -1 without a stack.
    death: index of the entry that completes the block's free; -1 if the block is not freed.
    """

    requested_size: int
    size: int | None
    state: str
    frames: int
    death: int = -1


class LaterAllocs:
    def __init__(self, trace: Trace, entry: int) -> None:
        self._trace, self._entry = trace, entry

    @cached_property
    def _indices(self) -> NDArray[np.intp]:
        turns = self._trace.by_address
        is_alloc = any_of(turns.kind, (Turn.ALLOC,)) & (turns.entry >= self._entry)
        allocs: NDArray[np.intp] = turns.entry[is_alloc]
        return allocs

    @cached_property
    def _addresses(self) -> NDArray[np.uint64]:
        return self._trace.addr[self._indices]

    def first(self, low: int, high: int, before: int) -> int | None:
        # Returns the address of the first allocation in [low, high] before the entry `before`.
        # `high`, the address of the next block, is included: an allocation there shows that this
        # block was freed and did not merge with free space below it.
        if low > _LAST_ADDRESS:
            return None
        # The array's method takes a fifth of the time of the function np.searchsorted.
        start = self._addresses.searchsorted(np.uint64(low), "left")
        end = self._addresses.searchsorted(np.uint64(min(high, _LAST_ADDRESS)), "right")
        if start >= end:
            return None
        first = start + np.argmin(self._indices[start:end])
        return int(self._addresses[first]) if self._indices[first] < before else None


def true_size(
    segment: SegmentState,
    address: int,
    gap_end: int,
    *,
    least: int,
    landed: int | None,
    never_split: bool = False,
) -> tuple[int, bool]:
    """Return the bytes of a block for which only the requested size is recorded.

    Also return True if the block may be up to 1 MiB larger than the returned size.

    segment, address: segment and address of the block.
    gap_end: address of the next live block, or the segment's end.
    least: requested size after rounding, in bytes.
    landed: address of the first allocation between `address` and `gap_end` while the block was
        live; None if there is none.
    never_split: True if the request reached max_split_size, so that the block was not split.
    """
    room = gap_end - address
    if least >= room or never_split:
        return room, False
    if landed is not None:
        return landed - address, False
    unsplit = segment.is_small or segment.is_expandable
    slack = room - least
    if slack <= (_MAX_SLACK if unsplit else _MAX_LARGE_SLACK):
        return room, False
    return least, not unsplit


_FOLLOWS = np.zeros((4, 4), dtype=bool)
"""Table of changes of a block that may follow each other: _FOLLOWS[a, b] is True if b may follow a.

a, b: successive changes at one address, as values of `Turn`, such as an allocation or a free."""
_FOLLOWS[Turn.ALLOC, [Turn.FREE_REQUESTED, Turn.FREE_COMPLETED, Turn.FREE]] = True
_FOLLOWS[Turn.FREE_REQUESTED, Turn.FREE_COMPLETED] = True
_FOLLOWS[[Turn.FREE_COMPLETED, Turn.FREE], Turn.ALLOC] = True


def live_after(trace: Trace) -> dict[int, Live]:
    blocks = (block for segment in trace.segments for block in segment.blocks)
    return {block.address: _alive(block) for block in blocks if block.is_active}


def live_before(trace: Trace, entry: int) -> dict[int, Live] | None:
    """Return the blocks that are live before entry `entry`, as a dictionary keyed by address.

    Return None if the entries or the final segments contradict each other.
    """
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
    # A block that is older than `entry` is freed first; a newer block is allocated first.
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
    before, after, goes_on = turns.kind[:-1], turns.kind[1:], turns.goes_on[:-1]
    may_follow = _FOLLOWS.ravel()[4 * before + after]
    is_same = any_of(after, (Turn.ALLOC,)) | (size[1:] == size[:-1])
    return bool(((may_follow & is_same) | ~goes_on).all())


def _left(tiles: Tiles, turns: ByAddress, size: NDArray[np.int64]) -> NDArray[np.intp] | None:
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


_STRETCH = 4096
"""Smallest number of entries in a stretch, a range of entries that is searched for overlaps.

Blocks are compared only with others that are live in their stretch.  A block that is live in
several stretches is compared in each, so shorter stretches take more time.
"""
_MOST_PAIRS = 64
"""Largest mean number of comparisons per block; more would need too much memory."""
_AT_ONCE = 1 << 15
"""Approximate number of blocks that are compared at once; their arrays fit in the CPU cache."""

_LAST = np.uint64((1 << 63) - 1)

_Ints = NDArray[np.int64]


class _Lives(NamedTuple):
    """All blocks that were ever live, sorted by address, then by time.

    low: address, minus the lowest address of all blocks.
    size: bytes.
    born: entry of the allocation; -1 if the block existed before the first entry.
    died: entry of the completed free; the number of all entries if the block was not freed.
    """

    low: _Ints
    size: _Ints
    born: _Ints
    died: _Ints


def never_overlap(trace: Trace, start: tuple[SegmentState, ...]) -> bool:
    """Return True if it is certain that no allocation overlaps a block that is live then.

    If the result is False, the caller must check the allocations one by one.

    start: segments before the first entry.
    """
    lives = _lives(trace, start)
    if lives is None:
        return False
    # The length of a stretch is a power of two, so that a shift replaces the division.
    shift = (max(_STRETCH, _most_alive(lives, len(trace))) - 1).bit_length()
    n_stretches = ((len(trace) - 1) >> shift) + 1
    room = int((lives.low + lives.size).max(initial=0)) + 1
    if room * n_stretches > np.iinfo(np.int64).max:
        return False
    block, n_alive = _by_stretch(lives, len(trace), shift)
    ends = np.cumsum(n_alive)
    edges = np.searchsorted(ends, np.arange(0, len(block), _AT_ONCE), side="right").tolist()
    for low, high in pairwise(dict.fromkeys([0, *edges, n_stretches])):
        piece = block[ends[low] - n_alive[low] : ends[high - 1]]
        base = np.repeat(np.arange(low, high) * room, n_alive[low:high])
        if not _are_apart(lives, piece, base + lives.low.take(piece)):
            return False
    return True


def _by_stretch(lives: _Lives, n_entries: int, shift: int) -> tuple[_Ints, _Ints]:
    first = np.maximum(lives.born, 0) >> shift
    last = np.minimum(lives.died, n_entries - 1) >> shift
    n_in = last - first + 1
    block = np.repeat(np.arange(len(n_in)), n_in)
    number = np.arange(len(block)) - np.repeat(np.cumsum(n_in) - n_in - first, n_in)
    n_stretches = ((n_entries - 1) >> shift) + 1
    # Blocks stay sorted by address in each stretch.  NumPy sorts 16-bit integers by counting.
    number = number.astype(np.min_scalar_type(n_stretches))
    ordered = block.take(np.argsort(number, kind="stable"))
    return ordered, np.bincount(number, minlength=n_stretches)


def _are_apart(lives: _Lives, block: _Ints, key: _Ints) -> bool:
    # `block` has indices in `lives`; `key` has their addresses plus an offset for each stretch.
    born, died = lives.born, lives.died
    # Blocks of equal address are adjacent; blocks that begin inside them come after them.
    behind = np.append(np.flatnonzero(key[1:] != key[:-1]) + 1, len(key))
    low = np.repeat(behind, np.diff(behind, prepend=0))
    end = key + lives.size.take(block)
    outer = np.flatnonzero(key.take(low, mode="clip") < end)
    low = low[outer]
    inside = np.searchsorted(key, end[outer]) - low
    if inside.sum() > _MOST_PAIRS * (len(block) + _STRETCH):
        return False
    at = np.repeat(low - np.cumsum(inside) + inside, inside)
    at += np.arange(len(at))
    one, other = block.take(outer), block.take(at)
    began = np.maximum(np.repeat(born.take(one), inside), born.take(other))
    ended = np.minimum(np.repeat(died.take(one), inside), died.take(other))
    return not (began < ended).any()


def _lives(trace: Trace, start: tuple[SegmentState, ...]) -> _Lives | None:
    turns = trace.by_address
    entry, addr, kind = turns.entry, turns.addr, turns.kind
    if (is_request := any_of(kind, (Turn.FREE_REQUESTED,))).any():
        entry, addr, kind = entry[~is_request], addr[~is_request], kind[~is_request]
    there = [block for segment in start for block in segment.blocks if block.is_active]
    if there:  # blocks from before the first entry are the first at their addresses
        there.sort(key=attrgetter("address"))
        held = np.array([block.address for block in there], dtype=np.uint64)
        at = np.searchsorted(addr, held)
        addr, kind = np.insert(addr, at, held), np.insert(kind, at, np.uint8(Turn.ALLOC))
        entry = np.insert(entry, at, -1)
    begins = np.ones(len(addr) + 1, dtype=bool)
    begins[1:-1] = addr[1:] != addr[:-1]
    is_alloc = any_of(kind, (Turn.ALLOC,))
    may_be = begins[:-1].copy()
    may_be[1:] |= ~is_alloc[:-1]
    if not np.array_equal(is_alloc, may_be):
        return None
    rows = np.flatnonzero(is_alloc)
    born, low = entry.take(rows), addr.take(rows)
    died = np.where(begins[rows + 1], len(trace), entry.take(rows + 1, mode="clip"))
    size = trace.size.take(born, mode="clip")
    size[born < 0] = [block.size for block in there]
    low -= low.min(initial=_LAST)
    if (low + size.astype(np.uint64) > _LAST).any() or low.max(initial=0) > _LAST:
        return None
    return _Lives(low.view(np.int64), size, born, died)


def _most_alive(lives: _Lives, n_entries: int) -> int:
    n_stretches = n_entries // _STRETCH + 2
    born = np.bincount(lives.born // _STRETCH + 1, minlength=n_stretches)
    died = np.bincount(lives.died // _STRETCH + 1, minlength=n_stretches)
    return int(np.cumsum(born - died).max(initial=0))
