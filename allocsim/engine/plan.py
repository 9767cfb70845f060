"""What a trace makes an allocator do, step by step.

Rule: alloc, free_requested, free_completed and oom drive a replay; all else is compared, except
that driver bases may be dictated and that releases no request explains are the program's own
empty_cache calls.  A free_completed right after its free_requested is one free.  A private pool
whose memory goes back to the driver was released before, at a time that nothing tells.
Source: semantics 2.5, 6.2, 6.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim.core import FREE, FREE_COMPLETED, FREE_REQUESTED, MALLOC, PlainStep
from allocsim.state import PoolId
from allocsim.trace import Action, PoolColumn, Trace, pools_of
from allocsim.units import MIB

__all__ = ["Plan", "Step", "StepKind", "Steps", "plan_of"]


class StepKind(IntEnum):
    """What to do next.  The first four are the core's own."""

    ALLOC = MALLOC
    FREE = FREE
    FREE_REQUEST = FREE_REQUESTED
    FREE_COMPLETE = FREE_COMPLETED
    OOM = 4
    DICTATE = 5
    """The driver's next base was `addr`."""
    EMPTY_CACHE = 6
    SCOPE = 7
    """Requests go to pool number `size` from here on (-1: the default pool)."""
    END_POOL = 8
    """Nothing uses pool number `size` any more."""


PAGE = 2 * MIB
"""What the driver hands memory out in."""

Step = PlainStep
"""(kind, addr, size, stream)"""

_Planned = tuple[int, int, int, int, int]
"""(kind, entry, addr, size, stream)"""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a plan as columns; row i is step i."""

    kind: NDArray[np.uint8]
    entry: NDArray[np.int64]
    addr: NDArray[np.uint64]
    size: NDArray[np.int64]
    stream: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.kind)

    def undictated(self) -> Steps:
        """Those that hang on the program alone, not on where the recorded driver's memory lay."""
        kept = self.kind != StepKind.DICTATE
        columns = (self.kind, self.entry, self.addr, self.size, self.stream)
        return Steps(*(column[kept] for column in columns))

    def rows(self, start: int, stop: int) -> Iterator[Step]:
        """Steps [start, stop) as rows of Python's own numbers."""
        columns = (self.kind, self.addr, self.size, self.stream)
        return zip(*(column[start:stop].tolist() for column in columns), strict=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one device.

    max_reserved: the most memory that was held at any entry.  capacity: what the allocator had
    to itself, free plus reserved, as the first `oom` entry tells; None without one.
    refused_below: the least `reserved + wanted` that the driver seems to have refused, None if
    nothing was released for a request.  n_empty_cache: calls that the releases imply.
    pools: the private pools that SCOPE steps number.
    """

    steps: Steps
    max_reserved: int
    capacity: int | None
    refused_below: int | None
    n_empty_cache: int
    pools: tuple[PoolId, ...]

    @property
    def inferred_capacity(self) -> int | None:
        """The device that explains every release: known from an `oom` entry, or bounded."""
        if self.capacity is not None or self.refused_below is None:
            return self.capacity
        return self.refused_below - PAGE


def plan_of(trace: Trace, reserved_at_start: int, collects_above: int | None = None) -> Plan:
    """The plan of `trace`, which begins with `reserved_at_start` bytes held from the driver.

    collects_above: reserved bytes above which a request collects garbage; None: it never does.
    """
    reserved = reserved_at_start + np.cumsum(_moved(trace))
    max_reserved = max(reserved_at_start, int(reserved.max(initial=0)))
    ooms = np.flatnonzero(trace.action == Action.OOM)
    capacity = int(reserved[ooms[0]]) + int(trace.addr[ooms[0]]) if len(ooms) else None
    pools = pools_of(trace)
    sorted_out = _sort_out(trace, pools)
    fits = capacity or max_reserved
    planner = _Planner(trace, pools, reserved_at_start, fits, collects_above)
    for entry in np.flatnonzero(sorted_out.is_planned).tolist():
        planner.take(entry, bool(sorted_out.is_immediate[entry]))
    planner.end()
    return Plan(
        _joined(trace, sorted_out, planner),
        max_reserved,
        capacity,
        planner.refused_below,
        planner.n_empty_cache,
        pools.ids,
    )


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Masks over the entries.

    is_immediate: a free_requested whose free_completed is the next entry.
    is_plain: a step by itself, whatever lies around it.
    is_planned: the few that the planner looks at one by one: whatever is not plain, and the
    driving entry that follows it.
    """

    is_immediate: NDArray[np.bool_]
    is_plain: NDArray[np.bool_]
    is_planned: NDArray[np.bool_]


def _sort_out(trace: Trace, pools: PoolColumn) -> _Sorted:
    action, addr = trace.action, trace.addr
    completes = np.zeros(len(trace), dtype=bool)
    completes[1:] = (
        (action[:-1] == Action.FREE_REQUESTED)
        & (action[1:] == Action.FREE_COMPLETED)
        & (addr[:-1] == addr[1:])
    )
    is_immediate = np.zeros(len(trace), dtype=bool)
    is_immediate[:-1] = completes[1:]
    is_request = np.isin(action, (Action.ALLOC, Action.OOM))
    is_driving = is_request | (action == Action.FREE_REQUESTED)
    is_silent = completes | np.isin(action, (Action.SNAPSHOT, Action.ANNOTATE))
    is_planned = (~is_driving & ~is_silent) | (action == Action.OOM)
    driving = np.flatnonzero(is_driving)
    following = np.searchsorted(driving, np.flatnonzero(is_planned))
    is_planned[driving[following[following < len(driving)]]] = True
    is_planned[_scope_changes(pools, np.flatnonzero(is_request))] = True
    return _Sorted(is_immediate, is_driving & ~is_planned, is_planned)


def _scope_changes(pools: PoolColumn, requests: NDArray[np.intp]) -> NDArray[np.intp]:
    """The requests that go to another pool than the request before them."""
    pool = pools.number[requests]
    before = np.concatenate(([-1], pool[:-1])) if len(pool) else pool
    changed: NDArray[np.intp] = requests[pool != before]
    return changed


def _joined(trace: Trace, sorted_out: _Sorted, planner: _Planner) -> Steps:
    """Plain steps and planned ones in the order of the entries."""
    plain = np.flatnonzero(sorted_out.is_plain)
    is_alloc = trace.action[plain] == Action.ALLOC
    frees = np.where(sorted_out.is_immediate[plain], StepKind.FREE, StepKind.FREE_REQUEST)
    planned = list(zip(*planner.steps, strict=True)) or [()] * 5
    columns: tuple[NDArray[Any], ...] = (
        np.where(is_alloc, StepKind.ALLOC, frees).astype(np.uint8),
        plain,
        trace.addr[plain],
        trace.size[plain],
        trace.stream[plain],
    )
    places = np.searchsorted(plain, np.array(planner.at, dtype=np.intp), side="right")
    return Steps(
        *(
            np.insert(mine, places, np.array(theirs, dtype=mine.dtype))
            for mine, theirs in zip(columns, planned, strict=True)
        )
    )


def _moved(trace: Trace) -> NDArray[np.int64]:
    """Bytes that each entry takes from the driver (negative: gives back)."""
    grows = np.isin(trace.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    shrinks = np.isin(trace.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    moved: NDArray[np.int64] = trace.size * (grows.astype(np.int64) - shrinks.astype(np.int64))
    return moved


class _Planner:
    """One pass over the planned entries; what lies between two driving ones waits here.

    steps, at: the steps, and beside each the entry at whose place it is taken.
    """

    def __init__(
        self,
        trace: Trace,
        pools: PoolColumn,
        reserved: int,
        fits: int,
        collects_above: int | None,
    ) -> None:
        self.steps: list[_Planned] = []
        self.at: list[int] = []
        self.n_empty_cache = 0
        self.refused_below: int | None = None
        self._trace = trace
        self._pools = pools.number
        self._fits = fits
        self._reserved = reserved
        self._collects_above = collects_above
        self._before_release: int | None = None
        self._gave_small = False
        self._n_early = 0
        self._completed: list[_Planned] = []
        self._base: tuple[int, int] | None = None
        self._pool = -1
        self._ended: dict[int, None] = {}

    def take(self, entry: int, is_immediate: bool) -> None:
        """One entry."""
        trace = self._trace
        action, addr = int(trace.action[entry]), int(trace.addr[entry])
        size, stream = int(trace.size[entry]), int(trace.stream[entry])
        if action in (Action.ALLOC, Action.OOM):
            kind = StepKind.ALLOC if action == Action.ALLOC else StepKind.OOM
            self._request((kind, entry, addr, size, stream), int(self._pools[entry]))
        elif action == Action.FREE_REQUESTED:
            self.settle(entry)
            kind = StepKind.FREE if is_immediate else StepKind.FREE_REQUEST
            self.steps.append((kind, entry, addr, size, stream))
        elif action == Action.FREE_COMPLETED:
            self._completed.append((StepKind.FREE_COMPLETE, entry, addr, size, stream))
        elif action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            if self._base is None:
                self._base = (addr, size)
            self._reserved += size
        elif action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            self._release(entry, size)
        self.at += [entry] * (len(self.steps) - len(self.at))

    def _release(self, entry: int, size: int) -> None:
        if self._before_release is None:
            self._before_release = self._reserved
            # Garbage is collected before anything is waited for.
            self._n_early = len(self._completed) if self._collects else 0
        self._reserved -= size
        self._gave_small |= size <= PAGE
        if self._pools[entry] >= 0:
            self._ended[int(self._pools[entry])] = None

    @property
    def _collects(self) -> bool:
        """Whether a request would have collected garbage before the releases seen."""
        before = self._before_release
        return self._collects_above is not None and (before or 0) > self._collects_above

    def end(self) -> None:
        """After the last entry."""
        last = len(self._trace)
        self.settle(last - 1)
        self.at += [last] * (len(self.steps) - len(self.at))

    def settle(self, entry: int) -> None:
        """Completions apply as they were recorded; releases that no request needed were called."""
        self.steps.extend(self._completed)
        self._completed = []
        self.steps.extend((StepKind.END_POOL, entry, 0, pool, 0) for pool in self._ended)
        self._ended = {}
        self._gave_small = False
        self._n_early = 0
        if self._before_release is not None:
            self._before_release = None
            self.n_empty_cache += 1
            self.steps.append((StepKind.EMPTY_CACHE, entry, 0, 0, 0))

    def _request(self, step: _Planned, pool: int) -> None:
        """A request, and what was released on its way if it was refused at first.

        Then completions come after the request: it was the release that waited for them.
        """
        entry, base = step[1], self._base
        late: list[_Planned] = []
        if self._was_refused(step[0]) or self._was_collected():
            late = self._completed[self._n_early :]
            self._completed = self._completed[: self._n_early]
            self._before_release = None
        self.settle(entry)
        self._scope(entry, pool, step[4])
        if base is not None:
            self.steps.append((StepKind.DICTATE, entry, base[0], base[1], step[4]))
            self._base = None
        self.steps += [step, *late]

    def _was_refused(self, kind: int) -> bool:
        """Whether a full device explains the releases before this request."""
        if kind == StepKind.OOM:
            return True  # whatever completed by then did not help it
        if self._before_release is None:
            return False
        if self._base is None:
            return False
        would_hold = self._before_release + self._base[1]
        if would_hold <= self._fits:
            return False
        self.refused_below = min(would_hold, self.refused_below or would_hold)
        return True

    def _was_collected(self) -> bool:
        """Whether garbage collection explains them: it takes large segments only (1.9)."""
        return self._base is not None and self._collects and not self._gave_small

    def _scope(self, entry: int, pool: int, stream: int) -> None:
        if pool != self._pool:
            self._pool = pool
            self.steps.append((StepKind.SCOPE, entry, 0, pool, stream))
