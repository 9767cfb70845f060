"""Start state of a replay: memory before its first step, if the recording starts mid-run.

A what-if (a replay under another setting) can start with the recorded segments, although the other
setting might have produced other sizes and splits.  Or it can start with an empty allocator and
first request all blocks that were live at the start of the recording; then the cached memory is
missing.  Both are inexact; docs/evidence/fidelity.md gives the errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from allocsim.core import ReplayAllocator, RequestedFree
from allocsim.errors import ConfigError, OutOfMemoryError
from allocsim.state import DEFAULT_POOL, INACTIVE, PENDING, BlockState, SegmentState
from allocsim.units import format_size


class Start(StrEnum):
    """State of the allocator at the start of a replay, if the recording starts mid-run."""

    KEPT = "kept"
    """The recorded segments with their live and free blocks, unchanged."""

    REALLOCATED = "anew"
    """Segments that result if an empty allocator serves requests for all recorded live blocks."""


@dataclass(frozen=True, slots=True)
class StartPeaks:
    """Peak reserved bytes of a what-if (replay under another setting) from each start state."""

    shown: Start
    """Start state of the replay whose results are reported."""
    kept: int | None
    """Peak of the replay that starts with the recorded segments; None if it does not complete."""
    anew: int | None
    """Peak of the replay that starts empty and first requests the blocks that were live when the
    recording began; None if it does not complete."""

    @property
    def low(self) -> int:
        return min(peak for peak in (self.kept, self.anew) if peak is not None)

    @property
    def high(self) -> int:
        return max(peak for peak in (self.kept, self.anew) if peak is not None)


@dataclass(frozen=True, slots=True)
class _Group:
    pool_id: tuple[int, int]
    stream: int
    segments: tuple[SegmentState, ...]

    def blocks(self) -> Iterator[BlockState]:
        for segment in self.segments:
            yield from (block for block in segment.blocks if block.state != INACTIVE)


def has_live_blocks(segments: Sequence[SegmentState]) -> bool:
    return any(not segment.is_idle for segment in segments)


def live_requests(segments: Sequence[SegmentState]) -> set[int]:
    blocks = (block for segment in segments for block in segment.blocks)
    return {_request_of(block) for block in blocks if block.state != INACTIVE}


def _request_of(block: BlockState) -> int:
    return block.requested_size or block.size  # old releases do not write requested_size


def allocate_live_blocks(
    allocator: ReplayAllocator, segments: Sequence[SegmentState]
) -> dict[int, RequestedFree]:
    """Request the live blocks of the recorded `segments` from `allocator`.

    Returns the pending frees of blocks that other streams still use, by recorded block address.
    Afterwards, peaks, accumulated statistics and the number of driver calls are reset.
    """
    names: list[tuple[int, str]] = []
    for group in _groups(segments):
        is_private = group.pool_id != DEFAULT_POOL
        if is_private:
            allocator.begin_allocate_to_pool(group.pool_id, stream=group.stream)
        for block in group.blocks():
            _request(allocator, block, group.stream)
            names.append((block.address, block.state))
        if is_private:
            allocator.end_allocate_to_pool(group.pool_id)
    # Frees come last, so that no request reuses a block with a pending free.
    waiting = {}
    for name, state in names:
        if state == PENDING:
            ptr = allocator.take_name(name)
            assert ptr is not None
            waiting[name] = allocator.request_free(ptr)
    allocator.statistics()
    allocator.reset_accumulated_memory_stats()
    allocator.reset_peak_memory_stats()
    allocator.take_history()
    allocator.device.calls.clear()
    return waiting


def _groups(segments: Sequence[SegmentState]) -> Iterator[_Group]:
    def owner(segment: SegmentState) -> tuple[tuple[int, int], int]:
        return segment.pool_id, segment.stream

    ordered = sorted(segments, key=lambda segment: (owner(segment), segment.address))
    for (pool_id, stream), group in groupby(ordered, key=owner):
        yield _Group(pool_id, stream, tuple(group))


def _request(allocator: ReplayAllocator, block: BlockState, stream: int) -> None:
    try:
        ptr = allocator.malloc(_request_of(block), stream)
    except OutOfMemoryError:
        raise ConfigError(
            f"device memory {format_size(allocator.device.total)} cannot hold the blocks in use "
            "before the first entry when they are allocated again"
        ) from None
    assert ptr is not None
    allocator.give_name(ptr, block.address)
