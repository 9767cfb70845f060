"""Convert a replay to the recording that PyTorch would have written of the replayed run.

Actions, addresses, sizes and segments come from the replay, and stacks, times and annotations from
the replayed recording.  If a replay under the recorded settings equals its recording, so does the
result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.core import CachingAllocator, TraceEntry
from allocsim.errors import InvariantError
from allocsim.recording import (
    ACTION_CODES,
    Action,
    Mark,
    Provenance,
    Recording,
    Trace,
    read_snapshot,
)
from allocsim.replaying import Prepared, bytes_of, prepare, replay_prepared
from allocsim.simulation import DeviceRun, Hints, Observer, Progress, Run, Setting
from allocsim.state import ALLOCATED, DEFAULT_POOL, BlockState, PoolId, SegmentState

NOT_THE_ALLOCATORS = (Action.SNAPSHOT, Action.ANNOTATE)
"""Actions of recorded entries that are not caused by a request, free or driver call."""
_SNAPSHOT_BOUND = 1 << 40
_NO_CONTEXT = ("N/A", "")
"""Values that PyTorch writes for a missing compile_context and a missing user_metadata."""
_MAPS = (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
_DTYPES = (np.uint8, np.uint64, np.int64, np.uint64, np.int32)
_Column = NDArray[np.int64]


def columns_of(columns: Iterable[Sequence[Any]], dtypes: Sequence[Any]) -> list[NDArray[Any]]:
    """Convert each column to an array of its dtype; return empty arrays if there are none."""
    values = list(columns) or [()] * len(dtypes)
    return [np.array(value, dtype=dtype) for value, dtype in zip(values, dtypes, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """History that a replay of one device wrote, as columns with one row for each entry.

    action: codes of `Action`.
    entry: index of the recorded entry that caused the row.
    block_size: bytes of the block of an `alloc` row, including slack; 0 in other rows.  A request
        that failed in the recording and succeeds in the replay also has 0, since its block is freed
        at once.
    pool: index into `pools`; -1 for the default pool.
    start: segments before the first row.
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
    """Observer of a replay; it keeps the device's allocator and the complete history."""

    keeps_history = True
    allocator: CachingAllocator

    def began(self, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self._start = allocator.segments()
        self._pools: dict[PoolId, int] = {}
        self._numbers([segment.pool_id for segment in self._start])
        self._chunks: list[list[NDArray[Any]]] = []

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
        """Return the history of a finished replay.

        trace, device_run: recorded entries of the device, and their replay.
        """
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
    # The steps that allocated correspond, in order, to the alloc rows, and the steps that freed
    # correspond to the free_requested rows.
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
    own = reproduced_entries(trace, device_run)[: len(entry)]
    entry[: len(own)] = own
    completed = np.flatnonzero(action == Action.FREE_COMPLETED)
    at_once = completed[action[completed - 1] == Action.FREE_REQUESTED]
    entry[at_once] = entry[at_once - 1]
    return _filled(entry), block_size


def reproduced_entries(trace: Trace, device_run: DeviceRun) -> _Column:
    matched = 0 if device_run.fidelity is None else device_run.fidelity.entries_matched
    return np.flatnonzero(~any_of(trace.action, NOT_THE_ALLOCATORS))[:matched]


def _steps_that_now_succeed(trace: Trace, device_run: DeviceRun) -> list[int]:
    # Returns the steps whose request failed in the recording and succeeds in the replay.
    failed = {oom.entry for oom in device_run.ooms}
    ooms = np.flatnonzero(trace.action[: device_run.stopped_at] == Action.OOM).tolist()
    steps = device_run.timeline.entry
    rows = ((entry, np.flatnonzero(steps == entry)) for entry in ooms if entry not in failed)
    return [int(found[-1]) for _, found in rows if len(found)]


def _filled(entry: _Column) -> _Column:
    # Replaces each -1 by the next known entry, or by the last known entry if none follows.
    known = np.flatnonzero(entry >= 0)
    if not len(known):
        return np.zeros_like(entry)
    following = np.searchsorted(known, np.arange(len(entry)))
    return entry[known[np.minimum(following, len(known) - 1)]]


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """Replay of a recording, and the recording that PyTorch would have written of the replayed run.

    runs: replay of each device.
    recording: recording that PyTorch would have written.
    """

    runs: tuple[Run, ...]
    recording: Recording


def simulate(
    recording: Recording,
    conf: str | None = None,
    *,
    device_memory: int | str | None = None,
    torch_version: str | None = None,
    device: int | None = None,
    hints: Hints | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> Simulated:
    """Replay `recording`, and return the recording that PyTorch would have written.

    conf: PYTORCH_CUDA_ALLOC_CONF; None for the recorded value.
    device_memory: bytes or "24GiB"; None for the recorded or inferred size.
    torch_version: PyTorch release to model; None to choose it from the recording.
    device: number of the only device to replay; None for all.
    hints: facts about the program that the recording does not contain.
    command: command line to store in the result.
    progress: callback for the progress of the replay.
    Raises the errors of `replay`.
    """
    return simulate_prepared(
        prepare(recording, device, torch_version, hints=hints),
        recording,
        None if conf is None else Setting(conf),
        bytes_of(device_memory),
        command=command,
        progress=progress,
    )


def simulate_prepared(
    devices: Sequence[Prepared],
    recording: Recording,
    setting: Setting | None = None,
    memory: int | None = None,
    *,
    command: str = "",
    progress: Progress | None = None,
) -> Simulated:
    """Replay devices of `recording`, and return the recording that PyTorch would have written.

    devices: devices of `recording`, ready for replays.
    setting: None for the recorded setting.
    memory: device memory in bytes; None for the recorded memory.
    command: command line to store in the result.
    """
    runs, traces, states = [], [], []
    for prepared in devices:
        watch = HistoryWatch()
        run = replay_prepared(
            (prepared,), setting, device_memory=memory, progress=progress, observers=(watch,)
        )
        history = watch.of(prepared.trace, run.devices[0])
        state = read_snapshot(recording.path, watch.allocator.snapshot(), _SNAPSHOT_BOUND)
        traces.append(_trace(prepared, history, run.devices[0], state, watch.allocator))
        runs.append(run)
        states.append(state)
    release = devices[0].release
    fields = {"entries", *release.entry_fields} if any(map(len, traces)) else set()
    maps = {f"action {a.text}" for a in _MAPS for trace in traces if a in trace.action}
    made = replace(
        states[0],
        devices=tuple(traces),
        frame_table=recording.frame_table,
        markers=frozenset().union(fields, maps, *(state.markers for state in states)),
        n_device_traces=max(recording.n_device_traces, *(t.device + 1 for t in traces)),
        annotations=recording.annotations if "external_annotations" in states[0].markers else (),
        provenance=_provenance(recording, runs[0], command, states[0]),
    )
    return Simulated(tuple(runs), made)


def _provenance(recording: Recording, run: Run, command: str, state: Recording) -> Provenance:
    device = run.devices[0]
    ended = device.ooms[-1].message if device.stopped_at is not None else ""
    known = recording.provenance or Provenance()
    return Provenance(
        torch_version=f"{run.torch_version}.0",
        device_name="a device that allocsim replayed a recording on",
        device_memory=device.device_memory or 0,
        context_memory=known.context_memory,
        is_phantom=True,
        command=command,
        rank=known.rank,
        oom_text=ended,
        # Old releases do not store the conf in a snapshot.
        conf_at_start=run.conf if state.settings is None else None,
    )


def _trace(
    prepared: Prepared,
    history: History,
    run: DeviceRun,
    state: Recording,
    allocator: CachingAllocator,
) -> Trace:
    recorded, fields = prepared.trace, allocator.release.entry_fields
    # While the replay equals the recording, each row gets the stack and time of its entry.
    entry = history.entry.copy()
    own = reproduced_entries(recorded, run)
    entry[: len(own)] = own
    columns: dict[str, Any] = {
        "action": history.action,
        "addr": history.address,
        "size": history.size,
        "stream": history.stream,
        "frames": recorded.frames[entry],
        "pool_id": np.full(len(entry), -1, np.int32),
    }
    if "pool_id" in fields:
        columns["pool_id"] = history.pool + 1  # index 0 is the default pool
        columns["pool_ids"] = (DEFAULT_POOL, *history.pools)
    if "time_us" in fields and recorded.time_us is not None:
        columns["time_us"] = recorded.time_us[entry]
    columns |= _texts(recorded, entry, fields)
    segments = tuple(segment for trace in state.devices for segment in trace.segments)
    known = recorded.segments if _is_exact(run) else prepared.start
    return Trace(
        device=recorded.device,
        **columns,
        segments=_with_stacks(segments, _block_stacks(prepared, run, columns), known),
        frame_table=recorded.frame_table,
        marks=_renumbered_marks(recorded.marks, entry, run.stopped_at),
    )


def _texts(recorded: Trace, entry: NDArray[np.int64], fields: Sequence[str]) -> dict[str, Any]:
    texts = list(recorded.texts)
    found: dict[str, Any] = {}
    for name, nothing in zip(("compile_context", "user_metadata"), _NO_CONTEXT, strict=True):
        if name not in fields:
            continue
        column = getattr(recorded, name)
        if column is not None:
            found[name] = column[entry]
            continue
        if nothing not in texts:
            texts.append(nothing)
        found[name] = np.full(len(entry), texts.index(nothing), np.int32)
    return found | {"texts": tuple(texts)}


def _is_exact(run: DeviceRun) -> bool:
    return run.fidelity is not None and run.fidelity.is_exact


def _block_stacks(prepared: Prepared, run: DeviceRun, columns: Mapping[str, Any]) -> dict[int, int]:
    rows = np.flatnonzero(columns["action"] == Action.ALLOC)
    addresses, stacks = columns["addr"][rows].tolist(), columns["frames"][rows].tolist()
    known = _stacks_in(prepared.start)
    # The last allocation at an address replaces earlier ones.
    known |= dict(zip(addresses, stacks, strict=True))
    return known | (_stacks_in(prepared.trace.segments) if _is_exact(run) else {})


def _stacks_in(segments: Sequence[SegmentState]) -> dict[int, int]:
    return {block.address: block.frames for each in segments for block in each.blocks}


def _with_stacks(
    segments: Sequence[SegmentState], of_block: Mapping[int, int], recorded: Sequence[SegmentState]
) -> tuple[SegmentState, ...]:
    # Only a recorded segment can have a stack: PyTorch keeps it on one of the segment's blocks, and
    # loses it when blocks merge.
    of_segment = {each.address: each.frames for each in recorded}

    def with_stack(block: BlockState) -> BlockState:
        frames = of_block.get(block.address, -1) if block.state == ALLOCATED else -1
        return replace(block, frames=frames)

    return tuple(
        replace(
            each,
            blocks=tuple(map(with_stack, each.blocks)),
            frames=of_segment.get(each.address, -1),
        )
        for each in segments
    )


def _renumbered_marks(
    marks: Sequence[Mark], entry: NDArray[np.int64], stopped_at: int | None
) -> tuple[Mark, ...]:
    reached = np.maximum.accumulate(entry) if len(entry) else entry
    return tuple(
        replace(mark, entry=int(np.searchsorted(reached, mark.entry)))
        for mark in marks
        if stopped_at is None or mark.entry <= stopped_at
    )
