"""Reconstruct the segments before an entry by undoing this and all later entries.

If the recording began on an empty device, no segments exist before the first entry.  The result is
exact, with one exception: if entries have no pool_id, the pools of released segments are guesses.
"""

# Undoing a free_completed makes the block pending, undoing a free_requested makes it allocated, and
# undoing an alloc makes it free space. Undoing a segment_alloc removes the segment, and undoing a
# segment_free adds it as one free block; segment_map and segment_unmap are undone in the same way.
# In a recording without pool_id, a freed segment is assigned to the default pool, and to the small
# pool if it has at most 2 MiB.

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NoReturn

import numpy as np

from allocsim._fast_numpy import any_of
from allocsim.errors import RecordingError
from allocsim.recording.live_blocks import LaterAllocs, Live, live_after, live_before, true_size
from allocsim.recording.provenance import cut_marks
from allocsim.recording.trace import BLOCK_ACTIONS, Action, Trace
from allocsim.state import ALLOCATED, INACTIVE, PENDING, BlockState, PoolId, SegmentState
from allocsim.units import MIB, round_up

_LARGE_HANDLE = 20 * MIB


@dataclass(frozen=True, slots=True)
class MappedRange:
    """Range [start, end) of mapped addresses of an expandable segment.

    is_small: True for the small pool; None if unknown.
    frames: stack index; -1 without a stack.
    """

    start: int
    end: int
    stream: int
    pool_id: PoolId
    is_small: bool | None
    frames: int = -1

    def joins(self, other: MappedRange) -> bool:
        kinds = {self.is_small, other.is_small} - {None}
        return self.stream == other.stream and self.pool_id == other.pool_id and len(kinds) < 2

    def guessed_small(self) -> bool:
        if self.is_small is None:
            return (self.end - self.start) % _LARGE_HANDLE != 0
        return self.is_small


class MappedRanges:
    """Mapped addresses of the expandable segments of one device."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[MappedRange] = []

    def __iter__(self) -> Iterator[MappedRange]:
        return iter(self._ranges)

    def add(self, new: MappedRange) -> bool:
        """Add `new`, merged with adjacent ranges; return False if it overlaps a range."""
        at = self._place(new.start, new.end)
        if at is None:
            return False
        before = self._ranges[at - 1] if at else None
        after = self._ranges[at] if at < len(self._ranges) else None
        first, last = at, at
        if before and before.end == new.start and before.joins(new):
            new = _joined(before, new)
            first -= 1
        if after and new.end == after.start and new.joins(after):
            new = _joined(new, after)
            last += 1
        self._ranges[first:last] = [new]
        return True

    def overlaps(self, start: int, end: int) -> bool:
        return self._place(start, end) is None

    def _place(self, start: int, end: int) -> int | None:
        """Return the index at which to insert [start, end); None if it overlaps a mapped range."""
        at = bisect_right(self._ranges, start, key=lambda r: r.start)
        is_after = at == 0 or self._ranges[at - 1].end <= start
        is_before = at == len(self._ranges) or end <= self._ranges[at].start
        return at if is_after and is_before else None

    def cut(self, start: int, end: int) -> bool:
        """Remove [start, end) from the range that contains it; return False if no range does."""
        at = bisect_right(self._ranges, start, key=lambda r: r.start) - 1
        if at < 0 or self._ranges[at].end < end:
            return False
        whole = self._ranges[at]
        pieces = (replace(whole, end=start), replace(whole, start=end))
        self._ranges[at : at + 1] = [piece for piece in pieces if piece.start < piece.end]
        return True


def _joined(left: MappedRange, right: MappedRange) -> MappedRange:
    small = right.is_small if left.is_small is None else left.is_small
    return replace(left, end=right.end, is_small=small)


_SMALL_SEGMENT = 2 * MIB


def round_to_512(size: int) -> int:
    """Return a requested size, rounded under the default options (semantics.md, section 1.2)."""
    return max(512, round_up(size, 512))


def start_state(
    trace: Trace,
    entry: int = 0,
    *,
    rounded: Callable[[int], int] = round_to_512,
    max_split_size: int | None = None,
) -> tuple[SegmentState, ...]:
    """Return the segments before entry `entry`, sorted by address; empty for an empty device.

    rounded: function from requested bytes to rounded bytes; roundup_power2_divisions changes it.
    max_split_size: blocks of at least this many bytes are never split; None for no limit.

    Raises RecordingError, naming the entry, if the entries do not lead to the final segments.
    """
    return Rewound(trace, entry).state(rounded=rounded, max_split_size=max_split_size)


class Rewound:
    """Live blocks and segments of a device before an entry, found by undoing the later entries.

    Some sizes of blocks depend on the allocator settings; `state` computes them.

    Raises RecordingError, naming the entry, if the entries do not lead to the final segments.
    """

    __slots__ = ("_entry", "_rewind", "_trace")

    def __init__(self, trace: Trace, entry: int = 0) -> None:
        self._trace, self._entry = trace, entry
        before = live_before(trace, entry)
        rewind = self._rewind = _Rewind(trace, live_after(trace) if before is None else before)
        left = np.arange(entry, len(trace))
        if before is not None:
            left = np.flatnonzero(~any_of(trace.action[entry:], BLOCK_ACTIONS)) + entry
        left = left[::-1]
        pools = (*trace.pool_ids, (0, 0))  # -1, "unknown", finds the default pool
        columns = (trace.action, trace.addr, trace.size, trace.stream, trace.pool_id)
        rows = zip(left.tolist(), *(column[left].tolist() for column in columns), strict=True)
        for index, action, addr, size, stream, pool in rows:
            rewind.undo(index, action, addr, size=size, stream=stream, pool_id=pools[pool])

    @property
    def has_overlaps(self) -> bool:
        """True if two segments overlapped at any of the undone entries."""
        return self._rewind.has_overlaps

    def state(
        self,
        *,
        rounded: Callable[[int], int] = round_to_512,
        max_split_size: int | None = None,
    ) -> tuple[SegmentState, ...]:
        """Return the segments before the entry; the parameters are those of `start_state`."""
        limit = -1 if max_split_size is None else max_split_size
        return self._rewind.state(LaterAllocs(self._trace, self._entry), rounded, limit)


def trimmed(trace: Trace, first: int, last: int) -> Trace:
    """Return a trace of the entries [first, last) and of the segments after entry `last` - 1."""
    first, last, _ = slice(first, last).indices(len(trace))
    columns = {name: column[first:last] for name, column in trace.columns().items()}
    segments = trace.segments if last == len(trace) else start_state(trace, last)
    marks = cut_marks(trace.marks, first, last)
    return replace(trace, segments=segments, marks=marks, **columns)  # type: ignore[arg-type]


class _Rewind:
    __slots__ = ("has_overlaps", "live", "_device", "_places", "_ranges", "_segments")

    def __init__(self, trace: Trace, live: dict[int, Live]) -> None:
        self._device = trace.device
        self._segments: dict[int, SegmentState] = {}
        self._places: list[int] = []  # addresses of `_segments`, sorted; faster than a SortedDict
        self.has_overlaps = False
        self._ranges = MappedRanges()
        self.live = live
        for segment in trace.segments:
            self._take(segment)

    def _take(self, segment: SegmentState) -> None:
        if not segment.is_expandable:
            self._add(segment)
            return
        owner = (segment.stream, segment.pool_id, segment.is_small, segment.frames)
        if not self._map(MappedRange(segment.address, segment.end, *owner)):
            self._refuse(None, f"the segment at 0x{segment.address:x} overlaps another one")

    def _add(self, segment: SegmentState) -> None:
        start, end = segment.address, segment.end
        self.has_overlaps |= self._is_taken(start, end) or self._ranges.overlaps(start, end)
        insort(self._places, start)
        self._segments[start] = segment

    def _map(self, new: MappedRange) -> bool:
        self.has_overlaps |= self._is_taken(new.start, new.end)
        return self._ranges.add(new)

    def _is_taken(self, start: int, end: int) -> bool:
        at = bisect_right(self._places, start)
        is_before = at > 0 and self._segments[self._places[at - 1]].end > start
        return is_before or (at < len(self._places) and self._places[at] < end)

    def undo(
        self, index: int, action: int, addr: int, *, size: int, stream: int, pool_id: PoolId
    ) -> None:
        if action == Action.ALLOC:
            self._undo_alloc(index, addr, size)
        elif action == Action.FREE_REQUESTED:
            self._undo_free_requested(index, addr)
        elif action == Action.FREE_COMPLETED:
            if addr in self.live:
                self._refuse(index, f"0x{addr:x} is freed here, but it is in use afterwards")
            self.live[addr] = Live(size, None, PENDING, -1, index)
        elif action == Action.SEGMENT_ALLOC:
            segment = self._segments.pop(addr, None)
            if segment is None or segment.total_size != size:
                self._refuse(index, f"no segment of {size} bytes is at 0x{addr:x} afterwards")
            del self._places[bisect_left(self._places, addr)]
        elif action == Action.SEGMENT_FREE:
            if addr in self._segments:
                self._refuse(index, f"0x{addr:x} is freed, but a segment is there afterwards")
            small = size <= _SMALL_SEGMENT
            self._add(SegmentState(addr, size, stream, small, pool_id, False, ()))
        elif action == Action.SEGMENT_MAP:
            if not self._ranges.cut(addr, addr + size):
                self._refuse(index, f"the {size} bytes mapped at 0x{addr:x} are not afterwards")
        elif action == Action.SEGMENT_UNMAP:
            mapped = MappedRange(addr, addr + size, stream, pool_id, is_small=None)
            if not self._map(mapped):
                self._refuse(index, f"0x{addr:x} is unmapped, but mapped afterwards")

    def _undo_alloc(self, index: int, addr: int, size: int) -> None:
        live = self.live.pop(addr, None)
        if live is None:
            self._refuse(index, f"0x{addr:x} is allocated here, but not in use afterwards")
        if live.requested_size != size:
            self._refuse(
                index,
                f"{size} bytes are allocated at 0x{addr:x}, but {live.requested_size} are in "
                "use there afterwards",
            )

    def _undo_free_requested(self, index: int, addr: int) -> None:
        live = self.live.get(addr)
        if live is None or live.state != PENDING:
            self._refuse(index, f"a free of 0x{addr:x} is requested, but none is pending after it")
        live.state = ALLOCATED

    def _refuse(self, index: int | None, what: str) -> NoReturn:
        raise RecordingError(f"device {self._device}", what, entry=index)

    def state(
        self, later: LaterAllocs, rounded: Callable[[int], int], max_split_size: int
    ) -> tuple[SegmentState, ...]:
        segments = [*self._segments.values(), *map(_segment_of, self._ranges)]
        segments.sort(key=lambda segment: segment.address)
        for left, right in pairwise(segments):
            if left.end > right.address:
                self._refuse(
                    None,
                    f"the segment at 0x{right.address:x} would have lain over the one of "
                    f"{left.total_size} bytes at 0x{left.address:x}",
                )
        addresses = sorted(self.live)
        at = 0
        tiled = []
        for segment in segments:
            first = at
            while at < len(addresses) and addresses[at] < segment.end:
                at += 1
            inside = addresses[first:at]
            if inside and inside[0] < segment.address:
                self._refuse(None, f"the block at 0x{inside[0]:x} lies in no segment")
            tiled.append(self._tiled(segment, inside, later, rounded, max_split_size))
        if at < len(addresses):
            self._refuse(None, f"the block at 0x{addresses[at]:x} lies in no segment")
        return tuple(tiled)

    def _tiled(
        self,
        segment: SegmentState,
        inside: list[int],
        later: LaterAllocs,
        rounded: Callable[[int], int],
        max_split_size: int,
    ) -> SegmentState:
        blocks: list[BlockState] = []
        at = segment.address
        for address, end in zip(inside, [*inside[1:], segment.end], strict=False):
            live = self.live[address]
            if address > at:
                blocks.append(BlockState(at, address - at, 0, INACTIVE))
            size, is_least = live.size, False
            if size is None:
                if live.requested_size > end - address:
                    self._refuse(
                        live.death,
                        f"{live.requested_size} bytes are freed at 0x{address:x}, where no more "
                        f"than {end - address} can have been in use",
                    )
                least = rounded(live.requested_size)
                never_split = 0 <= max_split_size <= least
                landed = None
                if not never_split and address + least < end:
                    # An alloc at the segment's end belongs to the next segment.
                    last = end if end < segment.end else end - 1
                    landed = later.first(address + least, last, live.death)
                size, is_least = true_size(
                    segment, address, end, least=least, landed=landed, never_split=never_split
                )
            of_request = live.requested_size, live.state, live.frames
            blocks.append(BlockState(address, size, *of_request, is_least))
            at = address + size
        if at < segment.end:
            blocks.append(BlockState(at, segment.end - at, 0, INACTIVE))
        return replace(segment, blocks=tuple(blocks))


def _segment_of(mapped: MappedRange) -> SegmentState:
    place = (mapped.start, mapped.end - mapped.start, mapped.stream, mapped.guessed_small())
    return SegmentState(*place, mapped.pool_id, is_expandable=True, blocks=(), frames=mapped.frames)
