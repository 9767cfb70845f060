"""Observers of a running replay, and the replay's history, which is compared with its recording.

An observer must not change the allocator, and must copy the values that it keeps, because blocks
change later.

A step is plain if its entries can be derived from its columns and the address of its block.  The
core runs plain steps in a batch, and records only the addresses.  The other steps run one by one,
and the allocator records their entries.  Source: semantics 6.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import address_column
from allocsim.core import Block, Column, ReplayAllocator, SavedBytes, TraceEntry
from allocsim.recording import ACTION_CODES, Action
from allocsim.simulation.plan import StepKind, Steps
from allocsim.simulation.result import Fidelity, PeakState, SimulatedOom, Spill

Progress = Callable[[int, int], None]
"""Function called with the numbers of entries done and in total during a replay."""

Row = tuple[str, int, int, int]
"""Entry of a replay: (action, address, size, stream)."""

ENTRIES = np.zeros(len(StepKind), dtype=np.int64)
"""Number of entries of a plain step, indexed by `StepKind`; 0 for kinds that run one by one."""
FIRST_ACTIONS = np.zeros(len(StepKind), dtype=np.uint8)
"""Action of the first entry of a plain step, indexed by `StepKind`."""
for _kind, _count, _action in (
    (StepKind.ALLOC, 1, Action.ALLOC),
    (StepKind.FREE, 2, Action.FREE_REQUESTED),
    (StepKind.FREE_REQUEST, 1, Action.FREE_REQUESTED),
    (StepKind.FREE_COMPLETE, 1, Action.FREE_COMPLETED),
):
    ENTRIES[_kind], FIRST_ACTIONS[_kind] = _count, _action


class GiveUpError(Exception):
    """Exception that an observer raises to end the replay."""


class Observer:
    """Base class of observers, with a method for each kind of event of a replay.

    keeps_history: True to make the allocator record its history and pass it to `history`.
    """

    keeps_history = False

    def began(self, allocator: ReplayAllocator) -> None: ...
    def history(self, entries: Sequence[TraceEntry]) -> None:
        """Handle the history entries since the last call; used only if `keeps_history` is True."""

    def out_of_memory(
        self, allocator: ReplayAllocator, oom: SimulatedOom, blocks: Mapping[int, Block]
    ) -> None: ...
    def grew(self, allocator: ReplayAllocator, entry: int) -> None:
        """Handle a request at `entry` that succeeded and obtained or released reserved memory."""


class PeakWatch(Observer):
    """Observer that keeps the allocated and active bytes at the first peak of reserved memory.

    device_bytes: peak memory in use on the device, in bytes.
    Only one `PeakWatch` can observe an allocator, because the allocator saves only one state.
    """

    def __init__(self) -> None:
        # Plain numbers, because an object for each new peak would take longer.
        self._reserved = self._entry = -1
        self._allocator: ReplayAllocator | None = None
        self.device_bytes = 0

    def began(self, allocator: ReplayAllocator) -> None:
        self._allocator = allocator
        self.grew(allocator, -1)

    def grew(self, allocator: ReplayAllocator, entry: int) -> None:
        self.device_bytes = max(self.device_bytes, allocator.device.held)
        reserved = allocator.reserved_bytes
        if reserved > self._reserved:  # not >=: the first of equal peaks counts
            self._reserved, self._entry = reserved, entry
            allocator.save_bytes()

    @property
    def state(self) -> PeakState:
        saved = SavedBytes() if self._allocator is None else self._allocator.saved_bytes()
        return PeakState(
            entry=self._entry,
            reserved=self._reserved,
            allocated=saved.allocated,
            active=saved.active,
            inactive_split=saved.inactive_split,
        )


class SpillWatch(Observer):
    """Observer that measures the host memory that the driver provides to a full device."""

    def __init__(self) -> None:
        self._began: int | None = None
        self._worst = -1
        self._most = 0

    def began(self, allocator: ReplayAllocator) -> None:
        self.grew(allocator, -1)

    def grew(self, allocator: ReplayAllocator, entry: int) -> None:
        spilled = allocator.device.spilled
        if spilled and self._began is None:
            self._began = entry
        if spilled > self._most:
            self._most, self._worst = spilled, entry

    def result(self, lent: int, at_end: int) -> Spill:
        """Return the use of host memory.

        lent, at_end: bytes of host memory that were available, and in use at the end.
        """
        return Spill(lent, self._most, self._began, self._worst, at_end)


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

        first: index of the first of `steps` in the plan of the replay.
        placed: addresses of the blocks of `steps`.
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
