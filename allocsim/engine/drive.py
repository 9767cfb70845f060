"""One trace through one allocator: the loop, and what it writes down.

Rule: recorded addresses are handles, never addresses of the simulation; a free of something
that this simulation never handed out (its request failed) does nothing.  An out-of-memory error
that the recording does not have ends the replay, as it would have ended the program.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from allocsim.collector import collector_paused
from allocsim.core import (
    IS_COMPILED,
    MAX_REQUEST,
    Block,
    CachingAllocator,
    Folder,
    RequestedFree,
    fingerprint,
)
from allocsim.engine.addresses import DatedEvent
from allocsim.engine.fidelity import FidelityCheck
from allocsim.engine.fold import fold
from allocsim.engine.observers import GiveUpError, Observer, Progress, TimelineBuilder
from allocsim.engine.placed import PlacedSteps
from allocsim.engine.plan import Plan, StepKind
from allocsim.engine.repeats import CYCLE, Period
from allocsim.engine.result import SimulatedOom
from allocsim.engine.start import Start, lay_out
from allocsim.errors import InvariantError, OutOfMemoryError
from allocsim.state import PoolId, SegmentState

__all__ = ["Drive"]

PAUSE_EVERY = 8192 if IS_COMPILED else 2048
"""Steps between looks at the history, the progress and the clock of `check_every`.

Rows of as many are Python's numbers at a time: more of them do not stay in a processor's cache,
and of fewer the compiled loop takes less time than what is done between two pieces.
"""

# Plain integers: to compare with a member of an enumeration takes as long as a dictionary's look.
_DICTATE, _REQUESTS = int(StepKind.DICTATE), (int(StepKind.ALLOC), int(StepKind.BRIEF))


@dataclass(slots=True)
class Drive:
    """A replay under way.

    dictates: driver bases come from the recording.  check_every: entries between walks of
    every invariant, 0 for none.  folder: counts the statistics.  given_up_at: where an observer
    had seen enough.  lays_out: segments of which what is in use is requested before the first step,
    where the allocator holds none.  keeps_rows: whether `fidelity` is told where plain steps were
    placed, in place of their entries, which then nobody sees.  skipped: entries of periods that
    were passed over; _passed_over: their steps, so far.  refused_below: `Device.refused_below` at
    the first out-of-memory error.
    """

    allocator: CachingAllocator
    plan: Plan
    n_entries: int
    dictates: bool
    check_every: int = 0
    fidelity: FidelityCheck | None = None
    progress: Progress | None = None
    observers: tuple[Observer, ...] = ()
    folder: Folder = fold
    lays_out: Sequence[SegmentState] = ()
    keeps_rows: bool = False
    address_events: Sequence[DatedEvent] = ()
    ooms: list[SimulatedOom] = field(default_factory=list)
    stopped_at: int | None = None
    given_up_at: int | None = None
    skipped: int = 0
    refused_below: int | None = None
    timeline: TimelineBuilder = field(init=False)
    _waiting: dict[int, RequestedFree] = field(default_factory=dict)
    _scope: PoolId | None = None
    _placed: PlacedSteps | None = None
    _passed_over: int = 0
    _n_happened: int = 0

    def __post_init__(self) -> None:
        self.allocator.count_with(self.folder)
        if self.keeps_rows:
            self._placed = PlacedSteps()
        if self.lays_out:
            self._waiting = lay_out(self.allocator, self.lays_out)
            held = sum(block.size for block in self.allocator.named_blocks.values())
        else:
            held = self.allocator.name_by_address()
            for free in self.allocator.requested_frees:
                assert free.block is not None
                self._waiting[free.block.ptr] = free
        self.timeline = TimelineBuilder(held, self.allocator.reserved_bytes)

    @property
    def start(self) -> Start:
        """How it began."""
        return Start.ANEW if self.lays_out else Start.KEPT

    def run(self, period: Period | None = None) -> None:
        """Drive every step, or up to an out-of-memory error that is ours alone.

        period: a stretch to pass over once nothing changes in it any more; then the timeline
        lacks it.

        The cycle collector rests meanwhile: a merged block leaves no cycle behind, and walking
        the columns of a long plan again and again took a tenth of the time.
        """
        try:
            with collector_paused():
                self._run_all(period)
        except GiveUpError:
            self.given_up_at = self._entry()

    def _run_all(self, period: Period | None) -> None:
        for observer in self.observers:
            observer.began(self.allocator)
        if period is None:
            self._run_steps(0, len(self.plan.steps))
        else:
            self._run_steps(0, period.first)
            after = self._run_period(period)
            self._run_steps(after, len(self.plan.steps))

    def _run_steps(self, first: int, end: int) -> None:
        pause = min(PAUSE_EVERY, self.check_every or PAUSE_EVERY)
        for start in range(first, end, pause):
            if self.stopped_at is not None:
                return
            stop = min(start + pause, end)
            self._run_some(start, stop)
            self._pause(int(self.plan.steps.entry[stop - 1]))

    def _run_period(self, period: Period) -> int:
        """Drive a stretch until it comes back to where it was; the step to go on with."""
        stride = period.stride
        asked: dict[int, int] = {}
        before: deque[Hashable] = deque(maxlen=CYCLE)
        for start in range(period.first, period.end - stride + 1, stride):
            now = fingerprint(self.allocator, self._waiting, asked, start)
            if now in before:
                cycle = (len(before) - before.index(now)) * stride
                further = (period.end - start) // cycle * cycle
                self._rename(asked, further)
                if further:
                    first, last = self.plan.steps.entry[[start, start + further - 1]].tolist()
                    self.skipped = last - first + 1
                return start + further
            before.append(now)
            self._run_steps(start, start + stride)
            if self.stopped_at is not None:
                return start + stride
            steps = self.plan.steps
            allocs = start + np.flatnonzero(steps.kind[start : start + stride] == StepKind.ALLOC)
            asked.update(zip(steps.addr[allocs].tolist(), allocs.tolist(), strict=True))
        return start + stride

    def _rename(self, asked: dict[int, int], further: int) -> None:
        """Let each block of the stretch stand for the one asked for `further` steps later."""
        addr = self.plan.steps.addr

        def later(old: int) -> int:
            return int(addr[asked[old] + further]) if old in asked else old

        self.allocator.rename(later)
        self._waiting = {later(old): free for old, free in self._waiting.items()}

    def _run_some(self, start: int, stop: int) -> None:
        """Steps [start, stop): rows of plain ones in the core's own loop, the others singly."""
        allocator, waiting, moved = self.allocator, self._waiting, self.timeline.moved
        placed = self._placed
        places = None if placed is None else placed.places
        self._passed_over = start - len(self.timeline)
        rows = self.plan.steps.rows(start, stop)
        while self.stopped_at is None:
            step = allocator.play(rows, waiting, moved, places)
            if step is None:
                return
            if placed is None:
                self._take(*step)
            else:
                placed.begin_singly()
                self._take(*step)
                placed.ends.append(len(allocator.history))

    def _take(self, kind: int, addr: int, size: int, stream: int) -> None:
        """One step, whatever it is."""
        allocator = self.allocator
        if kind == _DICTATE:  # there are as many as segments
            if self.dictates:
                allocator.device.dictate_address(addr)
            self.timeline.moved.append(0)
            return
        reserved = allocator.reserved_bytes
        is_request = kind in _REQUESTS
        if self._n_happened < len(self.address_events):
            self._change_addresses()
        if is_request:
            change = self._request(addr, size, stream)
        elif kind == StepKind.FREE:
            change = 0
            if (ptr := allocator.take_name(addr)) is not None:
                change = -allocator.size_of(ptr)
                allocator.free(ptr)
        else:
            change = self._seldom(kind, self._entry(), addr, size, stream)
        if allocator.reserved_bytes == reserved or self.stopped_at is not None:
            self.timeline.moved.append(change)
            return
        if is_request:
            self._grew(self._entry())
        self.timeline.moved.append(change)
        self.timeline.reserve(allocator.reserved_bytes)

    def _entry(self) -> int:
        """The entry of the step that is being taken."""
        return int(self.plan.steps.entry[self._passed_over + len(self.timeline)])

    def _grew(self, entry: int) -> None:
        for observer in self.observers:
            observer.grew(self.allocator, entry)

    def _change_addresses(self) -> None:
        """Let happen in the address space what came before the entry of this step."""
        events, entry = self.address_events, self._entry()
        while self._n_happened < len(events) and events[self._n_happened].entry <= entry:
            self.allocator.device.happen(events[self._n_happened].event)
            self._n_happened += 1

    def _request(self, addr: int, size: int, stream: int) -> int:
        """An `alloc` entry; the bytes that became allocated."""
        try:
            ptr = self.allocator.malloc(size, stream)
        except OutOfMemoryError as error:
            self._note_oom(self._entry(), size, stream, error)
            return 0
        if ptr is None:
            return 0
        return self.allocator.give_name(ptr, addr).size

    def _seldom(self, kind: int, entry: int, addr: int, size: int, stream: int) -> int:
        """Steps that are rare in every recording; the allocated bytes that one moved."""
        if kind == StepKind.FREE_REQUEST:
            if (ptr := self.allocator.take_name(addr)) is not None:
                size = self.allocator.size_of(ptr)
                self._waiting[addr] = self.allocator.request_free(ptr)
                return -size
        elif kind == StepKind.FREE_COMPLETE:
            free = self._waiting.pop(addr, None)
            if free is not None:
                self.allocator.complete_free(free)
        elif kind == StepKind.OOM:
            self._recorded_oom(entry, size, stream)
        elif kind == StepKind.ROOM and self.dictates:
            device = self.allocator.device
            device.room = size if size >= 0 else device.total + device.host_memory
        elif kind == StepKind.AWAIT and self.dictates:
            if addr in self._waiting:
                self.allocator.wait_last_for(self._waiting[addr])
        else:
            self._unrecorded(kind, size, stream)
        return 0

    def _unrecorded(self, kind: int, size: int, stream: int) -> None:
        """What the program did and left no entry of."""
        if kind == StepKind.EMPTY_CACHE:
            self.allocator.empty_cache()
        elif kind == StepKind.SCOPE:
            self._enter(self.plan.pools[size] if size >= 0 else None, stream)
        elif kind == StepKind.SETTINGS:
            self.allocator.set_allocator_settings(str(self.plan.changes[size]))
        elif kind == StepKind.FRACTION:
            self.allocator.set_per_process_memory_fraction(float(self.plan.changes[size]))
        elif kind in (StepKind.END_POOL, StepKind.DELETE_POOL):
            self._end_pool(self.plan.pools[size], is_deleted=kind == StepKind.DELETE_POOL)

    def _recorded_oom(self, entry: int, size: int, stream: int) -> None:
        """A request that failed in the recording; where it succeeds here it is given back."""
        try:
            # What was rounded up to an exbibyte was less: more never reaches the allocator.
            ptr = self.allocator.malloc(min(size, MAX_REQUEST - 1), stream)
        except OutOfMemoryError as error:
            self._note_oom(entry, None, stream, error)
            return
        self._grew(entry)
        if self.fidelity is not None:
            if self._placed is None:
                self.fidelity.unrecorded(self.allocator.history)
            else:
                self._placed.given_back.append(len(self._placed.ends))
        self.allocator.free(ptr)

    def _note_oom(
        self, entry: int, requested: int | None, stream: int, error: OutOfMemoryError
    ) -> None:
        """requested: None if the recording has the error too, and with it the rounded size only."""
        oom = SimulatedOom(
            entry=entry,
            requested_bytes=requested,
            rounded_bytes=error.rounded_bytes,
            tried_bytes=error.tried_bytes,
            message=str(error),
            is_recorded=requested is None,
            stream=stream,
            total_bytes=self.allocator.device.total,
            free_bytes=self.allocator.device.free,
            allocated_bytes=self.allocator.allocated_bytes,
            reserved_bytes=self.allocator.reserved_bytes,
            limit_bytes=self.allocator.memory_limit,
        )
        if not self.ooms:
            self.refused_below = self.allocator.device.refused_below
        self.ooms.append(oom)
        if not oom.is_recorded:
            self.stopped_at = entry
        for observer in self.observers:
            observer.out_of_memory(self.allocator, oom, self._blocks())

    def _blocks(self) -> dict[int, Block]:
        """By recorded address, every block that is in use or waits to be free."""
        waiting = {addr: free.block for addr, free in self._waiting.items() if free.block}
        return waiting | self.allocator.named_blocks

    def _enter(self, pool: PoolId | None, stream: int) -> None:
        """Requests go to `pool` from here on.

        stream: the one that up to 2.2 a scope is for.
        """
        if self._scope is not None:
            self.allocator.end_allocate_to_pool(self._scope)
        if pool is not None:
            self.allocator.begin_allocate_to_pool(pool, stream=stream)
        self._scope = pool

    def _end_pool(self, pool: PoolId, *, is_deleted: bool) -> None:
        """Give up every use of `pool`, one for each scope that was opened.

        is_deleted: the last of them is the MemPool's own, which takes the memory with it.
        """
        if self._scope == pool:
            self._enter(None, 0)
        is_deleted &= self.allocator.release.mempools_hold_pools
        for _ in range(self.allocator.pool_use_count(pool) - is_deleted):
            self.allocator.release_pool(pool)
        if is_deleted and self.allocator.pool_use_count(pool):
            self.allocator.delete_mempool(pool)

    def _pause(self, entry: int) -> None:
        end = self._passed_over + len(self.timeline)
        self.timeline.keep()
        history = self.allocator.take_history()
        if self._placed is not None and self.fidelity is not None:
            first = end - len(self._placed)
            steps = self.plan.steps.part(first, end)
            self.fidelity.steps(steps, first, self._placed, history)
            self._placed = PlacedSteps()
        elif self.fidelity is not None:
            self.fidelity.history(history)
        for observer in self.observers:
            if observer.keeps_history:
                observer.history(history)
        if self.check_every:
            try:
                self.allocator.check()
            except InvariantError as error:
                raise InvariantError(f"entry {entry}: {error}") from error
        if self.progress is not None:
            self.progress(max(entry, 0), self.n_entries)
