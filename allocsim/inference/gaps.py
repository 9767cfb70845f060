"""Recorded entries of a trace, split into plain steps of the program and gaps between them.

The entries alloc, oom and free_requested are steps of the program; a free_completed right after its
free_requested belongs to the same step.  The allocator itself causes all other entries, such as
segment_free.  A gap consists of such entries, whose cause must be inferred.  Source: semantics 6.2,
6.6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.recording import Action, Mark, MarkKind, PoolColumn, Trace, completes_at_once
from allocsim.simulation import Change, PlannedAt, StepKind, Steps, is_at_start, joined, spread
from allocsim.state import PoolId

_REQUESTS = (Action.ALLOC, Action.OOM)
_GROWS = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_SHRINKS = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_SETS = {MarkKind.FRACTION: StepKind.FRACTION, MarkKind.SETTINGS: StepKind.SETTINGS}


class RecordedEntry(NamedTuple):
    """Entry of the trace, with its number.

    action: code of the `Action`, such as alloc.
    addr, size: address and bytes of the block or segment.
    pool: index of the private pool; -1 for the default pool.
    """

    number: int
    action: int
    addr: int
    size: int
    stream: int
    pool: int


class Call(NamedTuple):
    """Call of the program that leaves no entry, known from a mark or a hint.

    entry: number of entries before the call.
    kind: kind of the call, a `StepKind`.
    number: index of the private pool that the call deletes, or index in `Plan.changes` of the conf
        or memory fraction that it sets; 0 for other calls.
    """

    entry: int
    kind: int
    number: int


@dataclass(frozen=True, slots=True)
class EntryMasks:
    """Masks over the entries of a trace; an item is True if the statement holds for the entry.

    is_immediate: the entry is a free_requested, and the next is its free_completed.
    is_held: the entry is an immediate free right before memory was returned to the driver or a
        request failed, so the allocator may have waited for this free.
    is_plain: the entry is a step of the program that needs no inference.
    is_growth: the entry is a new segment for the request in the next entry, and neither needs
        inference.
    is_planned: the entry is part of a gap or ends a gap, so the steps that cause it are inferred.
    """

    is_immediate: NDArray[np.bool_]
    is_held: NDArray[np.bool_]
    is_plain: NDArray[np.bool_]
    is_growth: NDArray[np.bool_]
    is_planned: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries that the allocator caused between two steps, and the step that ends the gap.

    free: the free right before the gap, if it completed at once and the allocator may have waited
        for it; else None.
    completed: frees that were requested earlier and completed in the gap.
    n_early: number of frees completed before the first entry of `released`.
    released: segments and mapped ranges returned to the driver.
    before: segments obtained from the driver before the first entry of `released`.
    obtained: segments obtained after the first entry of `released`, or all if nothing was returned.
    step: step of the program that ends the gap; None at the end of the trace.
    is_immediate: True if the step is a free that completes at once.
    scope: index of the pool that serves the step and later requests; None if it does not change.
    calls: calls of the program in the gap that are known from marks or hints, in order.
    """

    free: RecordedEntry | None
    completed: tuple[RecordedEntry, ...]
    n_early: int
    released: tuple[RecordedEntry, ...]
    before: tuple[RecordedEntry, ...]
    obtained: tuple[RecordedEntry, ...]
    step: RecordedEntry | None
    is_immediate: bool
    scope: int | None
    calls: tuple[Call, ...] = ()

    @property
    def last(self) -> int:
        if self.step is not None:
            return self.step.number
        effects = (*self.completed, *self.released, *self.before, *self.obtained)
        before = [call.entry - 1 for call in self.calls]
        if self.free is not None:
            before.append(self.free.number)
        return max([0, *before, *(entry.number for entry in effects)])

    @property
    def is_open(self) -> bool:
        """True if the entries of the gap can have several causes.

        They can if memory was released, or if a request failed although the device had room.
        """
        step = self.step
        if step is None or step.action != Action.OOM:
            return bool(self.released)
        return bool(self.released or self.free) or step.addr >= step.size

    @property
    def is_request(self) -> bool:
        return self.step is not None and self.step.action in _REQUESTS


def calls_of(
    marks: Sequence[Mark], pools: Sequence[PoolId]
) -> tuple[tuple[Call, ...], tuple[Change, ...]]:
    """Return the calls that `marks` record, and the settings that these calls make.

    A setting is an option string (conf) or a memory fraction.

    pools: ids of pools, to which the calls refer by index.
    """
    calls: list[Call] = []
    changes: list[Change] = []
    for mark in marks:
        # A mark with entry n comes before entry n.
        if mark.kind is MarkKind.EMPTY_CACHE:
            calls.append(Call(mark.entry, StepKind.EMPTY_CACHE, 0))
        elif mark.kind is MarkKind.POOL_DELETED and mark.value in pools:
            calls.append(Call(mark.entry, StepKind.DELETE_POOL, pools.index(mark.value)))
        elif mark.kind in _SETS and not is_at_start(mark):
            assert isinstance(mark.value, str | float)
            calls.append(Call(mark.entry, _SETS[mark.kind], len(changes)))
            changes.append(mark.value)
    return tuple(calls), tuple(changes)


def classify(trace: Trace, pools: PoolColumn, calls: Sequence[Call] = ()) -> EntryMasks:
    action = trace.action
    is_requested = any_of(action, (Action.FREE_REQUESTED,))
    completes = completes_at_once(action, trace.addr)
    # If a call separates the two entries of a free, the call waited for the free.
    completes[[call.entry for call in calls if call.entry < len(trace)]] = False
    is_immediate = np.zeros(len(trace), dtype=bool)
    is_immediate[:-1] = completes[1:]
    is_request = any_of(action, _REQUESTS)
    is_driving = is_request | is_requested
    is_silent = completes | any_of(action, (Action.SNAPSHOT, Action.ANNOTATE))
    is_oom = any_of(action, (Action.OOM,))
    is_planned = ~(is_driving | is_silent) | is_oom
    is_growth = _growths(action, is_driving | completes)
    is_planned &= ~is_growth
    driving = np.flatnonzero(is_driving)
    # The step right after an effect or a call ends its gap, so it is not plain.
    following = np.searchsorted(driving, np.flatnonzero(is_planned))
    is_planned[driving[following[following < len(driving)]]] = True
    following = np.searchsorted(driving, [call.entry for call in calls])
    is_planned[driving[following[following < len(driving)]]] = True
    # The allocator may have waited for a free right before it returned memory to the driver.
    is_held = np.zeros(len(trace), dtype=bool)
    if len(driving):
        after = np.flatnonzero(any_of(action, _SHRINKS) | is_oom)
        is_held[driving[np.maximum(np.searchsorted(driving, after) - 1, 0)]] = True
        is_held &= is_immediate
    is_planned |= is_held
    if pools.ids:
        requests = np.flatnonzero(is_request)
        is_planned[requests[np.diff(pools.number[requests], prepend=-1) != 0]] = True
    # A segment before a request that is not plain belongs to the gap of that request.
    is_planned[:-1] |= is_growth[:-1] & is_planned[1:]
    is_growth &= ~is_planned
    return EntryMasks(is_immediate, is_held, is_driving & ~is_planned, is_growth, is_planned)


def _growths(action: NDArray[np.uint8], ends_step: NDArray[np.bool_]) -> NDArray[np.bool_]:
    # All items are False if memory was returned or a request failed anywhere in the trace, because
    # new segments then need an explanation.
    is_growth = np.zeros(len(action), dtype=bool)
    if len(action) and not any_of(action, (*_SHRINKS, Action.OOM)).any():
        is_growth[:-1] = any_of(action[:-1], _GROWS) & any_of(action[1:], (Action.ALLOC,))
        is_growth[1:] &= ends_step[:-1]
    return is_growth


def gaps_of(
    trace: Trace, pools: PoolColumn, masks: EntryMasks, calls: Sequence[Call] = ()
) -> Iterator[Gap]:
    """Yield the gaps of a trace in order.

    A gap has the entries between two steps of the program, such as segment_free.

    calls: known calls that left no entry.
    """
    open_gap = _OpenGap()
    pending_calls = deque(calls)
    scope = -1
    planned = np.flatnonzero(masks.is_planned)
    columns = (trace.action, trace.addr, trace.size, trace.stream, pools.number)
    picked = (planned.tolist(), *(column[planned].tolist() for column in columns))
    for entry in (RecordedEntry(*row) for row in zip(*picked, strict=True)):
        is_request = entry.action in _REQUESTS
        if not is_request and entry.action != Action.FREE_REQUESTED:
            open_gap.add(entry)
            continue
        while pending_calls and pending_calls[0].entry <= entry.number:
            open_gap.calls.append(pending_calls.popleft())
        if masks.is_held[entry.number]:
            # A free that may have been waited for opens the next gap instead of ending this one.
            if not open_gap.is_empty:
                yield open_gap.gap(None, is_immediate=False, scope=None)
            open_gap = _OpenGap(entry)
        else:
            is_immediate = bool(masks.is_immediate[entry.number])
            is_changed = is_request and entry.pool != scope
            scope = entry.pool if is_changed else scope
            new_scope = scope if is_changed else None
            yield open_gap.gap(entry, is_immediate=is_immediate, scope=new_scope)
            open_gap = _OpenGap()
    open_gap.calls += pending_calls
    if not open_gap.is_empty:
        yield open_gap.gap(None, is_immediate=False, scope=None)


class _OpenGap:
    def __init__(self, free: RecordedEntry | None = None) -> None:
        self._free = free
        self._completed: list[RecordedEntry] = []
        self._released: list[RecordedEntry] = []
        self._grown: tuple[list[RecordedEntry], list[RecordedEntry]] = ([], [])
        self._n_early = 0
        self.calls: list[Call] = []

    @property
    def is_empty(self) -> bool:
        effects = (self._completed, self._released, *self._grown)
        return not (self._free or self.calls or any(effects))

    def add(self, entry: RecordedEntry) -> None:
        if entry.action == Action.FREE_COMPLETED:
            self._completed.append(entry)
            self._n_early += not self._released
        elif entry.action in _GROWS:
            self._grown[bool(self._released)].append(entry)
        elif entry.action in _SHRINKS:
            self._released.append(entry)

    def gap(self, step: RecordedEntry | None, *, is_immediate: bool, scope: int | None) -> Gap:
        before, obtained = self._grown if self._released else ((), self._grown[0])
        return Gap(
            free=self._free,
            completed=tuple(self._completed),
            n_early=self._n_early,
            released=tuple(self._released),
            before=tuple(before),
            obtained=tuple(obtained),
            step=step,
            is_immediate=is_immediate,
            scope=scope,
            calls=tuple(self.calls),
        )


def capacity_from_oom(trace: Trace, reserved_at_start: int) -> int | None:
    """Return free plus reserved bytes at the first `oom` entry; None without such an entry."""
    ooms = np.flatnonzero(any_of(trace.action, (Action.OOM,)))[:1]
    if not len(ooms):
        return None
    return int(trace.reserved_after(ooms, reserved_at_start)[0]) + int(trace.addr[ooms[0]])


@dataclass(frozen=True, slots=True)
class PlainSteps:
    """Steps of a plan that can be derived from one entry each, without inference.

    entry: number of the entry that each step comes from.  A DICTATE step gives the address of a new
        segment, and comes from the entry of that segment.
    """

    kind: NDArray[np.uint8]
    entry: NDArray[np.intp]

    @classmethod
    def of(cls, trace: Trace, masks: EntryMasks) -> PlainSteps:
        entry = np.flatnonzero(masks.is_plain | masks.is_growth)
        is_alloc = any_of(trace.action[entry], (Action.ALLOC,))
        # A table lookup is five times faster than np.where on an unpredictable mask.
        kinds = (StepKind.FREE_REQUEST, StepKind.FREE, StepKind.ALLOC, StepKind.DICTATE)
        number = np.maximum(2 * is_alloc.view(np.uint8), masks.is_immediate[entry])
        number += 3 * masks.is_growth[entry].view(np.uint8)
        return cls(np.array(kinds, dtype=np.uint8).take(number), entry)

    def steps(self, trace: Trace, planned: Sequence[PlannedAt] = ()) -> Steps:
        """Return the plain steps and the inferred steps `planned`, in order."""
        if not len(self.entry):
            none, address = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
            return joined(Steps(self.kind, self.entry, address, none, address), planned)
        places, (kind, entry, *added) = spread(planned)
        kinds, of = np.insert(self.kind, places, kind), np.insert(self.entry, places, 0)
        at = places + np.arange(len(places))
        columns: list[NDArray[Any]] = [
            column.take(of) for column in (trace.addr, trace.size, trace.stream)
        ]
        is_dictated = any_of(self.kind, (StepKind.DICTATE,))
        dictated = np.flatnonzero(np.insert(is_dictated, places, False))
        of[dictated] += 1
        columns[2][dictated] = trace.stream[of[dictated]]
        for column, new in zip(columns, added, strict=True):
            column[at] = np.array(new, dtype=column.dtype)
        of[at] = entry
        return Steps(kinds, of, *columns)
