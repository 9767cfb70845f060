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

from allocsim.arrays import any_of
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
    is_last = ~goes_on
    is_free = any_of(action, (Action.FREE_COMPLETED,)) & is_last
    is_left = is_last & ~is_free
    unfreed = addr[is_left].tolist()
    left = _left(action[is_left].tolist(), unfreed, live)
    if left is None or not live.keys().isdisjoint(addr[is_free].tolist()):
        return None
    # The bytes asked for of each row's block, known from its end.
    asked = size.copy()
    asked[is_left] = left
    for kind in (Action.FREE_REQUESTED, Action.ALLOC):
        followed = np.flatnonzero(any_of(action, (kind,)) & goes_on)
        asked[followed] = asked[followed + 1]
    is_alloc = any_of(action, (Action.ALLOC,))
    if (asked[is_alloc] != size[is_alloc]).any():
        return None
    first = np.flatnonzero(np.append(True, ~goes_on[:-1]) & ~is_alloc)
    touched = set(unfreed)
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
    fits = any_of(following, (Action.FREE_REQUESTED,)) & any_of(action, (Action.ALLOC,))
    in_use = any_of(action, (Action.ALLOC, Action.FREE_REQUESTED))
    fits |= any_of(following, (Action.FREE_COMPLETED,)) & in_use
    fits |= any_of(following, (Action.ALLOC,)) & any_of(action, (Action.FREE_COMPLETED,))
    return fits


def _left(action: list[int], addr: list[int], live: dict[int, Live]) -> list[int] | None:
    """The bytes asked for of each block that its last entry, an alloc or the request of its free,
    leaves in use; None if one of them is not as that entry left it."""
    left = []
    requested = int(Action.FREE_REQUESTED)
    for kind, at in zip(action, addr, strict=True):
        block = live.get(at)
        if block is None or (kind == requested and block.state != PENDING):
            return None
        left.append(block.requested_size)
    return left
