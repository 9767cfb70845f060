"""The history of a replay, derived from its steps and the address at which each was placed.

Rule: a plain step leaves the entries that its kind and its columns say, at the address that the
core noted; a step that was taken singly leaves those of the allocator's history.  Both together
are the history that the allocator would have kept, entry by entry, but for the ids of pools.
Source: semantics 6.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import address_column
from allocsim.core import Column, TraceEntry
from allocsim.engine.plan import StepKind, Steps
from allocsim.trace import ACTION_CODES, Action

__all__ = ["ENTRIES", "FIRST_ACTIONS", "PlacedSteps", "Row", "Rows", "rows_of"]

Row = tuple[str, int, int, int]
"""(action, address, size, stream) of an entry"""

ENTRIES = np.zeros(len(StepKind), dtype=np.int64)
"""By the kind of a plain step, how many entries it leaves."""
FIRST_ACTIONS = np.zeros(len(StepKind), dtype=np.uint8)
"""By the kind of a plain step, the first of them."""
for _kind, _count, _action in (
    (StepKind.ALLOC, 1, Action.ALLOC),
    (StepKind.FREE, 2, Action.FREE_REQUESTED),
    (StepKind.FREE_REQUEST, 1, Action.FREE_REQUESTED),
    (StepKind.FREE_COMPLETE, 1, Action.FREE_COMPLETED),
):
    ENTRIES[_kind], FIRST_ACTIONS[_kind] = _count, _action


@dataclass(slots=True)
class PlacedSteps:
    """Where the steps of a piece were placed, as they are taken.

    places: the address of each step's block, 0 for one that was taken singly.
    singly: the numbers of those in the piece; ends: how many entries there were after each.
    given_back: which of them are requests that failed in the recording and succeeded here.
    """

    places: list[int] = field(default_factory=Column)
    singly: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    given_back: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.places)

    def begin_singly(self) -> None:
        """The next step is taken by itself."""
        self.singly.append(len(self.places))
        self.places.append(0)


@dataclass(frozen=True, slots=True)
class Rows:
    """The entries of a piece as columns; row i is entry i.

    given_back: the rows that answer a request which failed in the recording.
    """

    action: NDArray[np.uint8]
    addr: NDArray[np.uint64]
    size: NDArray[np.int64]
    stream: NDArray[np.uint64]
    given_back: tuple[int, ...]

    def row(self, at: int) -> Row:
        """One of them."""
        numbers = (int(column[at]) for column in (self.addr, self.size, self.stream))
        address, size, stream = numbers
        return Action(int(self.action[at])).text, address, size, stream


def rows_of(steps: Steps, placed: PlacedSteps, history: Sequence[TraceEntry]) -> Rows:
    """The entries that `steps` left; history: of those that were taken singly."""
    is_single = np.zeros(len(steps), dtype=bool)
    is_single[placed.singly] = True
    counts = ENTRIES[steps.kind]
    counts[placed.singly] = np.diff(placed.ends, prepend=0)
    of = np.repeat(np.arange(len(steps)), counts)
    action = FIRST_ACTIONS[steps.kind][of]
    second = np.cumsum(counts)[(steps.kind == StepKind.FREE) & ~is_single] - 1
    action[second] = Action.FREE_COMPLETED
    places = address_column(placed.places)
    addr, size, stream = places[of], steps.size[of], steps.stream[of]
    given_back: tuple[int, ...] = ()
    if history:
        rows = np.flatnonzero(is_single[of])
        actions, addresses, sizes, streams, _ = zip(*history, strict=True)
        action[rows] = [ACTION_CODES[name] for name in actions]
        addr[rows] = np.array(addresses, dtype=np.uint64)
        size[rows], stream[rows] = sizes, np.array(streams, dtype=np.uint64)
        given_back = tuple(_last_allocs(placed, actions, rows))
    return Rows(action, addr, size, stream, given_back)


def _last_allocs(placed: PlacedSteps, actions: Sequence[str], rows: NDArray[np.intp]) -> list[int]:
    """The row of the last `alloc` of each request that was given back."""
    allocs = np.array([at for at, action in enumerate(actions) if action == "alloc"])
    return [
        int(rows[allocs[np.searchsorted(allocs, placed.ends[single]) - 1]])
        for single in placed.given_back
    ]
