"""The steps of one device: what its trace makes an allocator do.

Rule: alloc, free_requested, free_completed and oom drive a replay; all else is compared, except
that what the driver answered may be dictated and that what the program did unrecorded is a step
too, once `reading.py` has found out what it was.  Source: semantics 2.5, 6.2, 6.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim.arrays import any_of
from allocsim.core import (
    BRIEF,
    FREE,
    FREE_COMPLETED,
    FREE_REQUESTED,
    MALLOC,
    PAGE,
    PlainStep,
    step_rows,
)
from allocsim.engine.gaps import Sorted
from allocsim.state import PoolId
from allocsim.trace import Action, Trace

__all__ = [
    "Change",
    "PlainSteps",
    "Plan",
    "Planned",
    "Step",
    "StepKind",
    "Steps",
    "capacity_from_oom",
    "joined",
]


class StepKind(IntEnum):
    """What to do next.  The first five are the core's own."""

    BRIEF = BRIEF
    """An ALLOC whose FREE is the next step: in rows alone, never in a plan."""
    ALLOC = MALLOC
    FREE = FREE
    FREE_REQUEST = FREE_REQUESTED
    FREE_COMPLETE = FREE_COMPLETED
    OOM = 5
    DICTATE = 6
    """The driver's next base was `addr`."""
    EMPTY_CACHE = 7
    SCOPE = 8
    """Requests go to pool number `size` from here on (-1: the default pool)."""
    END_POOL = 9
    """Nothing uses pool number `size` any more."""
    DELETE_POOL = 10
    """The MemPool of pool number `size` is deleted: the pool's own memory goes back."""
    ROOM = 11
    """The driver had `size` bytes in all to give (-1: as many as the device has)."""
    AWAIT = 12
    """A full device waits for the free of `addr` after those named before."""
    SETTINGS = 13
    """The program sets the options of the plan's change number `size`."""
    FRACTION = 14
    """The program sets the memory fraction of the plan's change number `size`."""


Step = PlainStep
"""(kind, addr, size, stream)"""

Planned = tuple[int, int, int, int, int]
"""(kind, entry, addr, size, stream)"""

Change = str | float
"""What a program sets at run time: an option string or a memory fraction."""


@dataclass(frozen=True)
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
        """Those that the program alone decides, not what the recorded driver answered."""
        kept = np.flatnonzero(self.is_undictated)
        return Steps(*(column.take(kept) for column in self._columns()))

    @property
    def is_undictated(self) -> NDArray[np.bool_]:
        """Which those are."""
        return ~any_of(self.kind, (StepKind.DICTATE, StepKind.ROOM, StepKind.AWAIT))

    def without(self, *kinds: StepKind) -> Steps:
        """Those of other kinds."""
        kept = np.flatnonzero(~any_of(self.kind, kinds))
        return Steps(*(column[kept] for column in self._columns()))

    def part(self, start: int, stop: int) -> Steps:
        """Steps [start, stop)."""
        return Steps(*(column[start:stop] for column in self._columns()))

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.kind, self.entry, self.addr, self.size, self.stream

    def rows(self, start: int, stop: int) -> Iterator[Step]:
        """Steps [start, stop) as rows of Python's own numbers, for the core's loop."""
        kind = self.kind_or_brief[start:stop]
        if len(kind) and kind[-1] == StepKind.BRIEF:  # its free is not among them
            kind = kind.copy()
            kind[-1] = StepKind.ALLOC
        others = (self.addr, self.size, self.stream)
        return step_rows((kind, *(column[start:stop] for column in others)))

    @cached_property
    def empties_cache(self) -> bool:
        """Whether one of them is a call of empty_cache; every trial of a search asks."""
        return bool(any_of(self.kind, (StepKind.EMPTY_CACHE,)).any())

    @cached_property
    def kind_or_brief(self) -> NDArray[np.uint8]:
        """The kinds, of an ALLOC whose FREE comes next BRIEF; once for all drives of a plan."""
        at = np.flatnonzero(self.addr[1:] == self.addr[:-1])
        after = at + 1
        is_brief = (
            (self.kind[at] == StepKind.ALLOC)
            & (self.kind[after] == StepKind.FREE)
            & (self.size[after] == self.size[at])
            & (self.stream[after] == self.stream[at])
        )
        kind = self.kind.copy()
        kind[at[is_brief]] = StepKind.BRIEF
        return kind


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one device.

    max_reserved: the most memory that was held at any entry.
    capacity: what the allocator had to itself, free plus reserved, as the first `oom` entry tells;
        None without one.
    refused_below: the least `reserved + wanted` that the driver seems to have refused; None if it
        seems to have refused nothing.
    n_empty_cache: calls of empty_cache that are taken to have given memory back.
    pools: the private pools that SCOPE steps number.
    limit: bytes that the program allowed itself by a call, as far as its collecting garbage tells.
    limits: the least and the most that it can have allowed itself, where more than one will do.
    fits: bytes of a device under which all that was recorded makes sense, where it had to be tried.
    is_whole: whether the model, driven through the steps, does what was recorded, as far as it was
        driven.  is_proved: whether it was driven, entry by entry, and does.
    n_named: calls of empty_cache that a Python stack names.
    n_either: requests taken for refused at first that calls of empty_cache explain as well.
    changes: what SETTINGS and FRACTION steps set.
    """

    steps: Steps
    max_reserved: int
    capacity: int | None
    refused_below: int | None
    n_empty_cache: int
    pools: tuple[PoolId, ...]
    limit: int | None = None
    limits: tuple[int, int] | None = None
    is_whole: bool = True
    is_proved: bool = False
    fits: int | None = None
    n_named: int = 0
    n_either: int = 0
    changes: tuple[Change, ...] = ()

    @property
    def empties_cache(self) -> bool:
        """Whether the program calls empty_cache, as far as is known."""
        return self.steps.empties_cache

    @property
    def n_deleted(self) -> int:
        """MemPools that were deleted."""
        return int(np.count_nonzero(self.steps.kind == StepKind.DELETE_POOL))

    @property
    def n_narrowed(self) -> int:
        """Requests for which the driver had less to give than the device has."""
        return int(np.count_nonzero((self.steps.kind == StepKind.ROOM) & (self.steps.size >= 0)))

    @property
    def inferred_capacity(self) -> int | None:
        """The device that explains every release: known from an `oom` entry, or bounded."""
        if self.capacity is not None or self.refused_below is None:
            return self.capacity
        return self.refused_below - PAGE


def capacity_from_oom(trace: Trace, reserved_at_start: int) -> int | None:
    """What was free plus held at the first `oom` entry, in bytes; None without one."""
    ooms = np.flatnonzero(any_of(trace.action, (Action.OOM,)))[:1]
    if not len(ooms):
        return None
    return int(trace.reserved_after(ooms, reserved_at_start)[0]) + int(trace.addr[ooms[0]])


@dataclass(frozen=True, slots=True)
class PlainSteps:
    """The steps of a trace that need no guess, whatever lies around them.

    kind: of each.  entry: its number; the rest of a step is that entry's.  The base of a segment
    is dictated for the entry after its own, the request.
    """

    kind: NDArray[np.uint8]
    entry: NDArray[np.intp]

    @classmethod
    def of(cls, trace: Trace, sorted_out: Sorted) -> PlainSteps:
        """Those of `trace`."""
        entry = np.flatnonzero(sorted_out.is_plain | sorted_out.is_growth)
        is_alloc = any_of(trace.action[entry], (Action.ALLOC,))
        # By a table: what is chosen by a mask that nothing foretells takes five times as long.
        kinds = (StepKind.FREE_REQUEST, StepKind.FREE, StepKind.ALLOC, StepKind.DICTATE)
        number = np.maximum(2 * is_alloc.view(np.uint8), sorted_out.is_immediate[entry])
        number += 3 * sorted_out.is_growth[entry].view(np.uint8)
        return cls(np.array(kinds, dtype=np.uint8).take(number), entry)

    def steps(self, trace: Trace, planned: Sequence[_PlannedAt] = ()) -> Steps:
        """Them and planned ones in one order, each column copied once."""
        if not len(self.entry):
            none, address = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
            return joined(Steps(self.kind, self.entry, address, none, address), planned)
        places, (kind, entry, *added) = _spread(planned)
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


_PlannedAt = tuple[int, Sequence[Planned]]
"""After how many steps, and what."""


def joined(steps: Steps, planned: Sequence[_PlannedAt]) -> Steps:
    """Steps and planned ones in one order."""
    places, added = _spread(planned)
    return Steps(
        *(
            np.insert(column, places, np.array(new, dtype=column.dtype))
            for column, new in zip(steps._columns(), added, strict=True)
        )
    )


def _spread(planned: Sequence[_PlannedAt]) -> tuple[NDArray[np.intp], list[tuple[int, ...]]]:
    """Before which step each planned one stands, and their columns."""
    columns = list(zip(*(step for _, steps in planned for step in steps), strict=True))
    places = np.repeat(
        np.array([after for after, _ in planned], dtype=np.intp),
        [len(steps) for _, steps in planned],
    )
    return places, columns or [()] * 5
