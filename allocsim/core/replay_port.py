"""Allocator for replays of recordings, with methods that only replays call.

A replay refers to a block by a name, its recorded address.  It completes a pending free when the
recording does, and it may begin with existing segments.  `plant` creates them with the recorded
sizes, states and streams.  A recording does not show the age of segments, so a segment at a lower
address counts as older.  Source: semantics 6.6.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from allocsim.core.allocator import CachingAllocator
from allocsim.core.block import Block
from allocsim.core.columns import BlockColumns, Names, block_columns
from allocsim.core.constants import IS_COMPILED, MIN_BLOCK_SIZE
from allocsim.core.expandable import new_expandable
from allocsim.core.fast_path import StepRow
from allocsim.core.find_split_merge import Heap
from allocsim.core.journal import Folder, Journal
from allocsim.core.pending import RequestedFree
from allocsim.core.pool import BlockPool
from allocsim.core.private_pools import PrivatePools
from allocsim.core.stats import SavedBytes
from allocsim.state import ALLOCATED, DEFAULT_POOL, PENDING, SegmentState

if TYPE_CHECKING or not IS_COMPILED:
    from allocsim.core.fast_path import play
else:
    from allocsim.core._fast_path import play


class ReplayAllocator(CachingAllocator):
    """Caching allocator with the calls that only a replay makes."""

    def play(
        self,
        steps: Iterable[StepRow],
        waiting: dict[int, RequestedFree],
        moved: list[int],
        places: list[int] | None = None,
    ) -> StepRow | None:
        """Replay steps in the fast loop of fast_path.py, up to the first that it cannot run.

        Return this step, or None if the loop ran all steps.

        waiting: dictionary from a block's name (its recorded address) to the free that a step
            requested and a later step completes.
        moved: list to which each step appends its change in allocated bytes.
        places: list to which each step appends the address of its block; if it is given, the loop
            adds no entries to the history.
        """
        heap = self.heap
        # Without the fast loop, the caller makes every call.
        if not self._has_fast_path:
            return next(iter(steps), None)
        if places is None:
            return play(heap, self.private_pools, self._pending, steps, waiting, moved)
        # The caller makes the history entries from `places`.
        trace, heap.trace = heap.trace, None
        try:
            return play(heap, self.private_pools, self._pending, steps, waiting, moved, places)
        finally:
            heap.trace = trace

    def give_name(self, ptr: int, name: int) -> Block:
        """Let steps of a replay refer to the block at `ptr` by `name` instead of its address."""
        block = self.heap.named[name] = self.heap.live.pop(ptr)
        return block

    def name_by_address(self) -> int:
        """Use the address of each allocated block as its name; return the sum of their sizes."""
        return sum(self.give_name(ptr, ptr).size for ptr in list(self.heap.live))

    def rename(self, new_name: Callable[[int], int]) -> None:
        """Rename each named block to `new_name(name)`; a replay refers to blocks by their names."""
        renamed: dict[int, Block] = Names()
        for old, block in self.heap.named.items():
            renamed[new_name(old)] = block
        self.heap.named = renamed

    @property
    def named_blocks(self) -> dict[int, Block]:
        """Read-only dictionary from name (recorded address) to allocated block."""
        return self.heap.named

    def take_name(self, name: int) -> int | None:
        """Remove a block's name (recorded address); return its address, None for no such name."""
        block = self.heap.named.pop(name, None)
        if block is None:
            return None
        self.heap.live[block.ptr] = block
        return block.ptr

    def request_free(self, ptr: int) -> RequestedFree:
        """Begin to free the block at `ptr`; `complete_free` completes the free."""
        return self._pending.add_requested(self._pop_live(ptr))

    @property
    def requested_frees(self) -> tuple[RequestedFree, ...]:
        """Frees that wait for `complete_free`, including those from `seed`."""
        return self._pending.requested

    def wait_last_for(self, free: RequestedFree) -> None:
        self._pending.put_last(free)

    def complete_free(self, free: RequestedFree) -> bool:
        return self._pending.complete(free)

    def limit_to(self, limit: int) -> None:
        self.heap.limit = limit

    @property
    def collects_garbage_above(self) -> int | None:
        """Reserved bytes above which a request collects garbage; None if never.

        Source: semantics 1.9.
        """
        if not self.heap.collects_garbage or self.heap.limit is None:
            return None
        return int(self.config.garbage_collection_threshold * self.heap.limit)

    def count_with(self, folder: Folder) -> None:
        """Use the function `folder` in place of `fold_records` to add up changes of statistics."""
        self.heap.stats.folder = folder

    def set_block_statistics(self, journals: Iterable[Journal]) -> None:
        """Compute the statistics of blocks, such as allocated bytes, from `journals` alone."""
        self.heap.stats.set_block_statistics(journals)

    def save_bytes(self) -> None:
        """Save allocated, active and inactive split bytes; `saved_bytes` returns these values."""
        self.heap.stats.save_bytes()

    def saved_bytes(self) -> SavedBytes:
        return self.statistics().saved_bytes

    def block_columns(self) -> tuple[BlockColumns, int]:
        """Return all blocks as columns, such as address and size, and the number of active blocks.

        The active blocks come first.
        """
        active = self.heap.active
        free = [block for pool in self.heap.pools for block in pool]
        return block_columns([*active, *free]), len(active)

    def seed(self, segments: Iterable[SegmentState]) -> None:
        """Create segments that existed before the recording, in an allocator without segments."""
        self._pending.adopt(plant(self.heap, self.private_pools, segments))

    def extend(self, block: Block, size: int) -> None:
        """Extend an allocated block by the first `size` bytes of the free block after it."""
        following = block.next
        assert following is not None
        following.pool.remove(following)
        block.size += size
        following.ptr += size
        following.size -= size
        following.pool.insert(following)


_NO_OTHER = 1 << 80
"""Number above every address, in place of the next segment's address if no segment follows."""


def plant(heap: Heap, private: PrivatePools, segments: Iterable[SegmentState]) -> dict[int, Block]:
    """Create `segments` in an empty heap, with their blocks.

    The statistics count the blocks as if each had just got its present state.
    Returns a dictionary from address to block, for freed blocks whose free is not complete.
    """
    pending: dict[int, Block] = {}
    ranges: dict[BlockPool, list[SegmentState]] = {}
    segments = sorted(segments, key=lambda segment: segment.address)
    # Narrow keys need sizes that are multiples of 512 (pool.py).
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
            for others_from, parts in _expandable_groups(mine, segments):
                _plant_expandable(heap, pool, parts, others_from, pending)
    heap.count_planted([*heap.active, *(block for pool in heap.pools for block in pool)])
    return pending


def _expandable_groups(
    mine: list[SegmentState], segments: list[SegmentState]
) -> Iterator[tuple[int, list[SegmentState]]]:
    # A group ends where a segment of another pool or stream comes in between; its address is
    # yielded first.
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
    """Set the states of `blocks` to those in `segment`, and add the free blocks to their pool.

    pending: dictionary from address to block; freed blocks with an incomplete free are added.
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


def _plant_expandable(
    heap: Heap,
    pool: BlockPool,
    ranges: list[SegmentState],
    others_from: int,
    pending: dict[int, Block],
) -> None:
    # others_from: address of the next segment of another pool or stream.
    # A recording does not show where the reserved range begins, so the lowest mapped address is
    # used.  Ranges too far apart for one reservation become further segments.
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
    stream, start, end = place
    if start == end:
        return []
    block = heap.new_block(start, end - start, pool, stream, rank)
    block.mapped = False
    return [block]
