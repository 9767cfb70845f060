"""Loop that runs the steps of a plan on one simulated allocator and collects the results.

A block is identified by its recorded address, whatever its address in this replay.  Most steps are
plain: the history entries of a plain step can be derived from the step and the address of its block
alone.  The compiled loop of the core runs plain steps in batches.
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
    Folder,
    ReplayAllocator,
    RequestedFree,
    fingerprint,
)
from allocsim.errors import InvariantError, OutOfMemoryError
from allocsim.simulation.addresses import DatedEvent
from allocsim.simulation.observers import GiveUpError, HistoryCheck, Observer, PlacedSteps, Progress
from allocsim.simulation.plan import CYCLE, Period, Plan, StepKind
from allocsim.simulation.result import SimulatedOom
from allocsim.simulation.timeline import TimelineBuilder, fold
from allocsim.simulation.what_if import Start, allocate_live_blocks
from allocsim.state import PoolId, SegmentState

PAUSE_EVERY = 8192 if IS_COMPILED else 2048
"""Number of steps in a batch; history, progress and checks are updated after each batch.

A larger batch does not fit in the processor's cache.  With a smaller one, the updates take longer
than the compiled loop.
"""

# Plain integers: a comparison with an enum member takes as long as a dictionary lookup.
_DICTATE, _REQUESTS = int(StepKind.DICTATE), (int(StepKind.ALLOC), int(StepKind.BRIEF))


@dataclass(slots=True)
class Drive:
    """One replay, in progress or finished.

    dictates: True to place segments at their recorded addresses.
    check_every: number of steps between checks of the allocator's invariants; 0 for no checks.
    fidelity: comparison with the recording; None for no comparison.
    progress: function called with the number of entries done and in total; None for no calls.
    folder: function that computes statistics from the core's list of changes (the journal).
    lays_out: recorded segments whose live blocks are requested from an empty allocator before the
        first step; () if the allocator starts with the recorded segments.
    keeps_rows: True to record only the block address of each malloc and free in the core's loop,
        from which `fidelity` derives the history entries; False to record the history entries.
    address_events: changes of the address space to repeat (`addresses.py`), ordered by entry.
    stops_at_difference: True to stop after the first batch that differs from the recording.
    stopped_at: entry of the out-of-memory error that ended the replay; None if none did.
    given_up_at: entry at which an observer ended the replay; None if none did.
    skipped: number of entries that were not replayed, because they repeat earlier entries.
    refused_below: bytes; every smaller device refuses the same driver calls up to the first
        out-of-memory error.  None without such an error, or if the driver refused no call for lack
        of memory.
    timeline: allocated and reserved bytes after each step, collected during the replay.
    """

    allocator: ReplayAllocator
    plan: Plan
    n_entries: int
    dictates: bool
    check_every: int = 0
    fidelity: HistoryCheck | None = None
    progress: Progress | None = None
    observers: tuple[Observer, ...] = ()
    folder: Folder = fold
    lays_out: Sequence[SegmentState] = ()
    keeps_rows: bool = False
    address_events: Sequence[DatedEvent] = ()
    stops_at_difference: bool = False
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
    _n_applied: int = 0

    def __post_init__(self) -> None:
        self.allocator.count_with(self.folder)
        if self.keeps_rows:
            self._placed = PlacedSteps()
        if self.lays_out:
            self._waiting = allocate_live_blocks(self.allocator, self.lays_out)
            held = sum(block.size for block in self.allocator.named_blocks.values())
        else:
            held = self.allocator.name_by_address()
            for free in self.allocator.requested_frees:
                assert free.block is not None
                self._waiting[free.block.ptr] = free
        self.timeline = TimelineBuilder(held, self.allocator.reserved_bytes)

    @property
    def start(self) -> Start:
        return Start.REALLOCATED if self.lays_out else Start.KEPT

    def run(self, period: Period | None = None) -> None:
        """Run all steps, or stop at an out-of-memory error that the recording does not contain.

        period: part of the plan that repeats.  As soon as the allocator is in the same state as a
            few repetitions before, further repetitions are skipped.  None to run every step.
        """
        # The steps leave no reference cycles, and Python's cycle collector took 10 % of the time.
        try:
            with collector_paused():
                self._run_all(period)
        except GiveUpError:
            self.given_up_at = self._entry()

    def _run_all(self, period: Period | None) -> None:
        for observer in self.observers:
            observer.began(self.allocator)
        if period is None:
            self.run_steps(0, len(self.plan.steps))
        else:
            self.run_steps(0, period.first)
            after = self._run_until_state_recurs(period)
            self.run_steps(after, len(self.plan.steps))

    def run_steps(self, first: int, end: int) -> None:
        pause = min(PAUSE_EVERY, self.check_every or PAUSE_EVERY)
        for start in range(first, end, pause):
            if self.stopped_at is not None or self._has_enough:
                return
            stop = min(start + pause, end)
            self._run_range(start, stop)
            self._pause(int(self.plan.steps.entry[stop - 1]))

    @property
    def _has_enough(self) -> bool:
        check = self.fidelity
        return self.stops_at_difference and check is not None and check.has_diverged

    def _run_until_state_recurs(self, period: Period) -> int:
        # Returns the number of the step to continue with, after the skipped repetitions.
        stride = period.stride
        allocated_at: dict[int, int] = {}  # recorded address -> step of its last request
        before: deque[Hashable] = deque(maxlen=CYCLE)
        for start in range(period.first, period.end - stride + 1, stride):
            now = fingerprint(self.allocator, self._waiting, allocated_at, start)
            if now in before:
                # The state recurs after `cycle` steps.  Skip all further whole cycles.
                cycle = (len(before) - before.index(now)) * stride
                further = (period.end - start) // cycle * cycle
                self._rename_blocks_to_repetition(allocated_at, further)
                if further:
                    first, last = self.plan.steps.entry[[start, start + further - 1]].tolist()
                    self.skipped = last - first + 1
                return start + further
            before.append(now)
            self.run_steps(start, start + stride)
            if self.stopped_at is not None:
                return start + stride
            steps = self.plan.steps
            allocs = start + np.flatnonzero(steps.kind[start : start + stride] == StepKind.ALLOC)
            # The fingerprint identifies a block by the age of its request, not by its name.
            rows = zip(steps.addr[allocs].tolist(), allocs.tolist(), strict=True)
            allocated_at.update(rows)
        return start + stride

    def _rename_blocks_to_repetition(self, allocated_at: dict[int, int], further: int) -> None:
        addr = self.plan.steps.addr

        def later(old: int) -> int:
            return int(addr[allocated_at[old] + further]) if old in allocated_at else old

        self.allocator.rename(later)
        self._waiting = {later(old): free for old, free in self._waiting.items()}

    def _run_range(self, start: int, stop: int) -> None:
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
        allocator = self.allocator
        if kind == _DICTATE:  # tested first, because every segment has such a step
            if self.dictates:
                allocator.device.dictate_address(addr)
            self.timeline.moved.append(0)
            return
        reserved = allocator.reserved_bytes
        is_request = kind in _REQUESTS
        if self._n_applied < len(self.address_events):
            self._change_addresses()
        if is_request:
            change = self._request(addr, size, stream)
        elif kind == StepKind.FREE:
            change = 0
            if (ptr := allocator.take_name(addr)) is not None:
                change = -allocator.size_of(ptr)
                allocator.free(ptr)
        else:
            change = self._run_rare_step(kind, self._entry(), addr, size, stream)
        now = allocator.reserved_bytes
        if now == reserved or self.stopped_at is not None:
            self.timeline.moved.append(change)
            return
        if is_request and self.observers:
            self._grew(self._entry())
        self.timeline.moved.append(change)
        self.timeline.reserve(now)

    def _entry(self) -> int:
        return int(self.plan.steps.entry[self._passed_over + len(self.timeline)])

    def _grew(self, entry: int) -> None:
        for observer in self.observers:
            observer.grew(self.allocator, entry)

    def _change_addresses(self) -> None:
        events, entry = self.address_events, self._entry()
        while self._n_applied < len(events) and events[self._n_applied].entry <= entry:
            self.allocator.device.apply(events[self._n_applied].event)
            self._n_applied += 1

    def _request(self, addr: int, size: int, stream: int) -> int:
        try:
            ptr = self.allocator.malloc(size, stream)
        except OutOfMemoryError as error:
            self._note_oom(self._entry(), size, stream, error)
            return 0
        if ptr is None:  # a request of 0 bytes
            return 0
        return self.allocator.give_name(ptr, addr).size

    def _run_rare_step(self, kind: int, entry: int, addr: int, size: int, stream: int) -> int:
        if kind == StepKind.FREE_REQUEST:
            # The block stays active until FREE_COMPLETE, but is not allocated any more.
            if (ptr := self.allocator.take_name(addr)) is not None:
                size = self.allocator.size_of(ptr)
                self._waiting[addr] = self.allocator.request_free(ptr)
                return -size
        elif kind == StepKind.FREE_COMPLETE:
            free = self._waiting.pop(addr, None)
            if free is not None:
                self.allocator.complete_free(free)
        elif kind == StepKind.OOM:
            self._repeat_recorded_oom(entry, size, stream)
        elif kind == StepKind.ROOM and self.dictates:
            device = self.allocator.device
            device.room = size if size >= 0 else device.total + device.host_memory
        elif kind == StepKind.AWAIT and self.dictates:
            if addr in self._waiting:
                self.allocator.wait_last_for(self._waiting[addr])
        else:
            self._make_call(kind, size, stream)
        return 0

    def _make_call(self, kind: int, size: int, stream: int) -> None:
        if kind == StepKind.EMPTY_CACHE:
            self.allocator.empty_cache()
        elif kind == StepKind.SCOPE:
            self._serve_from_pool(self.plan.pools[size] if size >= 0 else None, stream)
        elif kind == StepKind.SETTINGS:
            self.allocator.set_allocator_settings(str(self.plan.changes[size]))
        elif kind == StepKind.FRACTION:
            self.allocator.set_per_process_memory_fraction(float(self.plan.changes[size]))
        elif kind in (StepKind.END_POOL, StepKind.DELETE_POOL):
            self._end_pool(self.plan.pools[size], is_deleted=kind == StepKind.DELETE_POOL)

    def _repeat_recorded_oom(self, entry: int, size: int, stream: int) -> None:
        try:
            # The entry has the rounded size, which may be larger than the largest request.
            ptr = self.allocator.malloc(min(size, MAX_REQUEST - 1), stream)
        except OutOfMemoryError as error:
            self._note_oom(entry, None, stream, error)
            return
        self._grew(entry)
        if self.fidelity is not None:
            if self._placed is None:
                self.fidelity.exclude_last_alloc(self.allocator.history)
            else:
                self._placed.answered_ooms.append(len(self._placed.ends))
        self.allocator.free(ptr)  # the recorded program got no block

    def _note_oom(
        self, entry: int, requested: int | None, stream: int, error: OutOfMemoryError
    ) -> None:
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
        waiting = {addr: free.block for addr, free in self._waiting.items() if free.block}
        return waiting | self.allocator.named_blocks

    def _serve_from_pool(self, pool: PoolId | None, stream: int) -> None:
        if self._scope is not None:
            self.allocator.end_allocate_to_pool(self._scope)
        if pool is not None:
            self.allocator.begin_allocate_to_pool(pool, stream=stream)
        self._scope = pool

    def _end_pool(self, pool: PoolId, *, is_deleted: bool) -> None:
        """Release `pool` once for each graph capture or MemPool that uses it.

        is_deleted: True if one user is a MemPool that the program deletes.
        """
        if self._scope == pool:
            self._serve_from_pool(None, 0)
        # Since PyTorch 2.6 the MemPool is a user of its pool; `delete_mempool` ends that use.
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
