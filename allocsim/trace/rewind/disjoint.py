"""Whether no two blocks in use ever overlapped, all of them looked at at once.

Rule: the answer is yes only where looking at one allocation after the other would find no overlap;
no is no verdict, but leave to look.  Two blocks overlap if one begins inside the other while both
live.  The entries are taken in stretches, each with the blocks that live in it: sorted by address,
those that begin inside another stand right behind it, and in one stretch they are few.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import any_of, stable_order
from allocsim.state import INACTIVE, SegmentState
from allocsim.trace.trace import Action, Trace

__all__ = ["never_overlap"]

_STRETCH = 4096
"""Entries in a stretch, at least: fewer pay for more blocks that live in several of them."""
_MOST_PAIRS = 64
"""Blocks inside others that are held against them, for each block of a stretch: what has more is
looked at one by one, in less memory."""

_Ints = NDArray[np.int64]
_Lives = tuple[NDArray[np.uint64], _Ints, _Ints, _Ints, _Ints]
"""Every address, ascending, and of each block: the number of its own, bytes, the entries of its
allocation (-1: before the first) and of its end (as many as there are: none)."""


def never_overlap(trace: Trace, start: tuple[SegmentState, ...]) -> bool:
    """Whether it is certain that no block was allocated over one in use; start: what was there."""
    lives = _lives(trace, start)
    if lives is None:
        return False
    addresses, place, size, born, died = lives
    ends = addresses[place] + size.astype(np.uint64)
    if (ends < addresses[place]).any():
        return False
    last = np.searchsorted(addresses, ends)
    stretch = max(_STRETCH, _most_alive(trace, int(np.count_nonzero(born < 0))))
    first = np.maximum(born, 0) // stretch
    n_in = np.minimum(died, len(trace) - 1) // stretch - first + 1
    block = np.repeat(np.arange(len(n_in)), n_in)
    number = _counted(n_in) + np.repeat(first, n_in)
    # Blocks come by address already.
    order = stable_order(number)
    number, block = number[order], block[order]
    key = number * (len(addresses) + 1) + place[block]
    outer = np.flatnonzero(last[block] > place[block] + 1)
    of = block[outer]
    low = np.searchsorted(key, key[outer], side="right")
    inside = np.searchsorted(key, key[outer] - place[of] + last[of]) - low
    if inside.sum() > _MOST_PAIRS * (len(block) + _STRETCH):
        return False
    one = np.repeat(of, inside)
    other = block[_counted(inside) + np.repeat(low, inside)]
    both = np.maximum(born[one], born[other]) < np.minimum(died[one], died[other])
    return not both.any()


def _lives(trace: Trace, start: tuple[SegmentState, ...]) -> _Lives | None:
    """The blocks that were ever in use; None if an address is taken twice or given back twice."""
    there = sorted(
        (block.address, block.size)
        for segment in start
        for block in segment.blocks
        if block.state != INACTIVE
    )
    entry = trace.by_address
    entry = entry[~any_of(trace.action[entry], (Action.FREE_REQUESTED,))]
    addr, size = trace.addr[entry], trace.size[entry]
    is_alloc = any_of(trace.action[entry], (Action.ALLOC,))
    if there:  # before all entries of the same address
        at = np.searchsorted(addr, np.array([address for address, _ in there], dtype=np.uint64))
        addr = np.insert(addr, at, [address for address, _ in there])
        size = np.insert(size, at, [held for _, held in there])
        entry, is_alloc = np.insert(entry, at, -1), np.insert(is_alloc, at, True)
    goes_on = addr[1:] == addr[:-1]
    begins = np.ones(len(addr), dtype=bool)
    begins[1:] = ~goes_on
    place = np.cumsum(begins) - 1
    takes_turns = not (is_alloc[1:] == is_alloc[:-1])[goes_on].any()
    if not takes_turns or not is_alloc[begins].all():
        return None
    died = np.full(len(place), len(trace))
    died[:-1][goes_on] = entry[1:][goes_on]
    return addr[begins], place[is_alloc], size[is_alloc], entry[is_alloc], died[is_alloc]


def _most_alive(trace: Trace, at_start: int) -> int:
    """The most blocks in use after any entry."""
    moved = any_of(trace.action, (Action.ALLOC,)).view(np.int8)
    moved = moved - any_of(trace.action, (Action.FREE_COMPLETED,)).view(np.int8)
    return at_start + int(np.cumsum(moved, dtype=np.int64).max(initial=0))


def _counted(counts: _Ints) -> _Ints:
    """0, 1, … as often as each of `counts` says, one after the other."""
    counted: _Ints = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return counted
