"""What a trace makes an allocator do, step by step.

Rule: alloc, free_requested, free_completed and oom drive a replay; all else is compared, except
that driver bases may be dictated and that releases no request explains are the program's own
empty_cache calls.  A free_completed right after its free_requested is one free.
Source: semantics 6.2, 6.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from allocsim.trace import Action, Trace
from allocsim.units import MIB

__all__ = ["Plan", "Step", "StepKind", "plan_of"]


class StepKind(IntEnum):
    """What to do next."""

    ALLOC = 0
    FREE = 1
    FREE_REQUEST = 2
    FREE_COMPLETE = 3
    OOM = 4
    DICTATE = 5
    """The driver's next base was `addr`."""
    EMPTY_CACHE = 6
    SCOPE = 7
    """Requests go to pool number `size` from here on (-1: the default pool)."""


PAGE = 2 * MIB
"""What the driver hands memory out in."""

Step = tuple[int, int, int, int, int]
"""(kind, entry, addr, size, stream)"""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one device.

    max_reserved: the most memory that was held at any entry.  capacity: what the allocator had
    to itself, free plus reserved, as the first `oom` entry tells; None without one.
    refused_below: the least `reserved + wanted` that the driver seems to have refused, None if
    nothing was released for a request.  n_empty_cache: calls that the releases imply.
    """

    steps: list[Step]
    max_reserved: int
    capacity: int | None
    refused_below: int | None
    n_empty_cache: int

    @property
    def inferred_capacity(self) -> int | None:
        """The device that explains every release: known from an `oom` entry, or bounded."""
        if self.capacity is not None or self.refused_below is None:
            return self.capacity
        return self.refused_below - PAGE


def plan_of(trace: Trace, reserved_at_start: int) -> Plan:
    """The plan of `trace`, which begins with `reserved_at_start` bytes held from the driver."""
    reserved = reserved_at_start + np.cumsum(_moved(trace))
    max_reserved = max(reserved_at_start, int(reserved.max(initial=0)))
    ooms = np.flatnonzero(trace.action == Action.OOM)
    capacity = int(reserved[ooms[0]]) + int(trace.addr[ooms[0]]) if len(ooms) else None
    planner = _Planner(trace, reserved_at_start, capacity or max_reserved)
    for entry, row in enumerate(_rows(trace)):
        planner.take(entry, *row)
    planner.settle(-1)
    return Plan(planner.steps, max_reserved, capacity, planner.refused_below, planner.n_empty_cache)


def _moved(trace: Trace) -> NDArray[np.int64]:
    """Bytes that each entry takes from the driver (negative: gives back)."""
    grows = np.isin(trace.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    shrinks = np.isin(trace.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    return trace.size * (grows.astype(np.int64) - shrinks.astype(np.int64))


def _rows(trace: Trace) -> Iterator[tuple[int, int, int, int, int, bool]]:
    """(action, addr, size, stream, pool, whether the same address is completed right after)."""
    action, addr = trace.action, trace.addr
    is_immediate = np.zeros(len(trace), dtype=bool)
    is_immediate[:-1] = (
        (action[:-1] == Action.FREE_REQUESTED)
        & (action[1:] == Action.FREE_COMPLETED)
        & (addr[:-1] == addr[1:])
    )
    return zip(
        action.tolist(),
        addr.tolist(),
        trace.size.tolist(),
        trace.stream.tolist(),
        trace.pool_id.tolist(),
        is_immediate.tolist(),
        strict=True,
    )


class _Planner:
    """One pass over the entries; what lies between two driving entries waits here."""

    def __init__(self, trace: Trace, reserved: int, fits: int) -> None:
        self.steps: list[Step] = []
        self.n_empty_cache = 0
        self.refused_below: int | None = None
        self._fits = fits
        self._reserved = reserved
        self._before_release: int | None = None
        self._completed: list[Step] = []
        self._base: tuple[int, int] | None = None
        self._skip_completion = False
        self._pool = -1
        self._default_pools = {i for i, pool in enumerate(trace.pool_ids) if pool == (0, 0)} | {-1}

    def take(
        self,
        entry: int,
        action: int,
        addr: int,
        size: int,
        stream: int,
        pool: int,
        is_immediate: bool,
    ) -> None:
        """One entry."""
        if action in (Action.ALLOC, Action.OOM):
            kind = StepKind.ALLOC if action == Action.ALLOC else StepKind.OOM
            self._request((kind, entry, addr, size, stream), pool)
        elif action == Action.FREE_REQUESTED:
            self.settle(entry)
            kind = StepKind.FREE if is_immediate else StepKind.FREE_REQUEST
            self._skip_completion = is_immediate
            self.steps.append((kind, entry, addr, size, stream))
        elif action == Action.FREE_COMPLETED:
            if not self._skip_completion:
                self._completed.append((StepKind.FREE_COMPLETE, entry, addr, size, stream))
            self._skip_completion = False
        elif action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            if self._base is None:
                self._base = (addr, size)
            self._reserved += size
        elif action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            if self._before_release is None:
                self._before_release = self._reserved
            self._reserved -= size

    def settle(self, entry: int) -> None:
        """Completions apply as they were recorded; releases that no request needed were called."""
        self.steps.extend(self._completed)
        self._completed = []
        if self._before_release is not None:
            self._before_release = None
            self.n_empty_cache += 1
            self.steps.append((StepKind.EMPTY_CACHE, entry, 0, 0, 0))

    def _request(self, step: Step, pool: int) -> None:
        """A request, and what was released on its way if the driver refused it at first.

        Then completions come after the request: it was the release that waited for them.
        """
        entry, base = step[1], self._base
        late: list[Step] = []
        if self._was_refused(step[0]):
            late, self._completed = self._completed, []
            self._before_release = None
        self.settle(entry)
        self._scope(entry, -1 if pool in self._default_pools else pool)
        if base is not None:
            self.steps.append((StepKind.DICTATE, entry, base[0], base[1], step[4]))
            self._base = None
        self.steps += [step, *late]

    def _was_refused(self, kind: int) -> bool:
        """Whether a full device explains the releases before this request."""
        if self._before_release is None:
            return False
        if kind == StepKind.OOM:
            return True
        if self._base is None:
            return False
        would_hold = self._before_release + self._base[1]
        if would_hold <= self._fits:
            return False
        self.refused_below = min(would_hold, self.refused_below or would_hold)
        return True

    def _scope(self, entry: int, pool: int) -> None:
        if pool != self._pool:
            self._pool = pool
            self.steps.append((StepKind.SCOPE, entry, 0, pool, 0))
