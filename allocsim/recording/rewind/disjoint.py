"""Check quickly that no two live blocks of a recording overlapped.

A result of True is certain.  After False the caller must check the allocations one by one.  Two
blocks overlap if one block begins inside the other block while both are live.  The recording is
divided into stretches of consecutive entries.  For each stretch, the blocks that are live in it are
sorted by address.  The blocks that begin inside a block then directly follow it, and there are few.
"""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.recording.by_address import Turn
from allocsim.recording.trace import Trace
from allocsim.state import SegmentState

_STRETCH = 4096
"""Least number of entries per stretch.  In shorter stretches, more blocks are counted twice."""
_MOST_PAIRS = 64
"""Largest mean number of block pairs to compare per block; more would need much memory."""
_AT_ONCE = 1 << 15
"""Blocks that are compared at once, so that the arrays fit in the CPU cache."""

_LAST = np.uint64((1 << 63) - 1)

_Ints = NDArray[np.int64]


class _Lives(NamedTuple):
    """All blocks that were ever live, sorted by address, then by time.

    low: address, relative to the lowest block.
    size: bytes.
    born: entry of the allocation; -1 if the block existed before the first entry.
    died: entry of the completed free; the number of entries if the block was not freed.
    """

    low: _Ints
    size: _Ints
    born: _Ints
    died: _Ints


def never_overlap(trace: Trace, start: tuple[SegmentState, ...]) -> bool:
    """Return True if certainly no block was allocated over a live one.

    start: segments before the first entry.
    """
    lives = _lives(trace, start)
    if lives is None:
        return False
    # A power of two, so that a shift replaces the division.
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
    """Return the blocks that are live in each stretch of 2**shift entries.

    Return their indices in `lives`, stretch after stretch, each sorted by address, and the number
    of blocks of each stretch.
    """
    first = np.maximum(lives.born, 0) >> shift
    last = np.minimum(lives.died, n_entries - 1) >> shift
    n_in = last - first + 1
    block = np.repeat(np.arange(len(n_in)), n_in)
    number = np.arange(len(block)) - np.repeat(np.cumsum(n_in) - n_in - first, n_in)
    n_stretches = ((n_entries - 1) >> shift) + 1
    # Blocks are already sorted by address.  NumPy sorts 16-bit integers by counting.
    number = number.astype(np.min_scalar_type(n_stretches))
    ordered = block.take(np.argsort(number, kind="stable"))
    return ordered, np.bincount(number, minlength=n_stretches)


def _are_apart(lives: _Lives, block: _Ints, key: _Ints) -> bool:
    """Return True if certainly no block in these stretches was allocated over a live one.

    block: indices in `lives`, sorted by stretch, then by address.
    key: address of each block plus an offset that separates the stretches, in bytes.
    """
    born, died = lives.born, lives.died
    # Blocks of equal address are adjacent; blocks that may begin inside them follow.
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
    """Return address, size, allocation and free of all blocks.

    start: segments before the first entry.
    Return None if an address is allocated or freed twice in a row, or if a number does not fit in
    64 bits.
    """
    turns = trace.by_address
    entry, addr, kind = turns.entry, turns.addr, turns.kind
    if (is_request := any_of(kind, (Turn.FREE_REQUESTED,))).any():
        entry, addr, kind = entry[~is_request], addr[~is_request], kind[~is_request]
    there = [block for segment in start for block in segment.blocks if block.is_active]
    if there:  # they precede all turns at the same address
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
    """Return the approximate peak number of live blocks."""
    n_stretches = n_entries // _STRETCH + 2
    born = np.bincount(lives.born // _STRETCH + 1, minlength=n_stretches)
    died = np.bincount(lives.died // _STRETCH + 1, minlength=n_stretches)
    return int(np.cumsum(born - died).max(initial=0))
