"""Recorded entries of each step of a plan, looked up once for all replays of the plan.

A plain step is a step whose entries follow from its kind, its columns and the address of its block.
If the recording has these entries next to each other, a replay only has to place the block at its
recorded address: its entries are then equal to the recorded ones, and need not be created.  All
other entries are compared one by one (`compare.py`).  Source: semantics 6.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import address_column, any_of
from allocsim.core import TraceEntry
from allocsim.recording import ACTION_CODES, Action, Trace
from allocsim.simulation import ENTRIES, FIRST_ACTIONS, PlacedSteps, Row, StepKind, Steps

_IGNORED = (Action.SNAPSHOT, Action.ANNOTATE)

_NAMES = np.array([action.text for action in Action], dtype=object)

_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """Entries of a recording that are compared with a replay, as columns.

    entry: number of each entry in the recording.
    """

    entry: NDArray[np.intp]
    action: NDArray[np.uint8]
    addr: NDArray[np.uint64]
    size: _Ints
    stream: NDArray[np.uint64]

    @classmethod
    def of(cls, trace: Trace) -> Compared:
        """Select all entries except annotations and snapshots."""
        entry = np.flatnonzero(~any_of(trace.action, _IGNORED))
        if len(entry) == len(trace):
            return cls(entry, trace.action, trace.addr, trace.size, trace.stream)
        numbers = trace.addr[entry], trace.size[entry], trace.stream[entry]
        return cls(entry, trace.action[entry], *numbers)

    def __len__(self) -> int:
        return len(self.entry)

    def row_of(self, entry: _Ints) -> NDArray[np.intp]:
        """Return the index of each entry number, or of the next compared entry if it is ignored."""
        if len(self) and self.entry[-1] == len(self) - 1:  # every entry is compared
            return entry
        return np.searchsorted(self.entry, entry)

    @property
    def is_completed_next(self) -> NDArray[np.bool_]:
        """Mask of the entries whose next entry is the free_completed of the same free."""
        is_it = np.zeros(len(self), dtype=bool)
        is_it[:-1] = any_of(self.action[1:], (Action.FREE_COMPLETED,))
        for column in (self.addr, self.size, self.stream):
            is_it[:-1] &= column[1:] == column[:-1]
        return is_it

    def columns(self, first: int, end: int) -> tuple[tuple[Any, ...], ...]:
        """Return compared entries [first, end) as columns; fewer at the end of the recording."""
        actions = tuple(_NAMES[self.action[first:end]].tolist())
        numbers = (self.addr, self.size, self.stream)
        return actions, *(tuple(column[first:end].tolist()) for column in numbers)

    def row(self, at: int) -> Row | None:
        """Return the compared entry at index `at`, or None after the last."""
        return next(zip(*self.columns(at, at + 1), strict=True), None)


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """Recorded entries of each plain step of a plan; other steps have `is_recorded` False.

    compared: entries of the recording.
    count: number of entries of each step.
    end: index in `compared` after the last entry of each step.
    is_recorded: True if the recording has the entries that follow from the step.
    address: recorded address of each step's block.
    n_answered: number of `alloc` entries before each compared entry.
    answers: addresses of all `alloc` entries.
    """

    compared: Compared
    count: _Ints
    end: _Ints
    is_recorded: NDArray[np.bool_]
    address: NDArray[np.uint64]
    n_answered: _Ints
    answers: NDArray[np.uint64]

    @classmethod
    def of(cls, compared: Compared, steps: Steps) -> Expected:
        """Look up the recorded entries of `steps`."""
        count = ENTRIES[steps.kind]
        row = compared.row_of(steps.entry)
        is_recorded = (count > 0) & (row + count <= len(compared))
        if len(compared):
            at = np.clip(row, 0, len(compared) - 1)
            is_recorded &= compared.action[at] == FIRST_ACTIONS[steps.kind]
            is_recorded &= compared.addr[at] == steps.addr
            is_recorded &= compared.size[at] == steps.size
            is_recorded &= compared.stream[at] == steps.stream
            is_recorded &= compared.is_completed_next[at] | ~any_of(steps.kind, (StepKind.FREE,))
        is_alloc = any_of(compared.action, (Action.ALLOC,))
        return cls(
            compared=compared,
            count=count,
            end=row + count,
            is_recorded=is_recorded,
            address=steps.addr,
            n_answered=np.concatenate(([0], np.cumsum(is_alloc))),
            answers=compared.addr[is_alloc],
        )

    def answered(self, row: int, end: int) -> NDArray[np.uint64]:
        """Return the recorded addresses of the `alloc` entries with index [row, end)."""
        return self.answers[self.n_answered[row] : self.n_answered[end]]

    def matched(
        self, first: int, placed: PlacedSteps, row: int, history: Sequence[TraceEntry]
    ) -> int | None:
        """Return the number of entries of a batch of steps if all equal the recording, else None.

        None is possible for equal entries too, if a step is not plain.
        first: number of the first step.
        row: index in `compared` of the first entry.
        history: entries of the steps that ran singly.
        """
        chunk = slice(first, first + len(placed))
        count, singly = self.count[chunk], placed.singly
        if singly:  # the history shows the number of their entries
            count = count.copy()
            count[singly] = np.diff(placed.ends, prepend=0)
        end = row + np.cumsum(count)
        # A plain step agrees if its block has the recorded address, and its entries end at the
        # index of the recorded ones.
        is_same = address_column(placed.places) == self.address[chunk]
        is_same &= end == self.end[chunk]
        is_same &= self.is_recorded[chunk]
        is_same[singly] = True
        if not is_same.all():
            return None
        of_singly = zip(count[singly].tolist(), end[singly].tolist(), strict=True)
        rows = [each for n, after in of_singly for each in range(after - n, after)]
        if not self._equal(rows, history):
            return None
        return int(end[-1]) - row if len(end) else 0

    def _equal(self, rows: list[int], history: Sequence[TraceEntry]) -> bool:
        """Return True if the compared entries at these indices equal `history`."""
        if not rows:
            return True
        if rows[-1] >= len(self.compared):
            return False
        actions, *others, _ = zip(*history, strict=True)
        codes = tuple(ACTION_CODES[name] for name in actions)
        recorded = self.compared
        numbers = [column[rows] for column in (recorded.addr, recorded.size, recorded.stream)]
        columns = [recorded.action[rows], *numbers]
        return [tuple(column.tolist()) for column in columns] == [codes, *others]
