"""What a drive of a recording that starts mid-run begins with.

Rule: under the recorded settings the segments of the start are facts and are kept.  Under other
settings they are what the recorded settings left behind.  There are two ways to begin then, and
each is wrong somewhere: to keep them, memory included that the tried setting would never have
reserved or cut so; or to request anew what lives at the start, under the tried setting, which
ignores the memory that the run had cached by then.  docs/fidelity.md has how far each was off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from allocsim.core import CachingAllocator, RequestedFree
from allocsim.errors import ConfigError, OutOfMemoryError
from allocsim.state import DEFAULT_POOL, INACTIVE, PENDING, BlockState, SegmentState
from allocsim.units import format_size

__all__ = ["Start", "StartPeaks", "has_live_blocks", "lay_out", "requests_of"]


class Start(StrEnum):
    """How a drive begins."""

    KEPT = "kept"
    """With the segments of the start as they were, cached memory and all."""

    ANEW = "anew"
    """With the blocks in use at the start, requested one by one under the setting tried."""


@dataclass(frozen=True, slots=True)
class StartPeaks:
    """Bytes that a what-if of a recording that starts mid-run reserves at its peak.

    shown: the start whose figures stand wherever one is shown.
    kept, anew: by start; None where no run comes to its end that way.
    """

    shown: Start
    kept: int | None
    anew: int | None

    @property
    def low(self) -> int:
        """The lower of the two."""
        return min(peak for peak in (self.kept, self.anew) if peak is not None)

    @property
    def high(self) -> int:
        """The higher of the two."""
        return max(peak for peak in (self.kept, self.anew) if peak is not None)


@dataclass(frozen=True, slots=True)
class _Row:
    """The segments of one pool and stream, by address."""

    pool_id: tuple[int, int]
    stream: int
    segments: tuple[SegmentState, ...]

    def blocks(self) -> Iterator[BlockState]:
        """Those in use."""
        for segment in self.segments:
            yield from (block for block in segment.blocks if block.state != INACTIVE)


def has_live_blocks(segments: Sequence[SegmentState]) -> bool:
    """Whether there is anything to lay out."""
    return any(not segment.is_idle for segment in segments)


def requests_of(segments: Sequence[SegmentState]) -> set[int]:
    """The raw sizes of what lives in `segments`."""
    blocks = (block for segment in segments for block in segment.blocks)
    return {_request_of(block) for block in blocks if block.state != INACTIVE}


def _request_of(block: BlockState) -> int:
    return block.requested_size or block.size  # 0 where the release did not write it


def lay_out(
    allocator: CachingAllocator, segments: Sequence[SegmentState]
) -> dict[int, RequestedFree]:
    """Request what lives in `segments` from an empty allocator; the pending frees by name.

    A block's name is its address in the recording.  No layout of a snapshot tells when a block
    was asked for, so that their addresses are taken for their order.  Bytes count as reserved and
    allocated; driver calls are counted from here on.
    Raises ConfigError for a device that has no room for all of it.
    """
    names: list[tuple[int, str]] = []
    for row in _rows(segments):
        is_private = row.pool_id != DEFAULT_POOL
        if is_private:
            allocator.begin_allocate_to_pool(row.pool_id, stream=row.stream)
        for block in row.blocks():
            _request(allocator, block, row.stream)
            names.append((block.address, block.state))
        if is_private:
            allocator.end_allocate_to_pool(row.pool_id)
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


def _rows(segments: Sequence[SegmentState]) -> Iterator[_Row]:
    """Pool by pool and stream by stream; nothing of one decides anything in another."""

    def owner(segment: SegmentState) -> tuple[tuple[int, int], int]:
        return segment.pool_id, segment.stream

    ordered = sorted(segments, key=lambda segment: (owner(segment), segment.address))
    for (pool_id, stream), row in groupby(ordered, key=owner):
        yield _Row(pool_id, stream, tuple(row))


def _request(allocator: CachingAllocator, block: BlockState, stream: int) -> None:
    try:
        ptr = allocator.malloc(_request_of(block), stream)
    except OutOfMemoryError:
        raise ConfigError(
            f"device memory {format_size(allocator.device.total)} cannot hold, laid out anew, "
            "what was in use before the first entry"
        ) from None
    assert ptr is not None
    allocator.give_name(ptr, block.address)
