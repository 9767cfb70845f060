"""Attempts to serve a request that found no free block, up to the first success or the error.

The attempts in their order (semantics.md, section 1.8), each with the function that makes it:

    1  process the events that have passed                 `CachingAllocator.malloc`
    2  take a free block                                   `CachingAllocator.malloc`
    3  collect garbage, then allocate a segment            `garbage_collect_cached_blocks`
    4  PyTorch 2.11+: take a block of a use_on_oom pool    `_try_mempool_fallback`
    5  release oversize blocks, then allocate a segment    `release_available_cached_blocks`
    6  release all cached blocks, then allocate a segment  `release_cached_blocks`
    7  2.8 to 2.10: take a block of a use_on_oom pool      `_try_mempool_fallback`
    8  raise OutOfMemoryError                              `_out_of_memory`

`_alloc_block` allocates the segment.  A use_on_oom pool is a private pool that also serves requests
of the default pool.  PyTorch 2.11 moved these pools from attempt 7 to attempt 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.core.block import Block
from allocsim.core.config import AllocatorConfig
from allocsim.core.expandable import try_allocate_expandable_block
from allocsim.core.find_split_merge import Heap
from allocsim.core.pending import PendingFrees
from allocsim.core.pool import BlockPool
from allocsim.core.private_pools import PrivatePools
from allocsim.core.reclaim import (
    garbage_collect_cached_blocks,
    release_available_cached_blocks,
    release_cached_blocks,
)
from allocsim.core.releases import Overflow
from allocsim.core.snapshot import Work
from allocsim.errors import OutOfMemoryError, UndefinedBehaviorError
from allocsim.units import format_size


class AllocParams:
    """Parameters of one request; sizes in bytes.

    size: rounded size of the request.
    segment_size: size of the segment to obtain from the driver.
    expandable: True if blocks of expandable segments may serve the request.
    may_split: False if the pool's blocks are not split (no_split).
    is_rejected: True once the option throw_on_cudamalloc_oom has refused the request.

    Source: semantics 1.12.
    """

    __slots__ = (
        "pool", "stream", "size", "segment_size", "expandable", "may_split", "is_rejected"
    )  # fmt: skip

    def __init__(  # noqa: PLR0917  (one for each field)
        self,
        pool: BlockPool,
        stream: int,
        size: int,
        segment_size: int,
        expandable: bool,
        may_split: bool,
    ) -> None:
        self.pool = pool
        self.stream = stream
        self.size = size
        self.segment_size = segment_size
        self.expandable = expandable
        self.may_split = may_split
        self.is_rejected = False


class Attempts:
    """Attempts to serve a request that found no free block, in the order of the list above."""

    __slots__ = ("_heap", "_private", "_pending", "_device_index")

    def __init__(
        self, heap: Heap, private: PrivatePools, pending: PendingFrees, device_index: int
    ) -> None:
        self._heap = heap
        self._private = private
        self._pending = pending
        self._device_index = device_index

    def alloc(self, block: Block | None, params: AllocParams, requested: int) -> Block:
        """Allocate a free `block`; if it is None, the block of the first successful attempt.

        requested: bytes of the request before rounding.
        Raises OutOfMemoryError if every attempt fails.
        """
        heap = self._heap
        if block is None:
            try:
                block = self._alloc_after_miss(params)
            finally:
                heap.work = Work.REQUEST
        if block is None:
            raise self._out_of_memory(params, requested)
        return heap.alloc_found_block(
            block, params.size, requested, params.expandable, params.may_split
        )

    def _alloc_after_miss(self, params: AllocParams) -> Block | None:
        heap = self._heap
        release = heap.release
        # Attempt 3.
        heap.work = Work.GARBAGE_COLLECTION
        garbage_collect_cached_blocks(heap)
        block = self._alloc_block(params)
        # A rejection ends the request only here, at its first attempt (1.12).
        if block is not None or params.is_rejected:
            return block
        # Attempt 4; before PyTorch 2.11 it comes last.
        if release.overflow is Overflow.FIRST and (block := self._try_mempool_fallback(params)):
            return block
        # Attempt 5.
        heap.work = Work.RELEASE_OVERSIZE
        if release_available_cached_blocks(heap, params.pool, params.stream, params.size):
            block = self._alloc_block(params)
        if block is None and not self._private.in_capture:
            # Attempt 6.  A capture must not synchronize, which releasing all cached blocks does.
            release_cached_blocks(heap, self._private, self._pending)
            self._check_pool_exists(params.pool)
            heap.stats.num_alloc_retries += 1
            block = self._alloc_block(params)
        if block is None and release.overflow is Overflow.LAST:
            block = self._try_mempool_fallback(params)
        return block

    def _check_pool_exists(self, pool: BlockPool) -> None:
        owner = pool.owner
        if owner is not None and self._private.pools.get(owner.id) is not owner:
            raise UndefinedBehaviorError(
                f"pool {owner.id} was released inside its scope and is forgotten under a request; "
                "PyTorch goes on with freed memory"
            )

    def _alloc_block(self, params: AllocParams) -> Block | None:
        """Obtain a segment as one block; return None if the memory limit or the driver refuses it.

        Each refusal by throw_on_cudamalloc_oom increments num_oom_rejections, but a refusal ends
        the request only in attempt 3 of the module docstring (semantics.md, section 1.12; observed
        on real PyTorch).
        """
        heap = self._heap
        heap.work = Work.DRIVER
        # The limit counts a whole segment, although an expandable segment maps only a part.
        after = heap.reserved + params.segment_size
        if heap.limit is not None and after > heap.limit:
            return None
        if heap.config.throw_on_cudamalloc_oom:
            fraction = heap.config.per_process_memory_fraction
            if after > int(fraction * heap.device.total):
                heap.stats.num_oom_rejections += 1
                params.is_rejected = True
                return None
        is_default = params.pool.owner is None
        expandable = heap.config.expandable_segments
        if expandable and (is_default or heap.release.expandable_private_pools):
            return try_allocate_expandable_block(heap, params.pool, params.stream, params.size)
        return heap.alloc_segment(params.pool, params.stream, params.segment_size)

    def _try_mempool_fallback(self, params: AllocParams) -> Block | None:
        """Return a free block of a pool marked use_on_oom, for a request of the default pool.

        Returns None if no block fits, or if the request is of a private pool.  From PyTorch 2.10
        on, only blocks from cudaMalloc serve such a request (observed on real PyTorch).
        Source: semantics 5.6.
        """
        if params.pool.owner is not None:
            return None
        expandable = params.expandable and self._heap.release.overflow_may_be_expandable
        for pool in self._private.overflow_pools():
            half = pool.small if params.pool.is_small else pool.large
            block = self._heap.get_free_block(half, params.stream, params.size, expandable)
            if block is not None:
                params.may_split = pool.id not in self._private.no_split
                params.expandable = expandable
                return block
        return None

    def _out_of_memory(self, params: AllocParams, requested: int) -> OutOfMemoryError:
        heap = self._heap
        device = heap.device
        tried = params.segment_size
        if params.is_rejected:
            text = rejection_text(requested)
        else:
            # The "oom" entry has the free bytes of the device in place of an address.
            heap.record("oom", device.free, params.size, params.stream, params.pool)
            heap.stats.num_ooms += 1
            figures = OomFigures(
                device=self._device_index,
                tried=tried,
                total=device.total,
                free=device.free,
                allocated=heap.stats.allocated_bytes(),
                reserved=heap.reserved,
                private=self._private.free_bytes(),
                limit=heap.limit,
            )
            text = oom_text(figures, heap.config)
        return OutOfMemoryError(
            text, requested_bytes=requested, rounded_bytes=params.size, tried_bytes=tried
        )


@dataclass(frozen=True, slots=True)
class OomFigures:
    """Numbers in the text of an out-of-memory error, in bytes except `device`.

    tried: size of the segment that the allocator failed to obtain.
    private: bytes of free blocks in private pools.
    limit: reserved bytes that the memory fraction allows; None without a fraction.
    """

    device: int
    tried: int
    total: int
    free: int
    allocated: int
    reserved: int
    private: int
    limit: int | None


def oom_text(figures: OomFigures, config: AllocatorConfig) -> str:
    """Return the text of an out-of-memory error, in the wording of the simulated release.

    The number after "Tried to allocate" is the size of the segment, not of the request, and free
    memory is read after the caches were released.  Source: semantics 7.2, 7.3, 12.4, 12.5.
    """
    release = config.release
    # From PyTorch 2.4 on, the text counts free blocks of private pools as allocated.
    private = figures.private if release.oom_counts_private_pools else 0
    text = release.oom_text.format(
        tried=format_size(figures.tried),
        # 2.3 prints an int8_t as a character.
        device=chr(figures.device) if release.oom_device_is_raw_byte else figures.device,
        total=format_size(figures.total),
        free=format_size(figures.free),
        limit=f"{format_size(figures.limit)} allowed; " if figures.limit is not None else "",
        allocated=format_size(figures.allocated + private),
        private=(
            f"with {format_size(private)} allocated in private pools (e.g., CUDA Graphs), "
            if private
            else ""
        ),
        # Includes blocks that wait for other streams.
        unallocated=format_size(figures.reserved - figures.allocated - private),
        advice=_advice(figures, config),
    )
    return text.split("\0", maxsplit=1)[0]  # a C string ends at the first NUL


def _advice(figures: OomFigures, config: AllocatorConfig) -> str:
    release = config.release
    if not config.expandable_segments or release.oom_advice_expandable is None:
        return release.oom_advice
    # A request longer than the address space of a segment fails on an empty device as well.
    is_set, reserve = config.expandable_segments_reserve, config.expandable_reserve(figures.total)
    if is_set is not None and reserve < figures.tried <= figures.total:
        return (
            " This allocation exceeds the expandable-segment reserve of "
            f"{format_size(reserve)} for this stream, and a single allocation cannot span "
            "expandable segments. Raise PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve or "
            "expandable_segments_reserve_by_class (or unset it) so that a segment is at least "
            f"{format_size(figures.tried)}."
        )
    return release.oom_advice_expandable


def rejection_text(requested: int) -> str:
    return (
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        f"per_process_memory_fraction limit. Requested size: {format_size(requested)}"
    )


TOO_LARGE = "CUDA out of memory. Tried to allocate more than 1EB memory."
