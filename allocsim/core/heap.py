"""Segments, their blocks and the pools of free ones: what a request or a free does to them.

Rules, each with its section of the semantics:
1. Best fit per stream; a candidate that is refused ends the search (1.5, 1.6).
2. A split makes a new object of the front; the old object becomes the tail (1.7).
3. A freed block absorbs its free neighbours and survives; between two mapped or two unmapped
   neighbours only (2.2).
4. Memory comes from and goes back to the driver in whole segments (1.8, 2.5); expandable ones
   are in mapping.py.
5. Every action leaves its entry in the trace, in upstream's order (6.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from allocsim.core.block import Block
from allocsim.core.columns import Names, find
from allocsim.core.config import AllocatorConfig, RoundedSizes
from allocsim.core.constants import MIN_BLOCK_SIZE, UNLIMITED
from allocsim.core.device import Device
from allocsim.core.history import TraceEntry, Witnessed, Work
from allocsim.core.pool import (
    BlockPool,
    PrivatePool,
    least_expandable_size,
    next_not_expandable,
)
from allocsim.core.releases import FreeBlockOrder, Release
from allocsim.core.sort_key import NARROW_PLACES, RANK_MASK, KeyLayout
from allocsim.core.stats import DeviceStats
from allocsim.errors import UndefinedBehaviorError, UpstreamAssertionError
from allocsim.state import PoolId
from allocsim.units import format_size

__all__ = ["Heap"]


class Heap:
    """The memory of one device and the rules by which it is cut up and put together.

    reserved: bytes from the driver.  limit: what a memory fraction allows, None without one.
    live, named, pending: each active block is in one of them: allocated ones by address, or by
    the name that the caller has for them, and those that wait for the end of their free.
    trace: the history, None if none is kept.  work: what is being done; witnessed: entries with
    it, None while nobody asks.  pools: all of them, private ones too.
    rounded_sizes: what requests are rounded to.
    made_expandable: whether an expandable segment was ever made.
    numbers_objects: the release orders free blocks by the age of their objects.
    spare: block objects that nobody can hold any more, to be used again by fast_path.py.
    """

    __slots__ = (
        "release", "config", "made_expandable", "rounded_sizes", "spare", "device", "stats",
        "small", "large", "pools", "layout", "live", "named", "pending", "reserved", "limit",
        "trace", "work", "witnessed", "_counter", "_next_place", "numbers_objects",
    )  # fmt: skip

    def __init__(
        self, release: Release, config: AllocatorConfig, device: Device, *, record_history: bool
    ) -> None:
        self.release = release
        self.device = device
        self.stats = DeviceStats(release, config.max_split_size_stat())
        self.layout = KeyLayout(release.free_block_order)
        self.small = BlockPool(True, self.layout)
        self.large = BlockPool(False, self.layout)
        self.pools = [self.small, self.large]
        self.live: dict[int, Block] = {}
        self.named: dict[int, Block] = Names()
        self.pending: dict[int, Block] = {}
        self.reserved = 0
        self.limit: int | None = None
        self.trace: list[TraceEntry] | None = [] if record_history else None
        self.work = Work.REQUEST
        self.witnessed: list[Witnessed] | None = None
        self.made_expandable = False
        self._counter = self._next_place = 0
        self.numbers_objects = release.free_block_order is FreeBlockOrder.CREATION
        self.spare: list[Block] = []
        self.use(config)

    def use(self, config: AllocatorConfig) -> None:
        """Put settings in force."""
        self.config = config
        self.rounded_sizes = RoundedSizes(config)
        if not config.rounds_to_quantum:
            self.widen_keys()

    # -- pools and the order of their blocks -----------------------------------------------

    def new_private_pool(self, pool_id: PoolId) -> PrivatePool:
        """The pools of a CUDA graph or a MemPool."""
        pool = PrivatePool(pool_id, self.layout)
        self.pools += pool.small, pool.large
        return pool

    def forget_private_pool(self, pool: PrivatePool) -> None:
        """Nothing is left in it."""
        self.pools.remove(pool.small)
        self.pools.remove(pool.large)

    def widen_keys(self) -> None:
        """Let keys hold any size and any place; addresses are their own places from then on."""
        if self.layout.is_wide:
            return
        self.layout.widen()
        if self.release.free_block_order is FreeBlockOrder.ADDRESS:
            for block in self._blocks():
                block.rank = 0
        for pool in self.pools:
            pool.rebuild_keys()

    def _close_gaps(self) -> None:
        """Give the segments that there are the first places, in the order that theirs have: those
        of segments that went back to the driver are given again."""
        place = self.layout.place
        firsts = [block for block in self._blocks() if block.prev is None]
        firsts.sort(key=lambda block: place(block.rank, block.ptr))
        end = 0
        for first in firsts:
            change = end - place(first.rank, first.ptr)
            block: Block | None = first
            while block is not None:
                block.rank = (block.rank + change) & RANK_MASK
                end += block.size
                block = block.next
        self._next_place = end
        for pool in self.pools:
            pool.rebuild_keys()

    def _blocks(self) -> Iterator[Block]:
        """Every block of every segment."""
        return chain(self.active, *self.pools, *(pool.unmapped for pool in self.pools))

    # -- blocks and their identity -------------------------------------------------------

    def new_block(self, ptr: int, size: int, pool: BlockPool, stream: int, rank: int) -> Block:
        """A fresh object.  `rank` is that of its segment; 2.12 numbers every object instead."""
        if self.numbers_objects:
            rank = self.next_rank()
        return Block(ptr, size, stream, pool, rank)

    def next_rank(self) -> int:
        """The number of a new object."""
        self._counter += 1
        return self._counter

    def new_segment_rank(self, base: int, size: int) -> int:
        """What every piece of a new segment adds to its address for its place among equals."""
        if self.release.free_block_order is FreeBlockOrder.SEGMENT:
            if self._next_place + size > NARROW_PLACES and not self.layout.is_wide:
                self._close_gaps()
            rank = self._next_place - base  # behind the places of all segments before
            self._next_place += size
            self.ensure_keys_fit(rank + base, size)
            return rank & RANK_MASK
        # An address: that to come, where one is about to be dictated.
        base = base if (there := self.device.dictated) is None else there
        self.ensure_keys_fit(base - self.layout.origin(base), size)
        return -self.layout.origin(base) & RANK_MASK

    def ensure_keys_fit(self, place: int, size: int) -> None:
        """Let keys hold the free blocks of a segment that begins at this place."""
        largest = min(size, self.device.total + self.device.host_memory)
        if not self.layout.takes(place, size, largest):
            self.widen_keys()

    @property
    def active(self) -> tuple[Block, ...]:
        """Every block that is allocated or waits for the end of its free."""
        return *self.live.values(), *self.named.values(), *self.pending.values()

    def allocated_at(self, ptr: int) -> Block | None:
        """The allocated block that begins at `ptr`, whatever the caller calls it."""
        named = (block for block in self.named.values() if block.ptr == ptr)
        return self.live.get(ptr) or next(named, None)

    def record(self, action: str, address: int, size: int, stream: int, pool: BlockPool) -> None:
        """Append to the trace, if one is kept."""
        if self.trace is not None:
            entry = TraceEntry(action, address, size, stream, pool.id)
            self.trace.append(entry)
            if self.witnessed is not None:
                self.witnessed.append(Witnessed(entry, self.work, self.reserved, self.device.free))

    # -- finding and handing out ---------------------------------------------------------

    @property
    def collects_garbage(self) -> bool:
        """Whether searches are counted: a limit and a threshold are set (1.9)."""
        return self.limit is not None and self.config.garbage_collection_threshold > 0

    def get_free_block(
        self, pool: BlockPool, stream: int, size: int, expandable: bool
    ) -> Block | None:
        """The free block for a rounded `size`, taken out of its pool; None: a miss.

        expandable: expandable segments are active for this request, so their blocks may serve it.
        """
        config = self.config
        if self.collects_garbage:
            pool.search_calls += 1
        # Rule 1.5 (also in fast_path.py): best fit.
        free = pool.of(stream)
        at = find(free.keys, size << pool.layout.size_shift)
        if at == len(free.keys):
            return None
        block = free.blocks[at]
        if block.expandable is not None:
            # Rule 4.4 (also in fast_path.py): the least expandable size.
            blocks = free.blocks
            at = (
                least_expandable_size(blocks, at) if expandable else next_not_expandable(blocks, at)
            )
            if at < 0:
                return None
            block = blocks[at]
        # Rule 1.6 (also in fast_path.py): an oversize block serves no normal request, and no
        # request that leaves too much of it.
        oversize = config.max_split_size
        if oversize != UNLIMITED:
            if size < oversize <= block.size:
                return None
            if size >= oversize and block.size >= size + config.max_non_split_rounding:
                return None
        free.take(at)
        return block

    def alloc_found_block(
        self, block: Block, size: int, requested: int, expandable: bool, may_split: bool = True
    ) -> Block:
        """Allocate the first `size` bytes of a block in no pool; split off the rest if it may be.

        expandable: expandable segments are active, so large blocks split down to 512 bytes too.
        Returns the block handed out, which is longer than `size` where it was not split.

        Mirrors: should_split
        """
        pool = block.pool
        splits = split_bytes = 0
        rest = block.size - size
        if pool.is_small or expandable:
            split = may_split and rest >= MIN_BLOCK_SIZE
        else:
            split = may_split and rest >= pool.least_rest and size < self.config.max_split_size
        was_split = block.prev is not None or block.next is not None
        if split:
            # Rule 1.7 (also in fast_path.py): a new object for the front; the old one is the tail.
            tail = block
            rank = self.next_rank() if self.numbers_objects else tail.rank
            block = Block(tail.ptr, size, tail.stream, pool, rank)
            block.expandable = tail.expandable
            tail.insert_before(block)
            tail.ptr += size
            tail.size = rest
            pool.insert(tail)
            splits, split_bytes = (0, -size) if was_split else (1, rest)
        elif was_split:
            splits, split_bytes = -1, -block.size
        if block.expandable is not None:
            splits = split_bytes = 0
        block.allocated = True
        block.requested_size = requested
        self.live[block.ptr] = block
        if self.trace is not None:
            # Rule 6.2 (also in fast_path.py): the history entry of a request.
            self.record("alloc", block.ptr, requested, block.stream, pool)
        self.stats.note(pool.is_small, block.size, requested, splits, split_bytes)
        if block.size >= self.config.max_split_size:
            self.stats.oversize_allocations.increase(1)
        return block

    # -- freeing -------------------------------------------------------------------------

    def free_now(self, block: Block) -> None:
        """Make an allocated block free, no stream being waited for."""
        requested, size = block.requested_size, block.size
        if self.trace is not None:
            # Rule 6.2 (also in fast_path.py): the history entries of a free.
            self.record("free_requested", block.ptr, requested, block.stream, block.pool)
            self.record("free_completed", block.ptr, requested, block.stream, block.pool)
        splits, split_bytes = self.free_block(block)
        self.stats.note(block.pool.is_small, -size, requested, splits, split_bytes)

    def free_later(self, block: Block) -> None:
        """Mark an allocated block as freed by its user; it stays active."""
        self.record("free_requested", block.ptr, block.requested_size, block.stream, block.pool)
        self.stats.free_requested(block.pool.is_small, block.size)
        self.pending[block.ptr] = block
        block.is_reusable = False

    def complete_free(self, block: Block) -> None:
        """Make a pending block free.

        Mirrors: free_block
        """
        del self.pending[block.ptr]
        requested, size = block.requested_size, block.size
        self.record("free_completed", block.ptr, requested, block.stream, block.pool)
        splits, split_bytes = self.free_block(block)
        self.stats.free_completed(block.pool.is_small, size, requested, splits, split_bytes)

    def free_block(self, block: Block) -> tuple[int, int]:
        """Merge with the neighbours, enter the free blocks; the net change of inactive_split.

        Mirrors: try_merge_blocks
        """
        # Rule 2.2 (also in fast_path.py): merge with both neighbours.
        splits = 0
        split_bytes = 0
        pool = block.pool
        prev = block.prev
        if prev is not None and prev.key:
            splits -= 1
            split_bytes -= prev.size
            pool.remove(prev)
            block.absorb_prev(prev)
        following = block.next
        if following is not None and following.key:
            splits -= 1
            split_bytes -= following.size
            pool.remove(following)
            block.absorb_next(following)
        pool.insert(block)
        if block.expandable is not None:
            return 0, 0
        if block.prev is not None or block.next is not None:
            splits += 1
            split_bytes += block.size
        return splits, split_bytes

    # -- segments from cudaMalloc --------------------------------------------------------

    def alloc_segment(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        """A segment of `size` bytes as one block in no pool; None: the driver refused."""
        address = self.device.cuda_malloc(size)
        if address is None:
            return None
        self.count_reserved(pool, size, +1)
        self.stats.num_device_alloc += 1
        if pool.owner is not None:
            pool.owner.segment_count += 1
        self.record("segment_alloc", address, size, stream, pool)
        return self.new_block(address, size, pool, stream, self.new_segment_rank(address, size))

    def release_block(self, block: Block) -> None:
        """cudaFree the segment that a free, unsplit block is."""
        if block.is_split:
            raise UndefinedBehaviorError(
                f"max_split_size_mb was lowered below a split block of {format_size(block.size)}; "
                "PyTorch would free part of a segment here"
            )
        pool = block.pool
        self.record("segment_free", block.ptr, block.size, block.stream, pool)
        self.check_segment_count(pool)
        pool.remove(block)
        self.device.cuda_free(block.ptr)
        self.count_reserved(pool, -block.size, -1)
        self.stats.num_device_free += 1
        if pool.owner is not None:
            pool.owner.segment_count -= 1

    def check_segment_count(self, pool: BlockPool) -> None:
        """Segments that mapping and unmapping have miscounted end in an assertion (12.6)."""
        if pool.owner is not None and pool.owner.segment_count <= 0:
            raise UpstreamAssertionError("the segment count of a private pool fell below zero")

    def count_reserved(self, pool: BlockPool, size: int, segments: int = 0) -> None:
        """Count bytes from the driver (negative: given back), and whole segments by cudaMalloc."""
        self.reserved += size
        self.stats.count_reserved(pool.is_small, size, pool.id)
        if segments:
            self.stats.count_segments(pool.is_small, segments)
            if abs(size) >= self.config.max_split_size:
                self.stats.oversize_segments.move(segments)

    # -- what existed before -------------------------------------------------------------

    def count_segment(self, pool: BlockPool, size: int) -> None:
        """Count a segment that a recording found in place."""
        self.count_reserved(pool, size, +1)
        if pool.owner is not None:
            pool.owner.segment_count += 1

    def count_planted(self, block: Block) -> None:
        """Count a block that a recording found in place."""
        self.stats.count_planted(
            block.pool.is_small,
            block.size,
            requested=block.requested_size,
            allocated=block.allocated,
            active=block.is_active,
            split=block.is_split and block.expandable is None,
        )
        if block.allocated and block.size >= self.config.max_split_size:
            self.stats.oversize_allocations.increase(1)
