"""Simulate a program that is given as a list of allocator calls, and return its recording.

A call is a request, a free or empty_cache.  Programs repeat sequences of calls, such as a decoding
step.  If the free blocks of the small pool are the same before two repetitions, the small requests
of the second get the addresses of the first and are not simulated.  The result is exact, because
the small and the large pool share no blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import address_column, int_column, keep_pages
from allocsim.collector import collector_paused
from allocsim.core import (
    BRIEF,
    FREE,
    MALLOC,
    Column,
    GroupMoves,
    Journal,
    ReplayAllocator,
    StepRow,
    small_places,
    step_rows,
)
from allocsim.errors import OutOfMemoryError
from allocsim.recording import (
    ACTION_CODES,
    Action,
    BlockLives,
    FrameTable,
    Mark,
    MarkKind,
    Provenance,
    Recording,
)
from allocsim.simulation import (
    Deferred,
    PeakState,
    PeakWatch,
    Period,
    fold,
    fold_allocated,
    fold_columns,
)
from allocsim.workload.recorder import KeptHistory
from allocsim.workload.stretches import EMPTY_CACHE, KnownProgram, Repeats, period_of

_Ints = NDArray[np.int64]

_AT_ONCE = 1 << 12
"""Number of calls that are passed to allocsim.core at a time."""

_FOLDED = 1 << 15
"""Number of calls whose statistics are added up at a time; their arrays fit in the CPU cache."""

_ENTRIES = np.zeros(EMPTY_CACHE + 1, dtype=np.int64)
"""Number of history entries that a call adds if it calls no driver; the index is its kind."""
_ENTRIES[[MALLOC, FREE]] = 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Result of a simulated program.

    allocator: allocator in its state at the end.
    moved: bytes that each request or free adds to allocated memory, negative for a free.
    peak: state of the allocator at the peak of reserved memory.
    peak_device_bytes: highest memory in use on the device, including the CUDA context.
    oom_text: text of the out-of-memory error that ended the program; "" without an error.
    n_before: for each call of the program, the number of history entries before it; then the number
        of all entries.
    lives: history entries at which each block is allocated and freed.
    period: longest part of the program that consists of equal sequences of calls; None if none.
    """

    allocator: ReplayAllocator
    moved: _Ints
    peak: PeakState
    peak_device_bytes: int
    oom_text: str
    n_before: _Ints
    lives: Deferred[BlockLives]
    period: Deferred[Period | None]
    _kept: KeptHistory

    def marks(self, resets: int, empties: Sequence[int]) -> tuple[Mark, ...]:
        """Return the marks (calls without a history entry): empty_cache, and a reset of peaks.

        resets: index of the program's call before which peaks are reset; -1 if they are not.
        empties: indices of the program's calls of empty_cache.
        """
        rows = [(resets, 0, MarkKind.PEAK_RESET)] * (resets >= 0)
        rows += [(row, 1, MarkKind.EMPTY_CACHE) for row in empties]
        n_before = self.n_before
        # Calls after an out-of-memory error have no entries.
        reached = int(np.searchsorted(n_before, n_before[-1])) if self.oom_text else len(n_before)
        return tuple(
            Mark(int(n_before[row]), kind) for row, _, kind in sorted(rows) if row < reached
        )

    def recording(
        self, path: str, table: FrameTable, provenance: Provenance, marks: Sequence[Mark]
    ) -> Recording:
        """Return the recording of the program.

        path: name of the recording.
        table: stacks of the program's requests.
        provenance: facts about the program and its GPU.
        marks: calls without a history entry (`marks`).
        """
        made = self._kept.recording(path, self.allocator, table, provenance)
        (trace,) = made.devices
        return replace(made, devices=(replace(trace, marks=tuple(marks)),))


def play_known(program: KnownProgram, allocator: ReplayAllocator) -> Played:
    """Simulate `program` on `allocator`, which must keep a history and have no segments."""
    keep_pages()
    player = _Player(program, allocator)
    try:
        with collector_paused():  # Python's garbage collector took a third of the time
            player.play()
    except OutOfMemoryError as error:
        player.oom_text = str(error)
    return player.result()


def _lives_of(program: KnownProgram, n_before: _Ints, *, is_whole: bool) -> BlockLives:
    # The last entry of a request is its allocation; the first entry of a free is free_requested.
    # `is_whole` False: the last request with entries failed, and later calls have no entries.
    has_entries, n_entries = n_before[1:] > n_before[:-1], int(n_before[-1])
    asks = np.flatnonzero((program.kind == MALLOC) & has_entries)
    frees = (program.kind == FREE) & has_entries
    born = n_before[1:][asks if is_whole else asks[:-1]] - 1
    freed = np.full(len(born), n_entries, dtype=np.int64)
    freed[program.block[frees]] = n_before[:-1][frees]
    return BlockLives(born, freed, np.minimum(freed + 1, n_entries))


def peak_of_known(
    program: KnownProgram, allocator: ReplayAllocator, since: int = 0
) -> tuple[int, bool]:
    """Simulate `program` and return its peak of reserved bytes, and True if it ran out of memory.

    allocator: empty allocator that keeps no history.
    since: index of the first call that counts for the peak; if the program fails before it, all
        calls count.
    """
    left = _Steps(program).rows(np.arange(len(program.kind)))
    moved, peak, most = Column(), 0, 0
    allocator.count_with(fold_allocated)
    try:
        with collector_paused():
            while (step := allocator.play(left, {}, moved)) is not None:
                if len(moved) > since:
                    peak = max(peak, allocator.reserved_bytes)
                _take(allocator, step)
                moved.append(0)
                most = max(most, allocator.reserved_bytes)
    except OutOfMemoryError:
        return peak if len(moved) > since else most, True
    return max(peak, allocator.reserved_bytes), False


def _take(allocator: ReplayAllocator, step: StepRow) -> None:
    kind, name, size, _ = step
    if kind == EMPTY_CACHE:
        allocator.empty_cache()
    elif kind in (BRIEF, MALLOC):
        address = allocator.malloc(size)
        assert address is not None
        allocator.give_name(address, name)
    elif (taken := allocator.take_name(name)) is not None:
        allocator.free(taken)


class _Steps:
    """Calls of a program as columns; a free has its request's size, for a check in the core."""

    def __init__(self, program: KnownProgram) -> None:
        self.requested = program.size[program.kind == MALLOC]
        """Requested bytes of each block."""
        is_freed = (program.kind[1:] == FREE) & (program.block[1:] == program.block[:-1])
        is_brief = (program.kind == MALLOC) & np.append(is_freed, False)
        self._columns = (
            np.where(is_brief, BRIEF, program.kind).astype(np.uint8),
            program.block.astype(np.uint64),
            np.where(program.kind == EMPTY_CACHE, 0, self.requested[program.block]),
            np.zeros(len(program.kind), dtype=np.uint64),
        )

    def rows(self, rows: _Ints) -> Iterator[StepRow]:
        kind, *others = (column[rows] for column in self._columns)
        if kind[-1] == BRIEF:  # its free is outside these rows
            kind[-1] = MALLOC
        return step_rows((kind, *others))


class _Player:
    def __init__(self, program: KnownProgram, allocator: ReplayAllocator) -> None:
        self._program, self._allocator = program, allocator
        self._watch = PeakWatch()
        self.oom_text = ""
        self._steps = _Steps(program)
        self._n_entries = np.zeros(len(program.kind), dtype=np.int64)
        """Number of history entries of each call; 0 for a call that is not simulated yet."""
        self._singly: list[tuple[NDArray[Any], ...]] = []
        """History entries of calls that the fast loop of allocsim.core cannot run, as columns: call
        index, action, address and size."""
        self._records: list[tuple[_Ints, ...]] = []
        """Changes of statistics that `_stat_moves` lacks, as three arrays: bytes, requested bytes,
        and changes of inactive split blocks, packed as in column 3 of core/journal.py."""
        self._stat_moves = np.zeros((3, len(program.kind)), dtype=np.int64)
        """Changes of statistics: three rows as in `_records`, and one column per call."""
        self._repeats = Repeats(program, allocator)
        self._address = np.zeros(len(self._steps.requested), dtype=np.uint64)
        """Address of each block."""
        self._has_copies = False
        allocator.count_with(self._count)

    def _count(self, journal: Journal) -> tuple[GroupMoves, GroupMoves, GroupMoves]:
        self._records.append(tuple(map(int_column, journal[:3])))
        return fold(journal)

    def play(self) -> None:
        self._watch.began(self._allocator)
        starts = [*self._program.stretches]
        if not starts:
            return self._play_all(0, len(self._program.kind))
        self._play_all(0, starts[0])
        number, last = 0, len(starts) - 1
        while number < last:
            number += self._play_stretch(number)
        return self._play_all(starts[-1], len(self._program.kind))

    def _play_stretch(self, number: int) -> int:
        # Returns the number of stretches that are done; two may be copied together.
        starts, repeats = self._program.stretches, self._repeats
        repeats.places[number] = small_places(self._allocator)
        span = repeats.span(number)
        if not span:
            self._play_all(starts[number], starts[number + 1])
            return 1
        rows = slice(starts[number], starts[number + span])
        before = slice(starts[number - span], starts[number])
        if not self._pass_over(rows, before):
            self._play_all(starts[number], starts[number + 1])
            return 1
        repeats.come_back(number, span)
        return span

    def _play_all(self, start: int, stop: int) -> None:
        for first in range(start, stop, _AT_ONCE):
            rows = np.arange(first, min(first + _AT_ONCE, stop))
            self._play(rows)

    def _pass_over(self, rows: slice, before: slice) -> bool:
        # Gives small requests in `rows` the addresses of those in `before`, and simulates the other
        # calls.  Returns False if the addresses would differ, so that all calls must be simulated.
        program, is_small = self._program, self._repeats.is_small
        small = rows.start + np.flatnonzero(is_small[rows])
        model = before.start + np.flatnonzero(is_small[before])
        of_small, address = program.block[small], self._address
        asks = program.kind[small] == MALLOC
        address[of_small[asks]] = address[program.block[model[asks]]]
        if not np.array_equal(address[of_small], address[program.block[model]]):
            return False  # it frees blocks from before the stretch, at other addresses
        renamed = self._repeats.replaced(small, address, self._steps.requested)
        if renamed is None:
            return False
        large = rows.start + np.flatnonzero(~is_small[rows])
        taken = self._play(large, stops=True)
        if taken < len(large):
            # A large call that needs a driver call, for example: simulate all calls in order.
            row = int(large[taken])
            self._play(small[small < row])
            self._play_all(row, rows.stop)
            return True
        self._stat_moves[:, small] = self._stat_moves[:, model]
        self._stat_moves[1, small] = self._steps.requested[of_small]
        self._n_entries[small] = _ENTRIES[program.kind[small]]
        self._has_copies = True
        if renamed:
            self._allocator.rename(lambda name: renamed.get(name, name))
        return True

    def _play(self, rows: _Ints, *, stops: bool = False) -> int:
        # `stops`: return before the first call that the fast loop of allocsim.core cannot run.
        if not len(rows):
            return 0
        allocator, left, history = self._allocator, self._steps.rows(rows), self._allocator.history
        moved, places = Column(), Column()
        singly, ends = list[int](), list[int]()
        try:
            while (step := allocator.play(left, {}, moved, places)) is not None and not stops:
                singly.append(len(places))
                places.append(0)
                self._take_one(step, int(rows[singly[-1]]))
                ends.append(len(history))
        finally:
            if len(ends) < len(singly):
                ends.append(len(history))  # the last call raised an error
            self._keep(rows[: len(places)], places, singly, ends)
        return len(places)

    def _take_one(self, step: StepRow, row: int) -> None:
        allocator = self._allocator
        reserved = allocator.reserved_bytes
        _take(allocator, step)
        if step[0] in (BRIEF, MALLOC) and allocator.reserved_bytes != reserved:
            self._watch.grew(allocator, row)

    def _keep(
        self, rows: _Ints, places: Sequence[int], singly: Sequence[int], ends: Sequence[int]
    ) -> None:
        self._allocator.statistics()
        program = self._program
        kind, block = program.kind[rows], program.block[rows]
        asks = kind == MALLOC
        self._address[block[asks]] = address_column(places)[asks]
        self._n_entries[rows] = _ENTRIES[kind]
        if singly:
            counts = np.diff(ends, prepend=0)
            self._n_entries[rows[singly]] = counts
            row = np.repeat(rows[singly], counts)
            actions, addresses, sizes, _, _ = zip(*self._allocator.take_history(), strict=True)
            action = np.array([ACTION_CODES[each] for each in actions], dtype=np.uint8)
            address = np.array(addresses, dtype=np.uint64)
            self._singly.append((row, action, address, np.array(sizes, dtype=np.int64)))
            is_alloc = action == Action.ALLOC
            self._address[program.block[row[is_alloc]]] = address[is_alloc]
        if self._records:
            records = np.concatenate(self._records, axis=1)
            moves = rows[kind != EMPTY_CACHE][: records.shape[1]]
            self._stat_moves[:, moves] = records
            self._records.clear()

    def _journals(self) -> Iterator[Journal]:
        none = np.zeros(0, dtype=np.int64)
        for first in range(0, self._stat_moves.shape[1], _FOLDED):
            columns = self._stat_moves[:, first : first + _FOLDED]
            moves = columns[:, columns[0] != 0]
            if moves.size:
                yield (*moves, none, none)

    def result(self) -> Played:
        program, counts = self._program, self._n_entries
        if self._has_copies:
            self._allocator.count_with(fold_columns)
            self._allocator.set_block_statistics(self._journals())
            self._allocator.count_with(fold)
        n_before = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=n_before[1:])
        actions = np.where(program.kind == MALLOC, Action.ALLOC, Action.FREE_REQUESTED)
        action, address, size, stack = (
            np.repeat(column, counts)
            for column in (
                actions.astype(np.uint8),
                self._address[program.block],
                self._steps.requested[program.block],
                program.stack,
            )
        )
        is_freed = (program.kind == FREE) & (counts > 0)
        action[n_before[1:][is_freed] - 1] = Action.FREE_COMPLETED
        if self._singly:
            singly, *known = map(np.concatenate, zip(*self._singly, strict=True))
            # In a stretch, calls of the two pools are not simulated in order.
            order = np.argsort(singly, kind="stable")
            is_single = np.zeros(len(counts), dtype=bool)
            is_single[singly] = True
            at = np.flatnonzero(np.repeat(is_single, counts))
            for column, values in zip((action, address, size), known, strict=True):
                column[at] = values[order]
        kept = KeptHistory()
        kept.put_in(action, address, size, stack)
        peak = self._watch.state
        if peak.entry >= 0:
            peak = replace(peak, entry=int(n_before[peak.entry + 1]) - 1)
        return Played(
            self._allocator,
            self._stat_moves[0, program.kind != EMPTY_CACHE],
            peak,
            self._watch.device_bytes,
            self.oom_text,
            n_before,
            Deferred(partial(_lives_of, program, n_before, is_whole=not self.oom_text)),
            Deferred(partial(period_of, program)),
            kept,
        )
