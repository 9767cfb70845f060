"""Create the segments that existed before a recording, from its recorded state.

Each block gets the recorded size, state and stream.  A recording does not give the age of segments;
a lower address counts as older.  Source: semantics 6.6.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise

from allocsim.core.block import Block
from allocsim.core.constants import MIN_BLOCK_SIZE
from allocsim.core.heap import Heap
from allocsim.core.mapping import new_expandable
from allocsim.core.pool import BlockPool
from allocsim.core.private_pools import PrivatePools
from allocsim.state import ALLOCATED, DEFAULT_POOL, PENDING, SegmentState

_NO_OTHER = 1 << 80
"""Above every address."""


def plant(heap: Heap, private: PrivatePools, segments: Iterable[SegmentState]) -> dict[int, Block]:
    """Create `segments` in an empty heap and return the pending blocks by address.

    The statistics count the blocks as if they were allocated now.
    """
    pending: dict[int, Block] = {}
    ranges: dict[BlockPool, list[SegmentState]] = {}
    segments = sorted(segments, key=lambda segment: segment.address)
    # Narrow keys need sizes that are multiples of 512 (sort_key.py).
    if any(block.size % MIN_BLOCK_SIZE for segment in segments for block in segment.blocks):
        heap.widen_keys()
    for segment in segments:
        heap.least_segment = min(heap.least_segment, segment.total_size)
        pool = _pool_of(heap, private, segment)
        if segment.is_expandable:
            ranges.setdefault(pool, []).append(segment)
            continue
        heap.device.adopt(segment.address, segment.total_size)
        heap.count_segment(pool, segment.total_size)
        # Ranks are given in address order, so that lower segments count as older.
        rank = heap.new_segment_rank(segment.address, segment.total_size)
        blocks = _blocks(heap, pool, segment, rank)
        _link(blocks)
        _set_states(heap, segment, blocks, pending)
    for pool, mapped in ranges.items():
        for stream in sorted({segment.stream for segment in mapped}):
            mine = [segment for segment in mapped if segment.stream == stream]
            for others_from, parts in _neighbours(mine, segments):
                _plant_expandable(heap, pool, parts, others_from, pending)
    return pending


def _neighbours(
    mine: list[SegmentState], segments: list[SegmentState]
) -> Iterator[tuple[int, list[SegmentState]]]:
    """Group the mapped ranges of one pool and stream that may be in one expandable segment.

    A group ends where a segment of another pool or stream comes in between.
    Yields (address of the next such segment, ranges of the group).
    """
    own = {part.address for part in mine}
    others = [segment.address for segment in segments if segment.address not in own]
    for following, row in groupby(mine, key=lambda part: bisect_left(others, part.address)):
        yield (others[following] if following < len(others) else _NO_OTHER), list(row)


def _pool_of(heap: Heap, private: PrivatePools, segment: SegmentState) -> BlockPool:
    if segment.pool_id == DEFAULT_POOL:
        return heap.small if segment.is_small else heap.large
    if segment.pool_id not in private.pools:
        private.pools[segment.pool_id] = heap.new_private_pool(segment.pool_id)
    owner = private.pools[segment.pool_id]
    return owner.small if segment.is_small else owner.large


def _blocks(heap: Heap, pool: BlockPool, segment: SegmentState, rank: int) -> list[Block]:
    blocks = []
    ptr = segment.address
    for seed in segment.blocks:
        blocks.append(heap.new_block(ptr, seed.size, pool, segment.stream, rank))
        ptr += seed.size
    return blocks


def _link(chain: list[Block]) -> None:
    for block, following in pairwise(chain):
        block.insert_after(following)


def _set_states(
    heap: Heap, segment: SegmentState, blocks: list[Block], pending: dict[int, Block]
) -> None:
    """Set the state of each of `blocks` as in `segment`, and add free blocks to their pool.

    The blocks must already be linked to their neighbours.
    pending: receives the blocks that wait for another stream, by address.
    """
    for seed, block in zip(segment.blocks, blocks, strict=True):
        block.requested_size = seed.requested_size
        if seed.state == ALLOCATED:
            block.allocated = True
            heap.live[block.ptr] = block
        elif seed.state == PENDING:
            # Its events are unknown; one event keeps the block active.
            block.event_count = 1
            heap.pending[block.ptr] = pending[block.ptr] = block
        else:
            block.pool.insert(block)
        heap.count_planted(block)


def _plant_expandable(
    heap: Heap,
    pool: BlockPool,
    ranges: list[SegmentState],
    others_from: int,
    pending: dict[int, Block],
) -> None:
    """Create expandable segments from the mapped ranges of one pool and stream.

    A recording does not show where the reserved range begins; the lowest mapped address replaces
    it.  Ranges too far apart for one reservation become further segments.
    """
    first = ranges[0]
    segment = new_expandable(heap, pool, first.stream, first.address)
    inside = [part for part in ranges if part.end <= segment.end]
    inside = inside or [first]
    rest = ranges[len(inside) :]
    mapped_to = inside[-1].end
    # Another segment may begin inside the assumed reservation, because the true base is lower.
    segment.end_before(rest[0].address if rest else others_from, mapped_to - segment.base)
    rank = heap.new_segment_rank(segment.base, segment.size)
    chain: list[Block] = []
    planted = []
    at = first.address
    for part in inside:
        chain += _unmapped(heap, pool, rank, (part.stream, at, part.address))
        blocks = _blocks(heap, pool, part, rank)
        chain += blocks
        planted.append((part, blocks))
        at = part.end
    chain += _unmapped(heap, pool, rank, (first.stream, at, segment.end))
    _link(chain)
    for block in chain:
        block.expandable = segment
        if not block.mapped:
            pool.unmapped.add(block)
    for part, blocks in planted:
        segment.adopt(part.total_size)
        heap.count_reserved(pool, part.total_size)
        if pool.owner is not None:
            # The count of the recorded process is unknown: assume one for each mapped range.
            pool.owner.segment_count += 1
        _set_states(heap, part, blocks, pending)
    if rest:
        _plant_expandable(heap, pool, rest, others_from, pending)


def _unmapped(heap: Heap, pool: BlockPool, rank: int, place: tuple[int, int, int]) -> list[Block]:
    """Return the unmapped block of `place` (stream, start, end) in a list; [] if it is empty."""
    stream, start, end = place
    if start == end:
        return []
    block = heap.new_block(start, end - start, pool, stream, rank)
    block.mapped = False
    return [block]
