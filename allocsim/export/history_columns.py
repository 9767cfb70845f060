"""History of a replay as columns, with the recorded entry that caused each row.

A row is an action of the replayed allocator, such as "alloc" or "segment_map", in order. While the
replay equals the recording, row i is entry i. After the first difference, a request or a free has
the recorded entry of that call. A driver call has the recorded entry of the next request, or of the
last entry if no request follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.core import CachingAllocator, TraceEntry
from allocsim.errors import InvariantError
from allocsim.recording import ACTION_CODES, Action, Trace
from allocsim.simulation import DeviceRun, Observer
from allocsim.state import DEFAULT_POOL, PoolId, SegmentState

NOT_THE_ALLOCATORS = (Action.SNAPSHOT, Action.ANNOTATE)
"""Kinds of entries in a recorded history that the allocator does not write."""
_DTYPES = (np.uint8, np.uint64, np.int64, np.uint64, np.int32)
_Column = NDArray[np.int64]


def columns_of(columns: Iterable[Sequence[Any]], dtypes: Sequence[Any]) -> list[NDArray[Any]]:
    """Convert columns to arrays of these dtypes; without columns, return empty arrays."""
    values = list(columns) or [()] * len(dtypes)
    return [np.array(value, dtype=dtype) for value, dtype in zip(values, dtypes, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """History of one device's replay, as columns.

    action: codes of `Action`.
    address, size: as in a recording (semantics 6.1).
    stream: raw handle of the stream.
    entry: number of the recorded entry that caused the row.
    block_size: bytes of the block of an `alloc` row, including slack; 0 in other rows. It is also 0
        for a request that failed only in the recording, because its block is freed at once.
    pool: index into `pools`; -1 for the default pool.
    start: segments before the first entry.
    pools: private pools.
    """

    action: NDArray[np.uint8]
    address: NDArray[np.uint64]
    size: _Column
    stream: NDArray[np.uint64]
    entry: _Column
    block_size: _Column
    pool: NDArray[np.int32]
    start: tuple[SegmentState, ...]
    pools: tuple[PoolId, ...]


class HistoryWatch(Observer):
    """Observer that keeps the complete history of the replay of one device."""

    keeps_history = True

    def __init__(self) -> None:
        self._start: tuple[SegmentState, ...] = ()
        self._pools: dict[PoolId, int] = {}
        self._chunks: list[list[NDArray[Any]]] = []

    def began(self, allocator: CachingAllocator) -> None:
        self._start = allocator.segments()
        self._pools = {}
        self._numbers([segment.pool_id for segment in self._start])
        self._chunks = []

    def history(self, entries: Sequence[TraceEntry]) -> None:
        if entries:
            actions, *others, pools = zip(*entries, strict=True)
            columns = ([ACTION_CODES[action] for action in actions], *others, self._numbers(pools))
            self._chunks.append(columns_of(columns, _DTYPES))

    def _numbers(self, pools: Sequence[PoolId]) -> list[int]:
        private = set(pools) - {DEFAULT_POOL}
        if not private:
            return [-1] * len(pools)
        for pool in sorted(private):
            self._pools.setdefault(pool, len(self._pools))
        return [self._pools.get(pool, -1) for pool in pools]

    def of(self, trace: Trace, device_run: DeviceRun) -> History:
        """Return the history of the finished replay `device_run` of `trace`."""
        chunks = zip(columns_of([], _DTYPES), *self._chunks, strict=True)
        action, address, size, stream, pool = map(np.concatenate, chunks)
        held = sum(segment.allocated_size for segment in self._start)
        entry, block_size = _entries_and_block_sizes(action, trace, device_run, held)
        pools = tuple(self._pools)
        return History(action, address, size, stream, entry, block_size, pool, self._start, pools)


def _entries_and_block_sizes(
    action: NDArray[np.uint8], trace: Trace, device_run: DeviceRun, held: int
) -> tuple[_Column, _Column]:
    timeline = device_run.timeline
    moved = np.diff(timeline.allocated, prepend=held)
    answered = np.zeros(len(moved), dtype=bool)
    answered[_steps_that_now_succeed(trace, device_run)] = True
    # The steps that allocated are the alloc rows in order; those that freed, the free_requested.
    entry = np.full(len(action), -1, dtype=np.int64)
    block_size = np.zeros(len(action), dtype=np.int64)
    for code, steps in (
        (Action.ALLOC, np.flatnonzero((moved > 0) | answered)),
        (Action.FREE_REQUESTED, np.flatnonzero((moved < 0) | answered)),
    ):
        rows = np.flatnonzero(action == code)
        if len(rows) != len(steps):
            raise InvariantError(
                f"{len(rows)} rows of {code.text} in the history of device {trace.device}, "
                f"expected {len(steps)}"
            )
        entry[rows] = timeline.entry[steps]
        if code == Action.ALLOC:
            block_size[rows] = moved[steps]
    ooms = np.flatnonzero(action == Action.OOM)
    if len(ooms) == len(device_run.ooms):  # an error by a memory fraction leaves no row
        entry[ooms] = [oom.entry for oom in device_run.ooms]
    own = own_entries(trace, device_run)[: len(entry)]
    entry[: len(own)] = own
    completed = np.flatnonzero(action == Action.FREE_COMPLETED)
    at_once = completed[action[completed - 1] == Action.FREE_REQUESTED]
    entry[at_once] = entry[at_once - 1]
    return _filled(entry), block_size


def own_entries(trace: Trace, device_run: DeviceRun) -> _Column:
    """Return the numbers of the leading entries of `trace` that its replay reproduced."""
    matched = 0 if device_run.fidelity is None else device_run.fidelity.entries_matched
    return np.flatnonzero(~any_of(trace.action, NOT_THE_ALLOCATORS))[:matched]


def _steps_that_now_succeed(trace: Trace, device_run: DeviceRun) -> list[int]:
    # Requests that failed only in the recording.
    failed = {oom.entry for oom in device_run.ooms}
    ooms = np.flatnonzero(trace.action[: device_run.stopped_at] == Action.OOM).tolist()
    steps = device_run.timeline.entry
    rows = ((entry, np.flatnonzero(steps == entry)) for entry in ooms if entry not in failed)
    return [int(found[-1]) for _, found in rows if len(found)]


def _filled(entry: _Column) -> _Column:
    # -1 becomes the next known number, or the last.
    known = np.flatnonzero(entry >= 0)
    if not len(known):
        return np.zeros_like(entry)
    following = np.searchsorted(known, np.arange(len(entry)))
    return entry[known[np.minimum(following, len(known) - 1)]]
