"""History of a replay, derived from its steps and the addresses of their blocks.

A step is plain if its entries can be derived from its columns and the address of its block.  The
core runs plain steps in a batch, and records only the addresses.  The other steps run one by one,
and the allocator records their entries.  Source: semantics 6.2.
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

Row = tuple[str, int, int, int]
"""Entry of a replay: (action, address, size, stream)."""

ENTRIES = np.zeros(len(StepKind), dtype=np.int64)
"""Number of entries of a plain step, by `StepKind`; 0 for kinds that run one by one."""
FIRST_ACTIONS = np.zeros(len(StepKind), dtype=np.uint8)
"""Action of the first entry of a plain step, by `StepKind`."""
for _kind, _count, _action in (
    (StepKind.ALLOC, 1, Action.ALLOC),
    (StepKind.FREE, 2, Action.FREE_REQUESTED),
    (StepKind.FREE_REQUEST, 1, Action.FREE_REQUESTED),
    (StepKind.FREE_COMPLETE, 1, Action.FREE_COMPLETED),
):
    ENTRIES[_kind], FIRST_ACTIONS[_kind] = _count, _action


@dataclass(slots=True)
class PlacedSteps:
    """Addresses of the blocks of a batch of steps, filled while the steps run.

    A step is plain if its entries can be derived from its columns and the address of its block.

    places: address of each plain step's block; 0 for other steps.
    singly: indices in the batch of the steps that are not plain, which run one by one.
    ends: number of entries in the allocator's history after each step in `singly`.
    answered_ooms: indices into `singly` of requests that fail in the recording, but not in this
        replay.
    """

    places: list[int] = field(default_factory=Column)
    singly: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    answered_ooms: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.places)

    def begin_singly(self) -> None:
        self.singly.append(len(self.places))
        self.places.append(0)


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Entries of a batch of steps, as columns.

    addr, size: address and bytes of the block or segment.
    answered_ooms: indices of `alloc` entries whose request fails in the recording, but not in this
        replay.
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
    """Comparison of a replay with its recording, updated after each batch of steps."""

    @property
    def has_diverged(self) -> bool: ...

    def exclude_last_alloc(self, pending: Sequence[TraceEntry]) -> None:
        """Do not compare the address of the last `alloc`, whose request failed in the recording.

        pending: entries of the replay that are not compared yet.
        """

    def history(self, entries: Sequence[TraceEntry]) -> None: ...
    def steps(
        self, steps: Steps, first: int, placed: PlacedSteps, history: Sequence[TraceEntry]
    ) -> None:
        """Compare the entries that the next steps of the replay caused with the recorded ones.

        first: number of the first of `steps` in the plan of the replay.
        placed: addresses of the steps' blocks.
        history: entries of the steps that ran one by one.
        """

    def result(self, allocator: ReplayAllocator) -> Fidelity: ...


def rows_of(steps: Steps, placed: PlacedSteps, history: Sequence[TraceEntry]) -> PlacedRows:
    """Return the entries that `steps` cause, as columns.

    history: entries of the steps that ran one by one.
    """
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
    return PlacedRows(action, addr, size, stream, answered_ooms)


def _last_allocs(placed: PlacedSteps, actions: Sequence[str], rows: NDArray[np.intp]) -> list[int]:
    allocs = np.array([at for at, action in enumerate(actions) if action == "alloc"])
    return [
        int(rows[allocs[np.searchsorted(allocs, placed.ends[single]) - 1]])
        for single in placed.answered_ooms
    ]
