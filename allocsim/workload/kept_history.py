"""Convert the history of a `CachingAllocator` to a recording.

Entries and addresses are those of the allocator.  Only the stack of each entry and the provenance
of the recording are added.  Source: semantics 6.1 to 6.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim.core import CachingAllocator, TraceEntry
from allocsim.recording import Action, FrameTable, Provenance, Recording, Trace, read_snapshot
from allocsim.state import DEFAULT_POOL, INACTIVE, BlockState, PoolId, SegmentState

_SNAPSHOT_BOUND = 1 << 40
_CODES = {action.text: int(action) for action in Action}


class KeptHistory:
    """Entries of one device as columns, to which further entries are appended."""

    def __init__(self) -> None:
        self._pools: dict[PoolId, int] = {}
        self._columns: list[dict[str, NDArray[Any]]] = []

    def take(
        self, history: Sequence[TraceEntry], frames: NDArray[np.int64]
    ) -> dict[str, NDArray[Any]]:
        """Append entries and return them as columns.

        frames: stack number of each entry; -1 without a stack.
        """
        columns = list(zip(*history, strict=True)) or [()] * 5
        actions, addresses, sizes, streams, pools = columns
        for pool in dict.fromkeys(pools):
            self._pools.setdefault(pool, len(self._pools))
        taken: dict[str, NDArray[Any]] = {
            "action": np.array([_CODES[action] for action in actions], dtype=np.uint8),
            "addr": np.array(addresses, dtype=np.uint64),
            "size": np.array(sizes, dtype=np.int64),
            "stream": np.array(streams, dtype=np.uint64),
            "pool_id": np.array([self._pools[pool] for pool in pools], dtype=np.int32),
            "frames": frames.astype(np.int32),
        }
        self._columns.append(taken)
        return taken

    def put_in(
        self,
        action: NDArray[np.uint8],
        addr: NDArray[np.uint64],
        size: NDArray[np.int64],
        frames: NDArray[np.int64],
    ) -> None:
        """Append entries of stream 0 and the default pool that the allocator did not make."""
        nothing = np.zeros(len(action), dtype=np.uint64)
        pool = self._pools.setdefault(DEFAULT_POOL, len(self._pools))
        self._columns.append(
            {
                "action": action,
                "addr": addr,
                "size": size,
                "stream": nothing,
                "pool_id": np.full(len(action), pool, dtype=np.int32),
                "frames": frames.astype(np.int32),
            }
        )

    def arrange(self, order: NDArray[np.int64]) -> None:
        """Reorder all entries; `order` has the old index of each new entry."""
        names = self._columns[0]
        whole = {name: np.concatenate([each[name] for each in self._columns]) for name in names}
        self._columns = [{name: column[order] for name, column in whole.items()}]

    def recording(
        self, path: str, allocator: CachingAllocator, table: FrameTable, provenance: Provenance
    ) -> Recording:
        """Return the recording of `allocator`, all of whose history entries were appended.

        path: name of the recording.
        table: table of the stacks whose numbers the entries have.
        provenance: versions, device and command for the recording.
        """
        empty = read_snapshot(path, allocator.snapshot(), _SNAPSHOT_BOUND)
        allocator.take_history()
        columns = {
            name: np.concatenate([chunk[name] for chunk in self._columns])
            for name in self._columns[0]
        }
        segments = tuple(s for trace in empty.devices for s in trace.segments)
        actions = columns["action"]
        trace = Trace(
            device=allocator.device_index,
            **columns,  # type: ignore[arg-type]
            segments=_with_code(segments, columns),
            pool_ids=tuple(self._pools),
            frame_table=table,
            time_us=np.arange(len(actions), dtype=np.int64),
            texts=("N/A", ""),
            compile_context=np.full(len(actions), 0, np.int32),
            user_metadata=np.full(len(actions), 1, np.int32),
        )
        mapping = (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
        markers = {f"action {action.text}" for action in mapping if action in actions}
        return replace(
            empty,
            devices=(trace,),
            frame_table=table,
            markers=empty.markers | markers | {"entries", *allocator.release.entry_fields},
            provenance=provenance,
        )


def _with_code(
    segments: tuple[SegmentState, ...], columns: Mapping[str, NDArray[Any]]
) -> tuple[SegmentState, ...]:
    """Return the segments with the stack number of each active block."""
    rows = np.flatnonzero(columns["action"] == Action.ALLOC)
    # The last allocation at an address counts.
    code = dict(zip(columns["addr"][rows].tolist(), columns["frames"][rows].tolist(), strict=True))

    def known(block: BlockState) -> BlockState:
        frames = -1 if block.state == INACTIVE else code.get(block.address, -1)
        return replace(block, frames=frames)

    return tuple(replace(each, blocks=tuple(map(known, each.blocks))) for each in segments)
