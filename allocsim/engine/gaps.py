"""A trace as the program's own steps, and what was written down between them.

Rule: alloc, oom and free_requested are the program's; a free_completed right after its
free_requested is one free.  Everything else is an effect, and waits in the gap before the next
step of the program.  Source: semantics 6.2, 6.6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import any_of
from allocsim.trace import Action, PoolColumn, Trace, completes_at_once

__all__ = ["Call", "Gap", "Recorded", "Sorted", "gaps_of", "sort_out"]

_REQUESTS = (Action.ALLOC, Action.OOM)
_GROWS = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_SHRINKS = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


class Recorded(NamedTuple):
    """An entry of the trace.  pool: its number among the private pools, -1 for the default one."""

    number: int
    action: int
    addr: int
    size: int
    stream: int
    pool: int


class Call(NamedTuple):
    """What a program is known to have called.

    entry: how many entries came before.  kind: of its step.  number: of the pool or the change.
    """

    entry: int
    kind: int
    number: int


@dataclass(frozen=True, slots=True)
class Sorted:
    """Masks over the entries.

    is_immediate: a free_requested whose free_completed is the next entry.
    is_held: such a free, if what follows says that the allocator may have waited for it.
    is_plain: a step by itself, whatever lies around it.
    is_growth: a segment that the next entry, a plain request, was given: the base is a step.
    is_planned: those of gaps: whatever is not plain, and the step that follows it.
    """

    is_immediate: NDArray[np.bool_]
    is_held: NDArray[np.bool_]
    is_plain: NDArray[np.bool_]
    is_growth: NDArray[np.bool_]
    is_planned: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Gap:
    """What was written down between two steps of the program, and the second of them.

    free: the step before, where it is a free that seems to have been complete at once and memory
        is given back right after it; then it is no plain step.
    completed: the frees that completed; n_early of them before memory was given back.
    released: what was given back to the driver, in order.
    before, obtained: what was taken from the driver, before and after that.
    step: the step that ends the gap, None at the end of the trace.
    is_immediate: it is a free that completes at once.
    scope: the pool that requests go to from this one on; None if that is as before.
    calls: what the program is known to have called, in order.
    """

    free: Recorded | None
    completed: tuple[Recorded, ...]
    n_early: int
    released: tuple[Recorded, ...]
    before: tuple[Recorded, ...]
    obtained: tuple[Recorded, ...]
    step: Recorded | None
    is_immediate: bool
    scope: int | None
    calls: tuple[Call, ...] = ()

    @property
    def last(self) -> int:
        """The entry that the gap ends with."""
        if self.step is not None:
            return self.step.number
        effects = (*self.completed, *self.released, *self.before, *self.obtained)
        before = [call.entry - 1 for call in self.calls]
        if self.free is not None:
            before.append(self.free.number)
        return max([0, *before, *(entry.number for entry in effects)])

    @property
    def is_open(self) -> bool:
        """Whether it may be accounted for in several ways: memory was given back, or an error was
        raised although the device had room."""
        step = self.step
        if step is None or step.action != Action.OOM:
            return bool(self.released)
        return bool(self.released or self.free) or step.addr >= step.size

    @property
    def is_request(self) -> bool:
        """Whether a request ends it."""
        return self.step is not None and self.step.action in _REQUESTS


def sort_out(trace: Trace, pools: PoolColumn, calls: Sequence[Call] = ()) -> Sorted:
    """Which entries are plain steps and which belong to gaps.

    calls: what the program is known to have called.
    """
    action = trace.action
    is_requested = any_of(action, (Action.FREE_REQUESTED,))
    completes = completes_at_once(action, trace.addr)
    # A call between the two halves of a free: it was the call that waited for it.
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
    following = np.searchsorted(driving, np.flatnonzero(is_planned))
    is_planned[driving[following[following < len(driving)]]] = True
    following = np.searchsorted(driving, [call.entry for call in calls])
    is_planned[driving[following[following < len(driving)]]] = True
    # A free just before memory is given back may have been waited for.
    is_held = np.zeros(len(trace), dtype=bool)
    if len(driving):
        after = np.flatnonzero(any_of(action, _SHRINKS) | is_oom)
        is_held[driving[np.maximum(np.searchsorted(driving, after) - 1, 0)]] = True
        is_held &= is_immediate
    is_planned |= is_held
    if pools.ids:
        is_planned[_scope_changes(pools, np.flatnonzero(is_request))] = True
    # What comes before a request that is not plain is of its gap.
    is_planned[:-1] |= is_growth[:-1] & is_planned[1:]
    is_growth &= ~is_planned
    return Sorted(is_immediate, is_held, is_driving & ~is_planned, is_growth, is_planned)


def _growths(action: NDArray[np.uint8], ends_step: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The entries of one segment each, between the end of a step and the request that it is for.

    None where anything was given back or an error raised: then it is asked why one grew.
    """
    is_growth = np.zeros(len(action), dtype=bool)
    if len(action) and not any_of(action, (*_SHRINKS, Action.OOM)).any():
        is_growth[:-1] = any_of(action[:-1], _GROWS) & any_of(action[1:], (Action.ALLOC,))
        is_growth[1:] &= ends_step[:-1]
    return is_growth


def _scope_changes(pools: PoolColumn, requests: NDArray[np.intp]) -> NDArray[np.intp]:
    """The requests that go to another pool than the request before them."""
    pool = pools.number[requests]
    before = np.concatenate(([-1], pool[:-1])) if len(pool) else pool
    changed: NDArray[np.intp] = requests[pool != before]
    return changed


def gaps_of(
    trace: Trace, pools: PoolColumn, sorted_out: Sorted, calls: Sequence[Call] = ()
) -> Iterator[Gap]:
    """The gaps of a trace, in order; calls: what the program is known to have called."""
    waiting = _Waiting()
    unmade = deque(calls)
    scope = -1
    planned = np.flatnonzero(sorted_out.is_planned)
    columns = (trace.action, trace.addr, trace.size, trace.stream, pools.number)
    picked = (planned.tolist(), *(column[planned].tolist() for column in columns))
    for entry in (Recorded(*row) for row in zip(*picked, strict=True)):
        is_request = entry.action in _REQUESTS
        if not is_request and entry.action != Action.FREE_REQUESTED:
            waiting.add(entry)
            continue
        while unmade and unmade[0].entry <= entry.number:
            waiting.calls.append(unmade.popleft())
        if sorted_out.is_held[entry.number]:
            if not waiting.is_empty:
                yield waiting.gap(None, is_immediate=False, scope=None)
            waiting = _Waiting(entry)
        else:
            is_immediate = bool(sorted_out.is_immediate[entry.number])
            is_changed = is_request and entry.pool != scope
            scope = entry.pool if is_changed else scope
            yield waiting.gap(entry, is_immediate=is_immediate, scope=scope if is_changed else None)
            waiting = _Waiting()
    waiting.calls += unmade
    if not waiting.is_empty:
        yield waiting.gap(None, is_immediate=False, scope=None)


class _Waiting:
    """The effects since the last step of the program."""

    def __init__(self, free: Recorded | None = None) -> None:
        self._free = free
        self._completed: list[Recorded] = []
        self._released: list[Recorded] = []
        self._grown: tuple[list[Recorded], list[Recorded]] = ([], [])
        self._n_early = 0
        self.calls: list[Call] = []

    @property
    def is_empty(self) -> bool:
        effects = (self._completed, self._released, *self._grown)
        return not (self._free or self.calls or any(effects))

    def add(self, entry: Recorded) -> None:
        """The next effect."""
        if entry.action == Action.FREE_COMPLETED:
            self._completed.append(entry)
            self._n_early += not self._released
        elif entry.action in _GROWS:
            self._grown[bool(self._released)].append(entry)
        elif entry.action in _SHRINKS:
            self._released.append(entry)

    def gap(self, step: Recorded | None, *, is_immediate: bool, scope: int | None) -> Gap:
        """The gap that `step` ends."""
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
