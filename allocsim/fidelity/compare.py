"""Comparison of a replay under the recorded settings with the recording.

All entries must be equal, in the same order; annotations and snapshots are ignored.  The final
segments must be equal, block by block.  The requested size of an inactive block is ignored, because
a recording that starts mid-run does not show it.  After the first different entry, only addresses
of requests are compared further.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import address_column, any_of, int_column
from allocsim.core import Block, ReplayAllocator, TraceEntry
from allocsim.fidelity.expected import Compared, Expected
from allocsim.recording import Action, Trace
from allocsim.simulation import Fidelity, Mismatch, PlacedSteps, Row, Steps, rows_of
from allocsim.state import INACTIVE, SegmentState

_ALLOC = Action.ALLOC.text


class FidelityCheck:
    """Incremental comparison in batches, so that the whole history is never in memory.

    A batch is passed to `history` as entries, or to `steps` as steps with the addresses of their
    blocks.  The second way creates no entries, and saves a third of the time of a replay.

    expected: recorded entries of each step; if None, `steps` takes longer.
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
        """True if an entry differed."""
        return self._mismatch is not None

    def exclude_last_alloc(self, pending: Sequence[TraceEntry]) -> None:
        """Exclude the last `alloc`, which the recording lacks, from the comparison of addresses.

        pending: entries that the next call of `history` passes.
        """
        allocs = sum(entry.action == _ALLOC for entry in pending)
        self._excluded.append(sum(map(len, self._placed)) + allocs - 1)

    def history(self, entries: Sequence[TraceEntry]) -> None:
        """Compare the next entries of the replay."""
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
        """Compare the next steps of the replay with the recording.

        first: number of the first step in the plan.
        history: entries of the steps that ran one at a time and not in a batch.
        """
        expected = self._expected
        if expected is not None and self._mismatch is None and not placed.answered_ooms:
            row = self._matched
            matched = expected.matched(first, placed, row, history)
            if matched is not None:
                self._matched += matched
                self._placed.append(expected.answered(row, row + matched))
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
        compared = self._compared
        row = self._matched
        recorded = slice(row, row + len(is_alloc))
        n = len(compared.action[recorded])
        is_same = (
            (rows.action[:n] == compared.action[recorded])
            & (rows.addr[:n] == compared.addr[recorded])
            & (rows.size[:n] == compared.size[recorded])
            & (rows.stream[:n] == compared.stream[recorded])
        )
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
        """Return the number of recorded requests that got their recorded address."""
        trace = self._trace
        leaves_entry = trace.size > 0  # a request of 0 bytes leaves none
        recorded = trace.addr[leaves_entry & any_of(trace.action, (Action.ALLOC,))]
        nothing = np.zeros(0, dtype=np.uint64)
        # Allocs that the recording lacks would shift all later ones.
        placed = np.delete(np.concatenate([nothing, *self._placed]), self._excluded)
        n = min(len(recorded), len(placed))
        return int(np.count_nonzero(recorded[:n] == placed[:n]))

    def result(self, allocator: ReplayAllocator) -> Fidelity:
        """Compare the final segments of `allocator`; return the result of the whole comparison."""
        if self._mismatch is None and self._matched < len(self._compared):
            self._note_mismatch(self._compared.row(self._matched), None)
        if ends_alike(self._trace, allocator):
            return self._fidelity(len(self._trace.segments))
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
        return self._fidelity(matched)

    def _fidelity(self, segments_matched: int) -> Fidelity:
        return Fidelity(
            allocations=self._trace.count(Action.ALLOC),
            addresses_matched=self._addresses_matched(),
            segments=len(self._trace.segments),
            segments_matched=segments_matched,
            entries=len(self._compared),
            entries_matched=self._matched,
            first_mismatch=self._mismatch,
        )


class Uncompared(FidelityCheck):
    """Check of a recording that contains only requests, which compares nothing."""

    def history(self, entries: Sequence[TraceEntry]) -> None:
        del entries

    def steps(
        self, steps: Steps, first: int, placed: PlacedSteps, history: Sequence[TraceEntry]
    ) -> None:
        del steps, first, placed, history

    def result(self, allocator: ReplayAllocator) -> Fidelity:  # noqa: ARG002
        """Return a result with zero compared entries."""
        return Fidelity(0, 0, 0, 0, 0, 0, None)


def _row_text(row: Row | None) -> str:
    if row is None:
        return "no further entry"
    action, address, size, stream = row
    place = f"with {address} bytes free" if action == "oom" else f"at {address:#x}"
    return f"{action} of {size} bytes {place} on stream {stream}"


_Segment = tuple[tuple[object, ...], ...]


def _comparable(segment: SegmentState) -> _Segment:
    """Return the values to compare: of the segment, then of each block."""
    head = (
        segment.address,
        segment.total_size,
        segment.stream,
        "small" if segment.is_small else "large",
        segment.pool_id,
        segment.is_expandable,
    )
    blocks = [
        (block.address, block.size, INACTIVE)
        if block.state == INACTIVE
        else (block.address, block.size, block.state, block.requested_size)
        for block in segment.blocks
    ]
    return (head, *blocks)


def _difference(replayed: _Segment | None, other: _Segment | None) -> str:
    """Return a text with the first value of `replayed` that differs from `other`."""
    if replayed is None:
        return "no such segment"
    address, size = replayed[0][:2]
    for i, row in enumerate(replayed):
        if other is None or i >= len(other) or other[i] != row:
            part = "the segment" if i == 0 else f"block {i - 1}"
            return f"{part} of {address:#x} ({size} bytes) as {row}"
    return f"{len(replayed) - 1} blocks in the segment at {address:#x}"


def ends_alike(trace: Trace, allocator: ReplayAllocator) -> bool:
    """Return True if `allocator` has exactly the final segments of `trace`.

    It compares all blocks at once, as columns.  If it returns False, segments or requested sizes of
    inactive blocks may differ, and a comparison block by block must decide.
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
