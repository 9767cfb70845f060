"""History of a replay, derived from its steps and the address at which each block was placed.

The kind and the columns of a plain step determine its entries, at the address that the core noted.
Steps that run one by one have entries in the allocator's history.  Together they are the history
that the allocator would have kept, except for pool ids.  Source: semantics 6.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import address_column
from allocsim.core import Column, ReplayAllocator, TraceEntry
from allocsim.recording import ACTION_CODES, Action
from allocsim.simulation.plan import StepKind, Steps
from allocsim.simulation.result import Fidelity

__all__ = ["ENTRIES", "FIRST_ACTIONS", "HistoryCheck", "PlacedSteps", "Row", "Rows", "rows_of"]

Row = tuple[str, int, int, int]
"""(action, address, size, stream)"""

ENTRIES = np.zeros(len(StepKind), dtype=np.int64)
"""Number of entries of a plain step, by its kind."""
FIRST_ACTIONS = np.zeros(len(StepKind), dtype=np.uint8)
"""Action of the first entry of a plain step, by its kind."""
for _kind, _count, _action in (
    (StepKind.ALLOC, 1, Action.ALLOC),
    (StepKind.FREE, 2, Action.FREE_REQUESTED),
    (StepKind.FREE_REQUEST, 1, Action.FREE_REQUESTED),
    (StepKind.FREE_COMPLETE, 1, Action.FREE_COMPLETED),
):
    ENTRIES[_kind], FIRST_ACTIONS[_kind] = _count, _action


@dataclass(slots=True)
class PlacedSteps:
    """Addresses of the blocks of a chunk of steps, filled while the steps run.

    places: address of each step's block; 0 for a step that runs on its own.
    singly: numbers of the steps that run on their own.
    ends: number of history entries after each of these.
    answered_ooms: those of these that failed in the recording and succeeded here, as indices.
    """

    places: list[int] = field(default_factory=Column)
    singly: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    answered_ooms: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.places)

    def begin_singly(self) -> None:
        """Note that the next step runs on its own."""
        self.singly.append(len(self.places))
        self.places.append(0)


@dataclass(frozen=True, slots=True)
class Rows:
    """Entries of a chunk of steps, as columns.

    answered_ooms: rows of allocs for requests that failed in the recording.
    """

    action: NDArray[np.uint8]
    addr: NDArray[np.uint64]
    size: NDArray[np.int64]
    stream: NDArray[np.uint64]
    answered_ooms: tuple[int, ...]

    def row(self, at: int) -> Row:
        numbers = (int(column[at]) for column in (self.addr, self.size, self.stream))
        address, size, stream = numbers
        return Action(int(self.action[at])).text, address, size, stream


class HistoryCheck(Protocol):
    """Comparison of a replay with its recording, as a drive uses it."""

    @property
    def has_diverged(self) -> bool:
        """True if an entry differed."""
        ...

    def exclude_last_alloc(self, pending: Sequence[TraceEntry]) -> None:
        """Exclude the last `alloc` from the comparison; `history` will pass `pending`."""

    def history(self, entries: Sequence[TraceEntry]) -> None:
        """Compare the next entries of the replay."""

    def steps(
        self, steps: Steps, first: int, placed: PlacedSteps, history: Sequence[TraceEntry]
    ) -> None:
        """Compare the next steps, of which `first` is the number of the first in the plan."""

    def result(self, allocator: ReplayAllocator) -> Fidelity:
        """Compare the final segments, and return the result."""
        ...


def rows_of(steps: Steps, placed: PlacedSteps, history: Sequence[TraceEntry]) -> Rows:
    """Return the entries of `steps`.  history: entries of the steps that ran on their own."""
    is_single = np.zeros(len(steps), dtype=bool)
    is_single[placed.singly] = True
    counts = ENTRIES[steps.kind]
    counts[placed.singly] = np.diff(placed.ends, prepend=0)
    of = np.repeat(np.arange(len(steps)), counts)
    action = FIRST_ACTIONS[steps.kind][of]
    # The second entry of an immediate free.
    second = np.cumsum(counts)[(steps.kind == StepKind.FREE) & ~is_single] - 1
    action[second] = Action.FREE_COMPLETED
    places = address_column(placed.places)
    addr, size, stream = places[of], steps.size[of], steps.stream[of]
    answered_ooms: tuple[int, ...] = ()
    if history:
        rows = np.flatnonzero(is_single[of])
        actions, addresses, sizes, streams, _ = zip(*history, strict=True)
        action[rows] = [ACTION_CODES[name] for name in actions]
        addr[rows] = np.array(addresses, dtype=np.uint64)
        size[rows], stream[rows] = sizes, np.array(streams, dtype=np.uint64)
        answered_ooms = tuple(_last_allocs(placed, actions, rows))
    return Rows(action, addr, size, stream, answered_ooms)


def _last_allocs(placed: PlacedSteps, actions: Sequence[str], rows: NDArray[np.intp]) -> list[int]:
    """Return the row of the last `alloc` of each answered out-of-memory request."""
    allocs = np.array([at for at, action in enumerate(actions) if action == "alloc"])
    return [
        int(rows[allocs[np.searchsorted(allocs, placed.ends[single]) - 1]])
        for single in placed.answered_ooms
    ]
