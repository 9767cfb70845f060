"""The blocks in use before an entry, all entries about blocks undone at once.

Rule: the result is that of undoing them one by one (start_state.py), or nothing where they do not
fit together; then undoing them one by one finds the entry that does not.  At one address alloc,
free_requested and free_completed take turns, so that sorting by address puts next to one another
what has to fit: a million entries take a tenth of a second.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from allocsim.state import ALLOCATED, PENDING
from allocsim.trace.rewind.slack import Live
from allocsim.trace.trace import Action, Trace

__all__ = ["live_before"]


def live_before(trace: Trace, entry: int, live: dict[int, Live]) -> dict[int, Live] | None:
    """The blocks in use before `entry`, from those after the last; None if entries contradict."""
    rows = trace.by_address
    rows = rows[rows >= entry] if entry else rows
    if not len(rows):
        return dict(live)
    action, addr, size = trace.action[rows], trace.addr[rows], trace.size[rows]
    goes_on = np.append(addr[1:] == addr[:-1], False)
    if not _fits(action[:-1], action[1:])[goes_on[:-1]].all():
        return None
    left = _left(action[~goes_on], addr[~goes_on].tolist(), live)
    if left is None:
        return None
    # The bytes asked for of each row's block, known from its end.
    asked = size.copy()
    asked[~goes_on & (action != Action.FREE_COMPLETED)] = left
    for kind in (Action.FREE_REQUESTED, Action.ALLOC):
        followed = np.flatnonzero((action == kind) & goes_on)
        asked[followed] = asked[followed + 1]
    is_alloc = action == Action.ALLOC
    if (asked[is_alloc] != size[is_alloc]).any():
        return None
    first = np.flatnonzero(np.append(True, ~goes_on[:-1]) & ~is_alloc)
    touched = set(addr[~goes_on].tolist())
    before = {at: block for at, block in live.items() if at not in touched}
    is_pending = action[first] == Action.FREE_COMPLETED
    death = rows[np.minimum(first + ~is_pending, len(rows) - 1)]
    columns = (addr[first], asked[first], is_pending, goes_on[first], death)
    for at, held, pending, ends, index in zip(*(c.tolist() for c in columns), strict=True):
        if pending or ends:
            before[at] = Live(held, None, PENDING if pending else ALLOCATED, -1, index)
        else:
            before[at] = replace(live[at], state=ALLOCATED)
    return before


def _fits(action: NDArray[np.uint8], following: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether one may come right after the other at an address."""
    was_alloc, was_requested = action == Action.ALLOC, action == Action.FREE_REQUESTED
    requested = (following == Action.FREE_REQUESTED) & was_alloc
    completed = (following == Action.FREE_COMPLETED) & (was_alloc | was_requested)
    alloc = (following == Action.ALLOC) & (action == Action.FREE_COMPLETED)
    fits: NDArray[np.bool_] = requested | completed | alloc
    return fits


def _left(action: NDArray[np.uint8], addr: list[int], live: dict[int, Live]) -> list[int] | None:
    """The bytes asked for of what is in use after the last entry about each address.

    None if one of them is not as that entry left it.
    """
    left = []
    for kind, at in zip(action.tolist(), addr, strict=True):
        block = live.get(at)
        if (kind == Action.FREE_COMPLETED) != (block is None):
            return None
        if block is not None:
            if kind == Action.FREE_REQUESTED and block.state != PENDING:
                return None
            left.append(block.requested_size)
    return left
