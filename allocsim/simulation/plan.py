"""Plan of a replay: the steps that an allocator runs, as columns.

The entries alloc, free_requested, free_completed and oom become steps; all other entries are
effects of the allocator.  A plan also contains calls that left no entry, as inferred by
`search.py`, and the driver's recorded answers.  Source: semantics 2.5, 6.2, 6.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.core import (
    BRIEF,
    FREE,
    FREE_COMPLETED,
    FREE_REQUESTED,
    MALLOC,
    PAGE,
    StepRow,
    step_rows,
)
from allocsim.state import PoolId


class StepKind(IntEnum):
    """Kind of a step of a plan; the first five have the numbers that the core uses.

    ALLOC is a request, and OOM is a request that fails in the recording.  FREE is a free that
    completes at once.  FREE_REQUEST and FREE_COMPLETE are the two parts of a free that waits for
    other streams.
    """

    BRIEF = BRIEF
    """An ALLOC whose FREE is the next step; only in rows for the core, never in `Steps.kind`."""
    ALLOC = MALLOC
    FREE = FREE
    FREE_REQUEST = FREE_REQUESTED
    FREE_COMPLETE = FREE_COMPLETED
    OOM = 5
    DICTATE = 6
    """The driver's next segment is at `addr`."""
    EMPTY_CACHE = 7
    SCOPE = 8
    """Later requests go to pool number `size` (-1: the default pool)."""
    END_POOL = 9
    """All users of pool number `size` end their use."""
    DELETE_POOL = 10
    """The MemPool of pool number `size` is deleted, and its memory returns to the driver."""
    ROOM = 11
    """The driver can provide `size` bytes in total (-1: the whole device)."""
    AWAIT = 12
    """If the device is full, wait for the free of `addr` after the frees of earlier AWAIT steps."""
    SETTINGS = 13
    """The program sets the conf `Plan.changes[size]`."""
    FRACTION = 14
    """The program sets the memory fraction `Plan.changes[size]`."""


Step = StepRow
"""(kind, addr, size, stream)"""

Planned = tuple[int, int, int, int, int]
"""(kind, entry, addr, size, stream)"""

Change = str | float
"""Value that a program sets at run time: a conf or a memory fraction."""


@dataclass(frozen=True)
class Steps:
    """Steps of a plan as columns; item i of each column belongs to step i.

    addr: recorded address of the block or segment.
    size: bytes, or the number that `StepKind` explains.
    """

    kind: NDArray[np.uint8]
    entry: NDArray[np.int64]
    addr: NDArray[np.uint64]
    size: NDArray[np.int64]
    stream: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.kind)

    def of_program(self) -> Steps:
        """Return the steps without the driver's answers: segment addresses and refusals."""
        return self.taken(np.flatnonzero(self.is_of_program))

    def taken(self, indices: NDArray[np.intp]) -> Steps:
        return Steps(*(column.take(indices) for column in self._columns()))

    @property
    def is_of_program(self) -> NDArray[np.bool_]:
        return ~any_of(self.kind, (StepKind.DICTATE, StepKind.ROOM, StepKind.AWAIT))

    def without(self, *kinds: StepKind) -> Steps:
        return self.taken(np.flatnonzero(~any_of(self.kind, kinds)))

    def part(self, start: int, stop: int) -> Steps:
        return Steps(*(column[start:stop] for column in self._columns()))

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.kind, self.entry, self.addr, self.size, self.stream

    def rows(self, start: int, stop: int) -> Iterator[Step]:
        """Yield steps [start, stop) as tuples of Python integers, for the loop of the core."""
        kind = self.kind_or_brief[start:stop]
        if len(kind) and kind[-1] == StepKind.BRIEF:  # its free is outside the range
            kind = kind.copy()
            kind[-1] = StepKind.ALLOC
        others = (self.addr, self.size, self.stream)
        return step_rows((kind, *(column[start:stop] for column in others)))

    @cached_property
    def empties_cache(self) -> bool:
        return bool(any_of(self.kind, (StepKind.EMPTY_CACHE,)).any())

    @cached_property
    def kind_or_brief(self) -> NDArray[np.uint8]:
        """Kinds of the steps for the core: BRIEF for an ALLOC whose FREE is the next step."""
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
    """Steps of one device, and facts about the device and the program inferred from the recording.

    max_reserved: highest reserved memory after any entry, in bytes.
    capacity: free plus reserved bytes at the first `oom` entry; None without such an entry.
    refused_below: lowest reserved memory, in bytes, that a seemingly refused request would have
        caused; the device has less room.  None if no request seems refused.
    n_empty_cache: number of inferred empty_cache calls that returned memory to the driver.
    limit: memory limit that the program set by a call, in bytes, inferred from its garbage
        collections; None if unknown.
    limits: lowest and highest possible `limit` in bytes; None if the recording determines it.
    is_whole: False if no steps were found that reproduce the recording; a replay of `steps` then
        differs from it.
    is_proved: the steps were replayed, and every entry was equal to the recorded one.
    fits: size of the device in bytes that must be assumed to reproduce the recording; None if no
        assumption is needed.
    n_named: number of these empty_cache calls that the Python stack of an entry names.
    n_either: number of times that either a full device or empty_cache explains released memory.
    parts_at: first entry that differs, if `is_whole` is False and an entry differs; else None.
    deleted_pools: (first entry, last entry) of each private pool that was inferred because the
        program deleted it before the end.
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
    parts_at: int | None = None
    deleted_pools: tuple[tuple[int, int], ...] = ()

    @property
    def empties_cache(self) -> bool:
        return self.steps.empties_cache

    @property
    def n_deleted(self) -> int:
        return int(np.count_nonzero(self.steps.kind == StepKind.DELETE_POOL))

    @property
    def n_refused_with_room(self) -> int:
        return int(np.count_nonzero((self.steps.kind == StepKind.ROOM) & (self.steps.size >= 0)))

    @property
    def inferred_capacity(self) -> int | None:
        """Bytes of the device, inferred from the recording; None if no request seems refused."""
        if self.capacity is not None or self.refused_below is None:
            return self.capacity
        return self.refused_below - PAGE


PlannedAt = tuple[int, Sequence[Planned]]
"""(number of steps before the planned steps, planned steps)"""


def joined(steps: Steps, planned: Sequence[PlannedAt]) -> Steps:
    """Return `steps` with the planned steps inserted at their positions.

    planned: pairs of (number of steps before the planned steps, planned steps).
    """
    places, added = spread(planned)
    return Steps(
        *(
            np.insert(column, places, np.array(new, dtype=column.dtype))
            for column, new in zip(steps._columns(), added, strict=True)
        )
    )


def spread(planned: Sequence[PlannedAt]) -> tuple[NDArray[np.intp], list[tuple[int, ...]]]:
    """Return the columns of planned steps, and the index in a plan to insert each step at."""
    columns = list(zip(*(step for _, steps in planned for step in steps), strict=True))
    places = np.repeat(
        np.array([after for after, _ in planned], dtype=np.intp),
        [len(steps) for _, steps in planned],
    )
    return places, columns or [()] * 5
