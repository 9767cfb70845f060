"""Segments, blocks and pools, and the effect of a request or a free on them.

Rules, each with its section of docs/concepts/semantics.md:
1. Best fit per stream.  If the candidate is too large for the request, the search ends (1.5, 1.6).
2. A split makes a new object for the front; the old object becomes the tail (1.7).
3. A freed block absorbs its free neighbours; mapped and unmapped blocks do not merge (2.2).
4. Memory comes from and returns to the driver in whole segments (1.8, 2.5); expandable segments are
   in expandable.py.
5. Every action records its entry in the trace, in upstream's order (6.2).

The module is long because these rules share one state.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from allocsim.core.block import Block
from allocsim.core.columns import Names, find
from allocsim.core.config import AllocatorConfig, RoundedSizes
from allocsim.core.constants import MIN_BLOCK_SIZE, SMALL_BUFFER, UNLIMITED
from allocsim.core.device import Device
from allocsim.core.pool import (
    NARROW_PLACES,
    RANK_MASK,
    BlockPool,
    KeyLayout,
    PrivatePool,
    least_expandable,
    next_not_expandable,
)
from allocsim.core.releases import FreeBlockOrder, Release
from allocsim.core.snapshot import TraceEntry, Witnessed, Work
from allocsim.core.stats import DeviceStats
from allocsim.errors import UndefinedBehaviorError, UpstreamAssertionError
from allocsim.state import PoolId
from allocsim.units import format_size


class Heap:
    """Memory of one device, with the rules that split and merge it.

    small, large: default pools.
    pools: all small and large pools, including those of private pools.
    layout: bit layout of the sort keys by which all pools order their free blocks (`KeyLayout`).
    live: dictionary from address to allocated block, for blocks without a name.
    named: dictionary from name to allocated block; in a replay, the name is the recorded address.
    pending: dictionary from address to block, for freed blocks that wait for other streams or for a
        replay step.
    witnessed: history entries, each with the memory in use and the cause, such as a garbage
        collection (`Witnessed`); None if no caller needs them.
    least_segment: lower bound of the bytes of each segment and each handle.
    made_expandable: True if an expandable segment was ever created.
    numbers_objects: True if this version of PyTorch orders free blocks of equal size by the age of
        the C++ object; each block then has a creation number.
    spare: unused block objects that fast_path.py may reuse.
    """

    __slots__ = (
        "release", "config", "made_expandable", "rounded_sizes", "spare", "device", "stats",
        "small", "large", "pools", "layout", "live", "named", "pending", "reserved", "limit",
        "trace", "work", "witnessed", "_counter", "_next_place", "numbers_objects",
        "least_segment",
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
        self.least_segment = SMALL_BUFFER
        self.trace: list[TraceEntry] | None = [] if record_history else None
        self.work = Work.REQUEST
        self.witnessed: list[Witnessed] | None = None
        self.made_expandable = False
        self._counter = self._next_place = 0
        self.numbers_objects = release.free_block_order is FreeBlockOrder.CREATION
        self.spare: list[Block] = []
        self.use_config(config)

    def use_config(self, config: AllocatorConfig) -> None:
        self.config = config
        self.rounded_sizes = RoundedSizes(config)
        if not config.rounds_to_quantum:
            self.widen_keys()

    # -- pools and the order of their blocks -----------------------------------------------

    def new_private_pool(self, pool_id: PoolId) -> PrivatePool:
        pool = PrivatePool(pool_id, self.layout)
        self.pools += pool.small, pool.large
        return pool

    def forget_private_pool(self, pool: PrivatePool) -> None:
        self.pools.remove(pool.small)
        self.pools.remove(pool.large)

    def widen_keys(self) -> None:
        """Use wide sort keys for free blocks, which fit any size and address (`KeyLayout`)."""
        if self.layout.is_wide:
            return
        self.layout.widen()
        if self.release.free_block_order is FreeBlockOrder.ADDRESS:
            for block in self._blocks():
                block.rank = 0
        for pool in self.pools:
            pool.rebuild_keys()

    def _renumber_segments(self) -> None:
        # In the same order, from 0.
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
        return chain(self.active, *self.pools, *(pool.unmapped for pool in self.pools))

    # -- blocks and their identity -------------------------------------------------------

    def new_block(self, ptr: int, size: int, pool: BlockPool, stream: int, rank: int) -> Block:
        # In PyTorch 2.12 the creation number of the block replaces the rank of its segment.
        if self.numbers_objects:
            rank = self.next_rank()
        return Block(ptr, size, stream, pool, rank)

    def next_rank(self) -> int:
        self._counter += 1
        return self._counter

    def new_segment_rank(self, base: int, size: int) -> int:
        """Return a segment's rank: added to addresses, it orders free blocks of equal size."""
        if self.release.free_block_order is FreeBlockOrder.SEGMENT:
            if self._next_place + size > NARROW_PLACES and not self.layout.is_wide:
                self._renumber_segments()
            rank = self._next_place - base  # after the places of all earlier segments
            self._next_place += size
            self.ensure_keys_fit(rank + base, size)
            return rank & RANK_MASK
        # Places are addresses, counted from the layout's origin.  If a recording dictates an
        # address, the segment will get it.
        base = base if (there := self.device.dictated) is None else there
        self.ensure_keys_fit(base - self.layout.origin(base), size)
        return -self.layout.origin(base) & RANK_MASK

    def ensure_keys_fit(self, place: int, size: int) -> None:
        largest = min(size, self.device.total + self.device.host_memory)
        if not self.layout.has_room_for(place, size, largest):
            self.widen_keys()

    @property
    def active(self) -> tuple[Block, ...]:
        """Blocks that are allocated, or that are freed but wait for the free to complete."""
        return *self.live.values(), *self.named.values(), *self.pending.values()

    def allocated_at(self, ptr: int) -> Block | None:
        named = (block for block in self.named.values() if block.ptr == ptr)
        return self.live.get(ptr) or next(named, None)

    def record(self, action: str, address: int, size: int, stream: int, pool: BlockPool) -> None:
        if self.trace is not None:
            entry = TraceEntry(action, address, size, stream, pool.id)
            self.trace.append(entry)
            if self.witnessed is not None:
                self.witnessed.append(Witnessed(entry, self.work, self.reserved, self.device.free))

    # -- allocating ----------------------------------------------------------------------

    @property
    def collects_garbage(self) -> bool:
        return self.limit is not None and self.config.garbage_collection_threshold > 0

    def get_free_block(
        self, pool: BlockPool, stream: int, size: int, expandable: bool
    ) -> Block | None:
        """Remove the best-fitting free block from the pool and return it; None if no block fits.

        expandable: True if blocks of expandable segments may serve the request.
        """
        config = self.config
        if self.collects_garbage:
            # Every search ages the free blocks of the pool, even if it finds none (1.9).
            pool.search_calls += 1
        # Rule 1.5 (also in fast_path.py): best fit.
        free = pool.of(stream)
        # A key with place 0 is not above any key of its size, so this is the first block of the
        # smallest size that fits.
        at = find(free.keys, size << pool.layout.size_shift)
        if at == len(free.keys):
            return None
        block = free.blocks[at]
        if block.expandable is not None:
            # Rule 4.4 (also in fast_path.py): the least expandable size.
            blocks = free.blocks
            at = least_expandable(blocks, at) if expandable else next_not_expandable(blocks, at)
            if at < 0:
                return None
            block = blocks[at]
        # Rule 1.6 (also in fast_path.py): an oversize block serves no normal request, and no
        # request that leaves too much of it.
        oversize = config.max_split_size
        # A refused candidate ends the search: upstream does not look at the next block.
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
        """Allocate the first `size` bytes of a block taken from its pool; return that block.

        The whole block is allocated if `may_split` is False, if the request is oversize, or if the
        rest is too small to split off.  It is too small below 512 bytes; in the large pool without
        expandable segments, up to 1 MiB.

        requested: bytes of the request before rounding.
        expandable: True if expandable segments are on.

        Mirrors: should_split
        """
        pool = block.pool
        splits = split_bytes = 0  # changes of the statistic inactive_split
        rest = block.size - size
        # Oversize requests get the whole block.
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
            # A block that already shared its segment was inactive split as a whole; only its front
            # leaves.  Otherwise the tail becomes inactive split.
            splits, split_bytes = (0, -size) if was_split else (1, rest)
        elif was_split:
            splits, split_bytes = -1, -block.size
        if block.expandable is not None:
            # Upstream leaves expandable blocks out of inactive_split.
            splits = split_bytes = 0
        block.allocated = True
        block.requested_size = requested
        self.live[block.ptr] = block
        if self.trace is not None:
            # Rule 6.2 (also in fast_path.py): the history entry of a request.
            self.record("alloc", block.ptr, requested, block.stream, pool)
        self.stats.add_record(pool.is_small, block.size, requested, splits, split_bytes)
        if block.size >= self.config.max_split_size:
            self.stats.oversize_allocations.increase(1)
        return block

    # -- freeing -------------------------------------------------------------------------

    def free_now(self, block: Block) -> None:
        requested, size = block.requested_size, block.size
        if self.trace is not None:
            # Rule 6.2 (also in fast_path.py): the history entries of a free.
            self.record("free_requested", block.ptr, requested, block.stream, block.pool)
            self.record("free_completed", block.ptr, requested, block.stream, block.pool)
        splits, split_bytes = self.free_block(block)
        self.stats.add_record(block.pool.is_small, -size, requested, splits, split_bytes)

    def free_later(self, block: Block) -> None:
        """Mark an allocated block as freed by the program; `complete_free` completes the free."""
        self.record("free_requested", block.ptr, block.requested_size, block.stream, block.pool)
        self.stats.free_requested(block.pool.is_small, block.size)
        self.pending[block.ptr] = block
        # An event queue or a RequestedFree refers to the object from now on.
        block.is_reusable = False

    def complete_free(self, block: Block) -> None:
        """Complete the free of a block that `free_later` marked.

        Mirrors: free_block
        """
        del self.pending[block.ptr]
        requested, size = block.requested_size, block.size
        self.record("free_completed", block.ptr, requested, block.stream, block.pool)
        splits, split_bytes = self.free_block(block)
        self.stats.free_completed(block.pool.is_small, size, requested, splits, split_bytes)

    def free_block(self, block: Block) -> tuple[int, int]:
        """Merge a freed block with its free neighbours and insert the merged block into its pool.

        Returns the change of the number and of the bytes of inactive split blocks.

        Mirrors: try_merge_blocks
        """
        # Rule 2.2 (also in fast_path.py): merge with both neighbours.
        # The object of the freed block survives: in PyTorch 2.12 its age decides ties (1.5).
        splits = 0
        split_bytes = 0
        pool = block.pool
        prev = block.prev
        if prev is not None and prev.key:  # only free blocks have a key
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
        """Obtain a segment with cudaMalloc, as one block in no pool; None if out of memory."""
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
        if block.is_split:
            raise UndefinedBehaviorError(
                f"max_split_size_mb was lowered below a split block of {format_size(block.size)}; "
                "PyTorch would free part of a segment here"
            )
        pool = block.pool
        self.record("segment_free", block.ptr, block.size, block.stream, pool)
        # Upstream records the entry before it asserts.
        self.check_segment_count(pool)
        pool.remove(block)
        self.device.cuda_free(block.ptr)
        self.count_reserved(pool, -block.size, -1)
        self.stats.num_device_free += 1
        if pool.owner is not None:
            pool.owner.segment_count -= 1

    def check_segment_count(self, pool: BlockPool) -> None:
        """Raise UpstreamAssertionError if a private pool has no segments.

        Source: semantics 12.6.
        """
        if pool.owner is not None and pool.owner.segment_count <= 0:
            raise UpstreamAssertionError("the segment count of a private pool fell below zero")

    def count_reserved(self, pool: BlockPool, size: int, segments: int = 0) -> None:
        """Add `size` to the reserved bytes and `segments` to the number of cudaMalloc segments.

        Both are negative for released memory.
        """
        self.reserved += size
        self.stats.count_reserved(pool.is_small, size, pool.id)
        if segments:
            self.stats.count_segments(pool.is_small, segments)
            # The threshold in force now, not the one when the segment was made.
            if abs(size) >= self.config.max_split_size:
                self.stats.oversize_segments.change_by(segments)

    # -- blocks from before the simulation -----------------------------------------------

    def count_segment(self, pool: BlockPool, size: int) -> None:
        self.count_reserved(pool, size, +1)
        if pool.owner is not None:
            pool.owner.segment_count += 1

    def count_planted(self, blocks: list[Block]) -> None:
        self.stats.count_planted(blocks)
        oversize = self.config.max_split_size
        n_oversize = sum(block.allocated and block.size >= oversize for block in blocks)
        self.stats.oversize_allocations.increase(n_oversize)
