"""Recorded history of one device as columns: item i of each column is a field of entry i.

The values of `Action` are stored in files, so they must never change (semantics.md, section 6.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from struct import error as StructError  # noqa: N812  (it is a class)

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import address_column, any_of, int_column, stable_order
from allocsim.recording.frames import Frame, FrameTable
from allocsim.recording.provenance import Mark
from allocsim.state import INACTIVE, PENDING, BlockState, PoolId, SegmentState


class Action(IntEnum):
    """Action of a recorded entry; property `text` is PyTorch's name of the action."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    ANNOTATE = 9

    @property
    def text(self) -> str:
        """Return the name in snapshots, e.g. "alloc", "segment_alloc" or "oom"."""
        return self.name.lower()


ACTION_CODES = {action.text: int(action) for action in Action}
"""Dictionary from PyTorch's name of an action to its code."""

INPUT_ACTIONS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.OOM)
"""Actions of entries that a replay repeats.

Other actions, such as segment_alloc, are the allocator's own; a replay only compares them.
"""

BLOCK_ACTIONS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
"""Actions on blocks.  At any one address, allocations and frees alternate."""


class Turn(IntEnum):
    """Kind of change of a block: allocation, complete free, or one of the two parts of a free.

    ALLOC, FREE_REQUESTED and FREE_COMPLETED have the values of `Action`.
    """

    ALLOC = Action.ALLOC
    FREE_REQUESTED = Action.FREE_REQUESTED
    FREE_COMPLETED = Action.FREE_COMPLETED
    FREE = 3
    """Complete free: a free_requested and the free_completed that directly follows it."""


def completes_at_once(action: NDArray[np.uint8], addr: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask of the free_completed entries that directly follow their free_requested."""
    at_once = any_of(action, (Action.FREE_COMPLETED,))
    at_once[:1] = False
    at_once[1:] &= any_of(action[:-1], (Action.FREE_REQUESTED,)) & (addr[1:] == addr[:-1])
    return at_once


@dataclass(frozen=True, slots=True, eq=False)
class BlockLives:
    """Lifetimes of the blocks of a recording, in order of allocation.

    born: entry of the block's allocation.
    freed, completed: entries of the block's free_requested and free_completed; the number of all
        entries if there is none.
    """

    born: NDArray[np.int64]
    freed: NDArray[np.int64]
    completed: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ByAddress:
    """Allocations and frees as columns, sorted by address, then by recorded order.

    entry: index of the entry; for a FREE, the index of its free_completed.
    addr: address.
    kind: value of `Turn`.
    goes_on: True if the next item of the columns has the same address.
    """

    entry: NDArray[np.intp]
    addr: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    goes_on: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.entry)

    @classmethod
    def of(cls, action: NDArray[np.uint8], addr: NDArray[np.uint64]) -> ByAddress:
        at_once = completes_at_once(action, addr)
        kind = action + at_once  # a FREE_COMPLETED becomes a FREE
        is_turn = any_of(action, BLOCK_ACTIONS)
        is_turn[:-1] &= ~at_once[1:]
        entry = np.flatnonzero(is_turn)
        entry = entry.take(stable_order(addr.take(entry)))
        return cls._ordered(entry, addr.take(entry), kind.take(entry))

    @classmethod
    def _ordered(
        cls, entry: NDArray[np.intp], addr: NDArray[np.uint64], kind: NDArray[np.uint8]
    ) -> ByAddress:
        goes_on = np.zeros(len(entry), dtype=bool)
        goes_on[:-1] = addr[1:] == addr[:-1]
        return cls(entry, addr, kind, goes_on)

    def since(self, first: int) -> ByAddress:
        """Return the allocations and frees without those before entry `first`."""
        if not first:
            return self
        kept = self.entry >= first
        entry, kind = self.entry[kept], self.kind[kept]
        kind[(entry == first) & any_of(kind, (Turn.FREE,))] = Turn.FREE_COMPLETED
        return self._ordered(entry, self.addr[kept], kind)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Blocks of all segments, sorted by address, and their fields as columns.

    requested_size: bytes before rounding.
    is_active: True if the block is allocated, or its free is not complete.
    is_pending: True if the block is freed, but its free is not complete.
    is_small: True if the segment is in the small pool.
    are_sound: True if the blocks cover their segments without gaps, and no segments overlap.
    """

    blocks: Sequence[BlockState]
    address: NDArray[np.uint64]
    size: NDArray[np.int64]
    requested_size: NDArray[np.int64]
    is_active: NDArray[np.bool_]
    is_pending: NDArray[np.bool_]
    is_small: NDArray[np.bool_]
    are_sound: bool

    @classmethod
    def of(cls, segments: Sequence[SegmentState]) -> Tiles | None:
        """Return the columns of `segments`; None if a number does not fit in 64 bits."""
        blocks = [block for segment in segments for block in segment.blocks]
        states = [block.state for block in blocks]
        try:
            addresses = address_column([block.address for block in blocks])
            sizes = int_column([block.size for block in blocks])
            asked = int_column([block.requested_size for block in blocks])
            bases = address_column([segment.address for segment in segments])
            totals = address_column([segment.total_size for segment in segments])
        except StructError:
            return None
        counts = np.array([len(segment.blocks) for segment in segments], dtype=np.int64)
        return cls(
            blocks=blocks,
            address=addresses,
            size=sizes,
            requested_size=asked,
            is_active=np.array([state != INACTIVE for state in states], dtype=bool),
            is_pending=np.array([state == PENDING for state in states], dtype=bool),
            is_small=np.repeat([segment.is_small for segment in segments], counts).astype(bool),
            are_sound=_are_sound(addresses, sizes, bases, totals, counts),
        )


def _are_sound(
    address: NDArray[np.uint64],
    size: NDArray[np.int64],
    base: NDArray[np.uint64],
    total: NDArray[np.uint64],
    count: NDArray[np.int64],
) -> bool:
    ends = base + total
    if not len(base):
        return True
    if not count.all() or not (ends > base).all() or not (ends[:-1] <= base[1:]).all():
        return False
    last = np.cumsum(count)
    expected = address + size.astype(np.uint64)
    expected[1:] = expected[:-1].copy()
    expected[last - count] = base
    reaches = address[last - 1] + size[last - 1].astype(np.uint64) == ends
    return bool((expected == address).all() and (size > 0).all() and reaches.all())


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a device's trace (semantics.md, sections 6.1 and 6.3).

    addr: address; for an oom, the free bytes of the device.
    size: bytes.  Allocations and frees have the requested size before rounding, an oom has it after
        rounding, and segment entries have the size of the segment.
    stream: raw cudaStream_t handle; 0 for the default stream.
    time_us: time in microseconds; None if not recorded.
    frames: stack frames, innermost first; empty if not recorded.
    pool_id, compile_context, user_metadata: None if not recorded.
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

    device: index of the device.
    action: values of `Action`.
    addr: address; for an oom, the free bytes of the device.
    size: bytes; of allocations and frees, the requested size before rounding.
    stream: raw cudaStream_t handle; 0 for the default stream.
    frames: stack index in `frame_table`; -1 for an entry without a stack.
    pool_id: index into `pool_ids`; -1 for an entry without a pool id.
    segments: segments after the last entry.
    time_us: time in microseconds; None if not recorded.
    compile_context, user_metadata: index into `texts`; -1 for an entry without the text.  None if
        not recorded.
    marks: calls that are not entries, such as empty_cache(), in order; only allocsim records them.
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
        """Return the columns that were recorded, keyed by field name."""
        values = ((part.name, getattr(self, part.name)) for part in fields(self))
        return {name: value for name, value in values if isinstance(value, np.ndarray)}

    def inputs(self) -> NDArray[np.intp]:
        """Return the indices of the entries for requests, frees and out-of-memory errors."""
        return np.flatnonzero(any_of(self.action, INPUT_ACTIONS))

    @cached_property
    def by_address(self) -> ByAddress:
        return ByAddress.of(self.action, self.addr)

    @cached_property
    def tiles(self) -> Tiles | None:
        """Blocks of the final segments as columns; None if a number does not fit in 64 bits."""
        return Tiles.of(self.segments)

    def most_reserved(self, held: int) -> int:
        """Return the highest reserved bytes after any entry.

        held: bytes that are reserved before the first entry.
        """
        _, after = self._reserved()
        return held + max(0, int(after.max(initial=0)))

    def reserved_after(self, entries: NDArray[np.intp], held: int) -> NDArray[np.int64]:
        """Return the reserved bytes after each entry in `entries`.

        held: bytes that are reserved before the first entry.
        """
        moved, after = self._reserved()
        return held + np.append(0, after)[np.searchsorted(moved, entries, side="right")]

    @cached_property
    def driver_addresses(self) -> tuple[int, int]:
        """Address of the first segment that is obtained, and the highest end of any segment."""
        grown = np.flatnonzero(any_of(self.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)))
        bases = self.addr[grown]
        ends: list[int] = (bases + self.size[grown].astype(np.uint64)).tolist()
        first = self.segments[0].address if self.segments else 0
        if len(bases):
            first = int(bases[0])
        return first, max([0, *ends, *(segment.end for segment in self.segments)])

    def _reserved(self) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        grows = any_of(self.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
        shrinks = any_of(self.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
        moved = np.flatnonzero(grows | shrinks)
        size = self.size[moved]
        return moved, np.cumsum(np.where(grows[moved], size, -size))

    def count(self, action: Action) -> int:
        return int(np.count_nonzero(any_of(self.action, (action,))))

    def _text(self, column: NDArray[np.int32] | None, index: int) -> str | None:
        if column is None or column[index] < 0:
            return None
        return self.texts[int(column[index])]
