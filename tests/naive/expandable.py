"""Expandable segments: whole handles are mapped into a reserved range and unmapped again.

Semantics 4, 12.7 to 12.9: unmapped blocks begin and end at handle boundaries counted from the base
of the segment.
"""

from __future__ import annotations

from allocsim.errors import DriverRefusalError, UpstreamAssertionError
from allocsim.units import round_up
from tests.naive.block import SMALL_SEG, Block, Pool, Segment
from tests.naive.driver import PAGE
from tests.naive.state import State

__all__ = ["grow", "unmap"]


def grow(state: State, pool: Pool, stream: int, size: int) -> Block | None:
    """Return a free block of at least `size` bytes in an expandable segment, or None."""
    start = find_room(state, pool, stream, size) or reserve(state, pool, stream, size)
    if start is None:
        return None
    block = start
    if block.state == "unmapped" and not map_front(state, block, min(size, block.size)):
        return None
    while block.size < size:
        room = block.next
        if room is None:
            return None
        missing = size - block.size
        if not map_front(state, room, min(missing, room.size)):
            return None
        block = room
    return block


def find_room(state: State, pool: Pool, stream: int, size: int) -> Block | None:
    """Return the lowest run of free and unmapped blocks that holds `size` (semantics 4.2)."""
    unmapped = [b for b in state.in_state(pool, "unmapped") if b.stream == stream]
    for block in sorted(unmapped, key=lambda b: b.address):
        previous = block.prev
        start = previous if previous is not None and previous.state == "free" else block
        blocks = block.segment.blocks
        run = 0
        for part in blocks[blocks.index(start) :]:
            if part.state not in ("free", "unmapped"):
                break
            run += part.size
            if run >= size:
                return start
    return None


def reserve(state: State, pool: Pool, stream: int, size: int) -> Block | None:
    """Create an unmapped segment; from 2.15 on only if `size` fits (12.7)."""
    handle = SMALL_SEG if pool.small else state.options.large_segment
    space = round_up(state.options.reserve_limit(state.driver.total), handle)
    base = state.driver.reserve(space)
    segment = state.segment(pool, stream, base, space, handle)
    if space < size and state.minor >= 15:
        forget(state, segment)
        return None
    return segment.blocks[0]


def forget(state: State, segment: Segment) -> None:
    state.segments.remove(segment)
    state.driver.unreserve(segment.base)


def map_front(state: State, block: Block, size: int) -> bool:
    """Map the first `size` bytes of an unmapped block, in whole handles (semantics 4.3).

    The object of the unmapped block becomes the mapped one and absorbs free neighbours (12.8).
    """
    segment = block.segment
    if segment.handle % PAGE:
        raise DriverRefusalError(f"semantics 4.3: a handle of {segment.handle} bytes")
    size = round_up(size, segment.handle)
    if not state.driver.take(size):
        return False
    state.note("segment_map", block.address, size, block.stream, block.pool.number)
    if size < block.size:
        rest = state.block(segment, block.address + size, block.size - size, "unmapped")
        segment.blocks.insert(segment.blocks.index(block) + 1, rest)
        block.size = size
    state.make_free(block)
    state.merge(block)
    state.stats.count("num_device_alloc")
    state.observe()
    return True


def unmap(state: State, block: Block) -> None:
    """Release the whole handles inside a free block, if any (semantics 4.6, 12.9)."""
    segment, owner = block.segment, block.pool.owner
    base, handle = segment.base, segment.handle
    start = base + round_up(block.address - base, handle)
    end = base + (block.end - base) // handle * handle
    if start >= end:
        return
    if owner is not None and owner.segment_count == 0:
        raise UpstreamAssertionError(
            f"semantics 5.1: pool (0, {owner.number}) unmaps more often than it has grown"
        )
    cut(state, block, start, end)
    state.driver.finish(segment.stream)
    state.driver.free += end - start
    if owner is not None:
        owner.segment_count -= 1
    state.stats.count("num_device_free")
    state.note("segment_unmap", start, end - start, segment.stream, block.pool.number)
    block.state = "unmapped"
    state.merge(block)
    state.observe()
    if len(segment.blocks) == 1:
        forget(state, segment)


def cut(state: State, block: Block, start: int, end: int) -> None:
    """Shrink `block` to [start, end); the parts cut off stay free, as new objects."""
    blocks, segment = block.segment.blocks, block.segment
    if block.address < start:
        before = state.block(segment, block.address, start - block.address, "free")
        state.make_free(before)
        blocks.insert(blocks.index(block), before)
    if end < block.end:
        after = state.block(segment, end, block.end - end, "free")
        state.make_free(after)
        blocks.insert(blocks.index(block) + 1, after)
    block.address, block.size = start, end - start
