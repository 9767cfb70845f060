"""Comparison of a replay under the recorded settings with the recording.

All history entries must be equal and in the same order, and the final segments must have equal
blocks.  After the first entry that differs, only the addresses of requests are compared.  Source:
semantics 6.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import address_column, any_of, int_column
from allocsim.core import Block, ReplayAllocator, TraceEntry
from allocsim.recording import ACTION_CODES, Action, Trace
from allocsim.simulation import (
    ENTRIES,
    FIRST_ACTIONS,
    Fidelity,
    Mismatch,
    PlacedSteps,
    Row,
    StepKind,
    Steps,
    rows_of,
)
from allocsim.state import INACTIVE, SegmentState

_IGNORED = (Action.SNAPSHOT, Action.ANNOTATE)
_NAMES = np.array([action.text for action in Action], dtype=object)
_ALLOC = Action.ALLOC.text
_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """Recorded history entries that are compared with a replay, as columns.

    entry: index of each entry in the recording, where entries that are not compared count too.
    """

    entry: NDArray[np.intp]
    action: NDArray[np.uint8]
    addr: NDArray[np.uint64]
    size: _Ints
    stream: NDArray[np.uint64]

    @classmethod
    def of(cls, trace: Trace) -> Compared:
        entry = np.flatnonzero(~any_of(trace.action, _IGNORED))
        if len(entry) == len(trace):
            return cls(entry, trace.action, trace.addr, trace.size, trace.stream)
        numbers = trace.addr[entry], trace.size[entry], trace.stream[entry]
        return cls(entry, trace.action[entry], *numbers)

    def __len__(self) -> int:
        return len(self.entry)

    def row_of(self, entry: _Ints) -> NDArray[np.intp]:
        if len(self) and self.entry[-1] == len(self) - 1:  # every entry is compared
            return entry
        # An entry that is not compared has the index of the next compared one.
        return np.searchsorted(self.entry, entry)

    @property
    def is_completed_next(self) -> NDArray[np.bool_]:
        is_it = np.zeros(len(self), dtype=bool)
        is_it[:-1] = any_of(self.action[1:], (Action.FREE_COMPLETED,))
        for column in (self.addr, self.size, self.stream):
            is_it[:-1] &= column[1:] == column[:-1]
        return is_it

    def columns(self, first: int, end: int) -> tuple[tuple[Any, ...], ...]:
        """Return actions, addresses, sizes and streams of the compared entries [first, end)."""
        actions = tuple(_NAMES[self.action[first:end]].tolist())
        numbers = (self.addr, self.size, self.stream)
        return actions, *(tuple(column[first:end].tolist()) for column in numbers)

    def row(self, at: int) -> Row | None:
        return next(zip(*self.columns(at, at + 1), strict=True), None)


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """Recorded entries of each step of a plan, the list of allocator calls that a replay makes.

    A step is plain if its entries can be derived from the step and the address of its block.  If a
    replay gives the block of a plain step its recorded address, the entries of the step equal the
    recorded entries, and the replay need not create them.

    compared: recorded entries to compare with the replay, without snapshots and annotations.
    count: number of entries of each step, in the order of the plan.
    end: index in `compared` after the last entry of each step.
    is_recorded: True for a plain step whose entries are in the recording.
    address: recorded address of each step's block.
    n_allocs: number of `alloc` entries before each index of `compared`.
    allocs: addresses of all `alloc` entries.
    """

    compared: Compared
    count: _Ints
    end: _Ints
    is_recorded: NDArray[np.bool_]
    address: NDArray[np.uint64]
    n_allocs: _Ints
    allocs: NDArray[np.uint64]

    @classmethod
    def of(cls, compared: Compared, steps: Steps) -> Expected:
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
            n_allocs=np.concatenate(([0], np.cumsum(is_alloc))),
            allocs=compared.addr[is_alloc],
        )

    def allocs_in(self, row: int, end: int) -> NDArray[np.uint64]:
        return self.allocs[self.n_allocs[row] : self.n_allocs[end]]

    def matched(
        self, first: int, placed: PlacedSteps, row: int, history: Sequence[TraceEntry]
    ) -> int | None:
        """Compare the replayed addresses of the blocks of a batch of steps with the recorded ones.

        Return the number of history entries of these steps if all addresses agree; else None.

        first: index in the plan of the batch's first step.
        placed: addresses that the replay gave to the blocks of the batch.
        row: index in `compared` of the first step's first entry.
        history: entries of the batch's steps that are not plain, which the replay created.
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
        if not rows or rows[-1] >= len(self.compared):
            return not rows
        actions, *others, _ = zip(*history, strict=True)
        codes = tuple(ACTION_CODES[name] for name in actions)
        recorded = self.compared
        numbers = [column[rows] for column in (recorded.addr, recorded.size, recorded.stream)]
        columns = [recorded.action[rows], *numbers]
        return [tuple(column.tolist()) for column in columns] == [codes, *others]


class FidelityCheck:
    """Comparison of a replay with its recording, in batches, so that few entries are in memory.

    The method `history` compares a batch of history entries.  The method `steps` compares a batch
    of plan steps, given the addresses of their blocks, and is faster.

    expected: recorded entries of each plan step; None to create and compare every entry (slower).
    """

    def __init__(self, trace: Trace, expected: Expected | None = None) -> None:
        self._trace = trace
        self._compared = Compared.of(trace) if expected is None else expected.compared
        self._expected = expected
        self._matched = 0
        self._placed: list[NDArray[np.uint64]] = []
        self._excluded: list[int] = []
        self._mismatch: Mismatch | None = None

    @property
    def has_diverged(self) -> bool:
        return self._mismatch is not None

    def exclude_last_alloc(self, pending: Sequence[TraceEntry]) -> None:
        """Exclude the last `alloc` from the comparison, since in the recording its request failed.

        pending: entries that will be passed to the next call of `history`.
        """
        allocs = sum(entry.action == _ALLOC for entry in pending)
        self._excluded.append(sum(map(len, self._placed)) + allocs - 1)

    def history(self, entries: Sequence[TraceEntry]) -> None:
        if not entries:
            return
        actions, addresses, *others, _ = zip(*entries, strict=True)
        allocs = zip(actions, addresses, strict=True)
        placed = [address for action, address in allocs if action == _ALLOC]
        self._placed.append(np.array(placed, dtype=np.uint64))
        if self._mismatch is not None:
            return
        columns = actions, addresses, *others
        expected = self._compared.columns(self._matched, self._matched + len(entries))
        if columns == expected:
            self._matched += len(entries)
            return
        for got, wanted in zip_longest(zip(*columns, strict=True), zip(*expected, strict=True)):
            if got != wanted:
                self._note_mismatch(wanted, got)
                return
            self._matched += 1

    def steps(
        self, steps: Steps, first: int, placed: PlacedSteps, history: Sequence[TraceEntry]
    ) -> None:
        """Compare the next batch of plan steps in the replay with the recording.

        first: index in the plan of the batch's first step.
        placed: addresses that the replay gave to the blocks of the batch.
        history: entries of the batch's steps that are not plain (`Expected`).
        """
        expected = self._expected
        if expected is not None and self._mismatch is None and not placed.answered_ooms:
            row = self._matched
            matched = expected.matched(first, placed, row, history)
            if matched is not None:
                self._matched += matched
                self._placed.append(expected.allocs_in(row, row + matched))
                return
        # Some entry differs or is not in `expected`: create all entries and compare them.
        rows = rows_of(steps, placed, history)
        is_alloc = rows.action == Action.ALLOC
        if rows.answered_ooms:
            before = sum(map(len, self._placed))
            self._excluded += (before + np.cumsum(is_alloc)[list(rows.answered_ooms)] - 1).tolist()
        self._placed.append(rows.addr[is_alloc])
        if self._mismatch is not None or not len(is_alloc):
            return
        compared, row = self._compared, self._matched
        recorded = slice(row, row + len(is_alloc))
        n = len(compared.action[recorded])
        is_same = np.ones(n, dtype=bool)
        for name in ("action", "addr", "size", "stream"):
            is_same &= getattr(rows, name)[:n] == getattr(compared, name)[recorded]
        at = n if is_same.all() else int(np.argmin(is_same))
        self._matched += at
        if at < len(is_alloc):
            self._note_mismatch(compared.row(row + at), rows.row(at))

    def _note_mismatch(self, expected: Row | None, got: Row | None) -> None:
        at = self._matched
        entries = self._compared.entry
        entry = int(entries[at]) if at < len(entries) else len(self._trace)
        self._mismatch = Mismatch(entry, _row_text(expected), _row_text(got))

    def _addresses_matched(self) -> int:
        trace = self._trace
        leaves_entry = trace.size > 0  # a request of 0 bytes leaves none
        recorded = trace.addr[leaves_entry & any_of(trace.action, (Action.ALLOC,))]
        nothing = np.zeros(0, dtype=np.uint64)
        # Allocs that the recording lacks would shift all later ones.
        placed = np.delete(np.concatenate([nothing, *self._placed]), self._excluded)
        n = min(len(recorded), len(placed))
        return int(np.count_nonzero(recorded[:n] == placed[:n]))

    def result(self, allocator: ReplayAllocator) -> Fidelity:
        """Compare the final segments of `allocator`, and return the result for the whole replay."""
        if self._mismatch is None and self._matched < len(self._compared):
            self._note_mismatch(self._compared.row(self._matched), None)
        return Fidelity(
            allocations=self._trace.count(Action.ALLOC),
            addresses_matched=self._addresses_matched(),
            segments=len(self._trace.segments),
            segments_matched=self._segments_matched(allocator),
            entries=len(self._compared),
            entries_matched=self._matched,
            first_mismatch=self._mismatch,
        )

    def _segments_matched(self, allocator: ReplayAllocator) -> int:
        if ends_alike(self._trace, allocator):
            return len(self._trace.segments)
        replayed = {segment.address: segment for segment in allocator.segments()}
        matched = 0
        for segment in self._trace.segments:
            other = replayed.pop(segment.address, None)
            expected, got = _comparable(segment), None if other is None else _comparable(other)
            matched += got == expected
            if got != expected and self._mismatch is None:
                self._mismatch = Mismatch(
                    None, _difference(expected, got), _difference(got, expected)
                )
        if replayed and self._mismatch is None:
            self._mismatch = Mismatch(None, "no segment", f"one at {min(replayed):#x}")
        return matched


class Uncompared(FidelityCheck):
    """Check of a recording that contains only requests, without addresses: it compares nothing."""

    def history(self, entries: Sequence[TraceEntry]) -> None:
        del entries

    def steps(
        self, steps: Steps, first: int, placed: PlacedSteps, history: Sequence[TraceEntry]
    ) -> None:
        del steps, first, placed, history

    def result(self, allocator: ReplayAllocator) -> Fidelity:  # noqa: ARG002
        return Fidelity(0, 0, 0, 0, 0, 0, None)


def _row_text(row: Row | None) -> str:
    if row is None:
        return "no further entry"
    action, address, size, stream = row
    place = f"with {address} bytes free" if action == "oom" else f"at {address:#x}"
    return f"{action} of {size} bytes {place} on stream {stream}"


_Segment = tuple[tuple[object, ...], ...]


def _comparable(segment: SegmentState) -> _Segment:
    where = segment.address, segment.total_size, segment.stream
    pool = "small" if segment.is_small else "large", segment.pool_id
    blocks = [
        (block.address, block.size, INACTIVE)
        if block.state == INACTIVE
        else (block.address, block.size, block.state, block.requested_size)
        for block in segment.blocks
    ]
    return ((*where, *pool, segment.is_expandable), *blocks)


def _difference(replayed: _Segment | None, other: _Segment | None) -> str:
    if replayed is None:
        return "no such segment"
    address, size = replayed[0][:2]
    for i, row in enumerate(replayed):
        if other is None or i >= len(other) or other[i] != row:
            part = "the segment" if i == 0 else f"block {i - 1}"
            return f"{part} of {address:#x} ({size} bytes) as {row}"
    return f"{len(replayed) - 1} blocks in the segment at {address:#x}"


def ends_alike(trace: Trace, allocator: ReplayAllocator) -> bool:
    """Return True if `allocator` has the recorded final segments, with the same blocks.

    This is faster than a comparison block by block, but does not show the difference.  Requested
    sizes of inactive blocks are not compared.
    """
    tiles, (columns, n_active) = trace.tiles, allocator.block_columns()
    *numbers, heads = columns
    if tiles is None or not tiles.are_sound or len(numbers[0]) != len(tiles.blocks):
        return False
    if sorted(map(_of_head, heads)) != list(map(_of_segment, trace.segments)):
        return False
    # Active blocks come first in the columns, so a position below `n_active` is an active block.
    address = address_column(numbers[0])
    order = np.argsort(address)
    size, requested, is_allocated = (int_column(column) for column in numbers[1:])
    is_active = order < n_active
    number = order[is_active]
    return (
        np.array_equal(address[order], tiles.address)
        and np.array_equal(size[order], tiles.size)
        and np.array_equal(is_active, tiles.is_active)
        and np.array_equal(is_allocated[number] == 0, tiles.is_pending[is_active])
        and np.array_equal(requested[number], tiles.requested_size[is_active])
    )


_of_segment = attrgetter("address", "stream", "is_small", "pool_id", "is_expandable")


def _of_head(head: Block) -> tuple[int, int, bool, tuple[int, int], bool]:
    pool = head.pool
    return head.ptr, head.stream, pool.is_small, pool.id, head.expandable is not None
