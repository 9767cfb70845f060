"""One trace through one allocator: the loop, and what it writes down.

Rule: recorded addresses are handles, never addresses of the simulation; a free of something
that this simulation never handed out (its request failed) does nothing.  An out-of-memory error
that the recording does not have ends the replay, as it would have ended the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from allocsim.core import CachingAllocator
from allocsim.engine.fidelity import FidelityCheck
from allocsim.engine.observers import PeakWatch, Progress, TimelineBuilder
from allocsim.engine.plan import Plan, Step, StepKind
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
    every invariant, 0 for none.  pools: what the pool numbers of the steps stand for.
    """

    allocator: CachingAllocator
    plan: Plan
    pools: Sequence[PoolId]
    n_entries: int
    dictates: bool
    check_every: int = 0
    fidelity: FidelityCheck | None = None
    progress: Progress | None = None
    ooms: list[SimulatedOom] = field(default_factory=list)
    stopped_at: int | None = None
    timeline: TimelineBuilder = field(default_factory=TimelineBuilder)
    _handles: dict[int, tuple[int, int]] = field(default_factory=dict)
    _allocated: int = 0
    _scope: PoolId | None = None
    peak: PeakWatch = field(init=False)

    def __post_init__(self) -> None:
        self.peak = PeakWatch(self.allocator)
        for ptr, size in self.allocator.live_blocks():
            self._handles[ptr] = (ptr, size)
            self._allocated += size

    def run(self) -> None:
        """Drive every step, or up to an out-of-memory error of our own."""
        steps = self.plan.steps
        pause = min(PAUSE_EVERY, self.check_every or PAUSE_EVERY)
        for start in range(0, len(steps), pause):
            self._run_some(steps[start : start + pause])
            self._pause(start, steps[min(start + pause, len(steps)) - 1][1])
            if self.stopped_at is not None:
                return

    def _run_some(self, steps: list[Step]) -> None:
        malloc, free = self.allocator.malloc, self.allocator.free
        handles, heap = self._handles, self.allocator.heap
        live = heap.live
        note_entry = self.timeline.entry.append
        note_allocated = self.timeline.allocated.append
        note_reserved = self.timeline.reserved.append
        reserved = heap.reserved
        for kind, entry, addr, size, stream in steps:
            if kind == StepKind.ALLOC:
                try:
                    ptr = malloc(size, stream)
                except OutOfMemoryError as error:
                    self._note_oom(entry, size, error, is_recorded=False)
                    return
                if ptr is None:
                    continue
                taken = live[ptr].size
                handles[addr] = (ptr, taken)
                self._allocated += taken
                if self.fidelity is not None:
                    self.fidelity.address(addr, ptr)
                if heap.reserved > reserved:
                    self.peak.look(entry)
                reserved = heap.reserved
            elif kind == StepKind.FREE:
                handle = handles.pop(addr, None)
                if handle is None:
                    continue
                free(handle[0])
                self._allocated -= handle[1]
            else:
                self._seldom(kind, entry, addr, size, stream)
                reserved = heap.reserved
            note_entry(entry)
            note_allocated(self._allocated)
            note_reserved(reserved)

    def _seldom(self, kind: int, entry: int, addr: int, size: int, stream: int) -> None:
        """Steps that are rare in every recording."""
        if kind == StepKind.FREE_REQUEST:
            handle = self._handles.get(addr)
            if handle is not None:
                self.allocator.request_free(handle[0])
                self._allocated -= handle[1]
        elif kind == StepKind.FREE_COMPLETE:
            handle = self._handles.pop(addr, None)
            if handle is not None:
                self.allocator.complete_free(handle[0])
        elif kind == StepKind.OOM:
            self._recorded_oom(entry, size, stream)
        elif kind == StepKind.DICTATE and self.dictates:
            self.allocator.device.dictate_address(addr)
        elif kind == StepKind.EMPTY_CACHE:
            self.allocator.empty_cache()
        elif kind == StepKind.SCOPE:
            self._enter(self.pools[size] if size >= 0 else None)

    def _recorded_oom(self, entry: int, size: int, stream: int) -> None:
        """A request that failed in the recording; where it succeeds here it is given back."""
        try:
            ptr = self.allocator.malloc(size, stream)
        except OutOfMemoryError as error:
            self._note_oom(entry, None, error, is_recorded=True)
            return
        self.peak.look(entry)
        self.allocator.free(ptr)

    def _note_oom(
        self, entry: int, requested: int | None, error: OutOfMemoryError, *, is_recorded: bool
    ) -> None:
        self.ooms.append(
            SimulatedOom(
                entry=entry,
                requested_bytes=requested,
                rounded_bytes=error.rounded_bytes,
                tried_bytes=error.tried_bytes,
                message=str(error),
                is_recorded=is_recorded,
            )
        )
        if not is_recorded:
            self.stopped_at = entry

    def _enter(self, pool: PoolId | None) -> None:
        """Requests go to `pool` from here on; every pool is held to the end."""
        if self._scope is not None:
            self.allocator.end_allocate_to_pool(self._scope)
        if pool is not None:
            self.allocator.begin_allocate_to_pool(pool)
        self._scope = pool

    def _pause(self, step: int, entry: int) -> None:
        if self.fidelity is not None:
            self.fidelity.history(self.allocator.take_history())
        if self.check_every:
            try:
                self.allocator.check()
            except InvariantError as error:
                raise InvariantError(f"entry {entry}: {error}") from error
        if self.progress is not None:
            self.progress(max(entry, 0), self.n_entries)
