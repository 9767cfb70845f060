"""Replay written as a recording, as PyTorch would have recorded the replayed run.

Actions, addresses, sizes and segments come from the replay.  Stacks, times and annotations come
from the entries of the replayed recording.  If the replay is an exact baseline, the result is equal
to the replayed recording.

A request and its free keep the stack of their entry.  Driver calls and delayed frees that happen
during a request get the stack of the request, as in PyTorch.  Entries of empty_cache get the stack
of the next request or free, because the stack of the call is not known.
Source: semantics 6.1 to 6.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim.core import CachingAllocator
from allocsim.export.history_columns import History, HistoryWatch, columns_of, own_entries
from allocsim.recording import Action, Mark, Provenance, Recording, Trace, read_snapshot
from allocsim.replaying import Prepared, bytes_of, prepare, replay_prepared
from allocsim.simulation import DeviceRun, Hints, Progress, Run, Setting
from allocsim.state import ALLOCATED, DEFAULT_POOL, BlockState, SegmentState

__all__ = ["History", "HistoryWatch", "Simulated", "columns_of", "simulate", "simulate_prepared"]

_SNAPSHOT_BOUND = 1 << 40
_NO_CONTEXT = ("N/A", "")
"""Values that PyTorch writes for a missing compile_context and a missing user_metadata."""
_MAPS = (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """Result of `simulate`.

    runs: replay of each device.
    recording: recording that PyTorch would have written.
    """

    runs: tuple[Run, ...]
    recording: Recording


class _Watch(HistoryWatch):
    """Observer that keeps the history, and the allocator for its final state."""

    allocator: CachingAllocator

    def began(self, allocator: CachingAllocator) -> None:
        super().began(allocator)
        self.allocator = allocator


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
    """Replay `recording`, and convert the replay to a recording as PyTorch would have written it.

    command: command line to note in the result.
    The other parameters and the errors are the same as in `replay`.
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
    """Convert replays of prepared devices of `recording` to a recording.

    setting, memory: setting and device memory in bytes; None for the recorded ones.
    command: command line to note in the result.
    """
    runs, traces, states = [], [], []
    for prepared in devices:
        watch = _Watch()
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
    """Return a provenance that names the model, with the recorded context memory and rank.

    state: final state in the layout of the release, which may not contain the conf.
    """
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
    entry = _source_entries(history, recorded, run)
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
        marks=_marks(recorded.marks, entry, run.stopped_at),
    )


def _source_entries(history: History, recorded: Trace, run: DeviceRun) -> NDArray[np.int64]:
    """Return, for each row of `history`, the entry whose stack and time the row gets.

    While the replay equals the recording, it is the entry that is equal to the row.
    """
    entry = history.entry.copy()
    own = own_entries(recorded, run)
    entry[: len(own)] = own
    return entry


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
    segments: Sequence[SegmentState], of_block: Mapping[int, int], known: Sequence[SegmentState]
) -> tuple[SegmentState, ...]:
    """Add stacks to the segments and their allocated blocks.

    of_block: number of the stack of each block, by address.
    known: recorded segments.  A segment gets a stack only from these, because PyTorch keeps it on
        one of the segment's blocks, and loses it when blocks merge.
    """
    of_segment = {each.address: each.frames for each in known}

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


def _marks(
    marks: Sequence[Mark], entry: NDArray[np.int64], stopped_at: int | None
) -> tuple[Mark, ...]:
    """Return the recorded marks up to `stopped_at`, with rows of the history as entry numbers.

    entry: recorded entry of each row.
    """
    reached = np.maximum.accumulate(entry) if len(entry) else entry
    return tuple(
        replace(mark, entry=int(np.searchsorted(reached, mark.entry)))
        for mark in marks
        if stopped_at is None or mark.entry <= stopped_at
    )
