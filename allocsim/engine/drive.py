"""One trace through one allocator: the loop, and what it writes down.

Rule: recorded addresses are handles, never addresses of the simulation; a free of something
that this simulation never handed out (its request failed) does nothing.  An out-of-memory error
that the recording does not have ends the replay, as it would have ended the program.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from allocsim.core import Block, CachingAllocator
from allocsim.engine.fidelity import FidelityCheck
from allocsim.engine.fold import fold_columns
from allocsim.engine.observers import Observer, PeakWatch, Progress, TimelineBuilder
from allocsim.engine.plan import Plan, StepKind
from allocsim.engine.repeats import CYCLE, Period, signature
from allocsim.engine.result import SimulatedOom
from allocsim.errors import InvariantError, OutOfMemoryError
from allocsim.trace import PoolId

__all__ = ["Drive"]

PAUSE_EVERY = 8192
"""Steps between looks at the history, the progress and the clock of `check_every`."""


@dataclass(slots=True)
class Drive:
    """A replay under way.

    dictates: driver bases come from the recording.  check_every: entries between walks of
    every invariant, 0 for none.  skipped: entries of periods that were passed over.
    """

    allocator: CachingAllocator
    plan: Plan
    n_entries: int
    dictates: bool
    check_every: int = 0
    fidelity: FidelityCheck | None = None
    progress: Progress | None = None
    observer: Observer | None = None
    ooms: list[SimulatedOom] = field(default_factory=list)
    stopped_at: int | None = None
    skipped: int = 0
    timeline: TimelineBuilder = field(init=False)
    peak: PeakWatch = field(init=False)
    _handles: dict[int, Block] = field(default_factory=dict)
    _scope: PoolId | None = None

    def __post_init__(self) -> None:
        self.allocator.heap.stats.folder = fold_columns
        live = self.allocator.heap.live
        self._handles.update(live)
        self._handles.update(self.allocator.heap.pending)
        held = sum(block.size for block in live.values())
        self.timeline = TimelineBuilder(held, self.allocator.reserved_bytes)
        self.peak = PeakWatch(self.allocator)

    def run(self, period: Period | None = None) -> None:
        """Drive every step, or up to an out-of-memory error that is ours alone.

        period: a stretch to pass over once nothing changes in it any more; then the timeline
        lacks it.

        The cycle collector rests meanwhile: a merged block leaves no cycle behind, and walking
        the columns of a long plan again and again took a tenth of the time.
        """
        if self.observer is not None:
            self.observer.began(self.allocator)
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            if period is None:
                self._run_steps(0, len(self.plan.steps))
            else:
                self._run_steps(0, period.first)
                after = self._run_period(period)
                self._run_steps(after, len(self.plan.steps))
        finally:
            if was_enabled:
                gc.enable()

    def _run_steps(self, first: int, end: int) -> None:
        pause = min(PAUSE_EVERY, self.check_every or PAUSE_EVERY)
        for start in range(first, end, pause):
            if self.stopped_at is not None:
                return
            stop = min(start + pause, end)
            self._run_some(start, stop)
            self._pause(self.plan.steps.entry[stop - 1])

    def _run_period(self, period: Period) -> int:
        """Drive a stretch until it comes back to where it was; the step to go on with."""
        plan, stride = self.plan.steps, period.stride
        asked: dict[int, int] = {}
        before: deque[Hashable] = deque(maxlen=CYCLE)
        for start in range(period.first, period.end - stride + 1, stride):
            now = signature(self.allocator, self._handles, asked, start)
            if now in before:
                cycle = (len(before) - before.index(now)) * stride
                further = (period.end - start) // cycle * cycle
                self._rename(asked, further)
                if further:
                    self.skipped = plan.entry[start + further - 1] - plan.entry[start] + 1
                return start + further
            before.append(now)
            self._run_steps(start, start + stride)
            if self.stopped_at is not None:
                return start + stride
            for step in range(start, start + stride):
                if plan.kind[step] == StepKind.ALLOC:
                    asked[plan.addr[step]] = step
        return start + stride

    def _rename(self, asked: dict[int, int], further: int) -> None:
        """Let each block of the stretch stand for the one asked for `further` steps later."""
        addr = self.plan.steps.addr
        self._handles = {
            addr[asked[old] + further] if old in asked else old: block
            for old, block in self._handles.items()
        }

    def _run_some(self, start: int, stop: int) -> None:  # noqa: PLR0912  (one loop, by design)
        """The hot loop: names are local, and a step writes down one number, what it moved."""
        alloc_step, free_step = int(StepKind.ALLOC), int(StepKind.FREE)
        malloc, free = self.allocator.malloc, self.allocator.free
        fast_malloc, fast_free = self.allocator.fast_malloc, self.allocator.fast_free
        handles, heap = self._handles, self.allocator.heap
        live = heap.live
        moved = self.timeline.moved.append
        compare = None if self.fidelity is None else self.fidelity.address
        reserved = heap.reserved
        for kind, entry, addr, size, stream in self.plan.steps.rows(start, stop):
            if kind == alloc_step:
                found = fast_malloc(size, stream)
                if found is not None:
                    handles[addr] = found
                    moved(found.size)
                    if compare is not None:
                        compare(addr, found.ptr)
                    continue
                try:
                    ptr = malloc(size, stream)
                except OutOfMemoryError as error:
                    self._note_oom(entry, size, stream, error)
                    moved(0)
                    return
                if ptr is None:
                    moved(0)
                    continue
                block = handles[addr] = live[ptr]
                moved(block.size)
                if compare is not None:
                    compare(addr, ptr)
                if heap.reserved != reserved:
                    reserved = heap.reserved
                    self.timeline.reserve(reserved)
                    self.peak.look(entry)
                    if self.observer is not None:
                        self.observer.grew(self.allocator, entry)
            elif kind == free_step:
                freed = handles.pop(addr, None)
                if freed is None:
                    moved(0)
                    continue
                moved(-freed.size)
                if not fast_free(freed):
                    free(freed.ptr)
            else:
                moved(self._seldom(kind, entry, addr, size, stream))
                reserved = heap.reserved
                self.timeline.reserve(reserved)

    def _seldom(self, kind: int, entry: int, addr: int, size: int, stream: int) -> int:
        """Steps that are rare in every recording; the allocated bytes that one moved."""
        if kind == StepKind.FREE_REQUEST:
            block = self._handles.get(addr)
            if block is not None:
                self.allocator.request_free(block.ptr)
                return -block.size
        elif kind == StepKind.FREE_COMPLETE:
            block = self._handles.pop(addr, None)
            if block is not None:
                self.allocator.complete_free(block)
        elif kind == StepKind.OOM:
            self._recorded_oom(entry, size, stream)
        elif kind == StepKind.DICTATE and self.dictates:
            self.allocator.device.dictate_address(addr)
        elif kind == StepKind.EMPTY_CACHE:
            self.allocator.empty_cache()
        elif kind == StepKind.SCOPE:
            self._enter(self.plan.pools[size] if size >= 0 else None, stream)
        elif kind == StepKind.END_POOL:
            self._end_pool(self.plan.pools[size])
        return 0

    def _recorded_oom(self, entry: int, size: int, stream: int) -> None:
        """A request that failed in the recording; where it succeeds here it is given back."""
        try:
            ptr = self.allocator.malloc(size, stream)
        except OutOfMemoryError as error:
            self._note_oom(entry, None, stream, error)
            return
        self.peak.look(entry)
        if self.observer is not None:
            self.observer.grew(self.allocator, entry)
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
            allocated_bytes=self.allocator.heap.stats.allocated_bytes(),
            reserved_bytes=self.allocator.reserved_bytes,
            limit_bytes=self.allocator.memory_limit,
        )
        self.ooms.append(oom)
        if not oom.is_recorded:
            self.stopped_at = entry
        if self.observer is not None:
            self.observer.out_of_memory(self.allocator, oom, self._handles)

    def _enter(self, pool: PoolId | None, stream: int) -> None:
        """Requests go to `pool` from here on.

        stream: the one that up to 2.2 a scope is for.
        """
        if self._scope is not None:
            self.allocator.end_allocate_to_pool(self._scope)
        if pool is not None:
            self.allocator.begin_allocate_to_pool(pool, stream=stream)
        self._scope = pool

    def _end_pool(self, pool: PoolId) -> None:
        """Give up every use of `pool`, one for each scope that was opened."""
        if self._scope == pool:
            self._enter(None, 0)
        uses = self.allocator.private_pools.pools.get(pool)
        while uses is not None and uses.use_count:
            self.allocator.release_pool(pool)

    def _pause(self, entry: int) -> None:
        history = self.allocator.take_history()
        if self.fidelity is not None:
            self.fidelity.history(history)
        if self.observer is not None and self.observer.keeps_history:
            self.observer.history(history)
        if self.check_every:
            try:
                self.allocator.check()
            except InvariantError as error:
                raise InvariantError(f"entry {entry}: {error}") from error
        if self.progress is not None:
            self.progress(max(entry, 0), self.n_entries)
