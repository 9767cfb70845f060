"""Recorded history of one device as columns: item i of every column is entry i.

All columns are read-only and have the same length.  `trace[i]` returns entry i as an `Entry`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.recording.action import INPUT_ACTIONS, Action
from allocsim.recording.by_address import ByAddress, Tiles
from allocsim.recording.frames import Frame, FrameTable
from allocsim.recording.marks import Mark
from allocsim.state import PoolId, SegmentState


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a device's trace (semantics 6.1 and 6.3).

    addr: address; for an oom, the free bytes of the device.
    size: bytes.  For allocations and frees it is the requested size before rounding, for an oom the
        requested size after rounding, and for segments the size of the segment.
    stream: raw handle.
    time_us: microseconds.
    time_us, pool_id, compile_context, user_metadata: None if not recorded.
    """

    action: Action
    addr: int
    size: int
    stream: int
    time_us: int | None = None
    frames: tuple[Frame, ...] = ()
    pool_id: PoolId | None = None
    compile_context: str | None = None
    user_metadata: str | None = None


@dataclass(frozen=True, eq=False)
class Trace:
    """Entries of one device, and its segments after the last entry.

    action: codes of `Action`.
    addr: address; for an oom, the free bytes of the device.
    size: bytes; of allocations and frees, the requested size before rounding.
    stream: raw handle.
    frames: stack number in `frame_table`; -1 for an entry without a stack.
    pool_id: index into `pool_ids`; -1 for an entry without a pool id.
    time_us: microseconds; None if not recorded.
    compile_context, user_metadata: index into `texts`, -1 for an entry without the text; None if
        not recorded.
    marks: calls that are not entries, such as empty_cache(), in order; recorded by allocsim only.
    """

    device: int
    action: NDArray[np.uint8]
    addr: NDArray[np.uint64]
    size: NDArray[np.int64]
    stream: NDArray[np.uint64]
    frames: NDArray[np.int32]
    pool_id: NDArray[np.int32]
    segments: tuple[SegmentState, ...] = ()
    pool_ids: tuple[PoolId, ...] = ()
    frame_table: FrameTable = FrameTable()  # noqa: RUF009  (frozen, and empty)
    time_us: NDArray[np.int64] | None = None
    compile_context: NDArray[np.int32] | None = None
    user_metadata: NDArray[np.int32] | None = None
    texts: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()

    def __post_init__(self) -> None:
        for column in self.columns().values():
            if column.shape != self.action.shape:
                rows = f"{column.shape} rows beside {self.action.shape} of actions"
                raise ValueError(f"a column of {rows}")
            column.flags.writeable = False

    def __len__(self) -> int:
        return len(self.action)

    @property
    def is_state_only(self) -> bool:
        """True if the trace has segments, but no requests or frees."""
        return bool(self.segments) and not len(self.inputs())

    def __getitem__(self, index: int) -> Entry:
        index = range(len(self))[index]
        pool = int(self.pool_id[index])
        return Entry(
            action=Action(int(self.action[index])),
            addr=int(self.addr[index]),
            size=int(self.size[index]),
            stream=int(self.stream[index]),
            time_us=None if self.time_us is None else int(self.time_us[index]),
            frames=self.frame_table.stack(int(self.frames[index])),
            pool_id=None if pool < 0 else self.pool_ids[pool],
            compile_context=self._text(self.compile_context, index),
            user_metadata=self._text(self.user_metadata, index),
        )

    def __iter__(self) -> Iterator[Entry]:
        return (self[index] for index in range(len(self)))

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Return the columns that were recorded, by name."""
        values = ((part.name, getattr(self, part.name)) for part in fields(self))
        return {name: value for name, value in values if isinstance(value, np.ndarray)}

    def inputs(self) -> NDArray[np.intp]:
        """Return the numbers of the entries that a replay takes as input."""
        return np.flatnonzero(any_of(self.action, INPUT_ACTIONS))

    @cached_property
    def by_address(self) -> ByAddress:
        """Allocations and frees sorted by address."""
        return ByAddress.of(self.action, self.addr)

    @cached_property
    def tiles(self) -> Tiles | None:
        """Blocks of the final segments as columns; None if a number does not fit in 64 bits."""
        return Tiles.of(self.segments)

    def most_reserved(self, held: int) -> int:
        """Return the peak of reserved memory in bytes.

        held: bytes reserved before the first entry.
        """
        _, after = self._reserved()
        return held + max(0, int(after.max(initial=0)))

    def reserved_after(self, entries: NDArray[np.intp], held: int) -> NDArray[np.int64]:
        """Return the bytes reserved after each of `entries`.

        held: bytes reserved before the first entry.
        """
        moved, after = self._reserved()
        return held + np.append(0, after)[np.searchsorted(moved, entries, side="right")]

    @cached_property
    def driver_addresses(self) -> tuple[int, int]:
        """Address of the first segment that was obtained, and the highest end of a segment."""
        grown = np.flatnonzero(any_of(self.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)))
        bases = self.addr[grown]
        ends: list[int] = (bases + self.size[grown].astype(np.uint64)).tolist()
        first = (
            int(bases[0]) if len(bases) else min((s.address for s in self.segments[:1]), default=0)
        )
        return first, max([0, *ends, *(segment.end for segment in self.segments)])

    def _reserved(self) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return the numbers of the entries that change reserved memory, and bytes after each.

        The bytes are the difference from reserved memory before the first entry.
        """
        grows = any_of(self.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
        shrinks = any_of(self.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
        moved = np.flatnonzero(grows | shrinks)
        size = self.size[moved]
        return moved, np.cumsum(np.where(grows[moved], size, -size))

    def count(self, action: Action) -> int:
        """Return the number of entries with `action`."""
        return int(np.count_nonzero(any_of(self.action, (action,))))

    def _text(self, column: NDArray[np.int32] | None, index: int) -> str | None:
        if column is None or column[index] < 0:
            return None
        return self.texts[int(column[index])]
