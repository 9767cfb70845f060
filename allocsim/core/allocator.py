"""The caching allocator of one device: the calls of a program, and access to its state.

`malloc` completes the frees whose events have passed (`PendingFrees.process_events`) and searches
for a free block (`Heap.get_free_block`).  If there is none, the attempts of cache_miss.py follow.
If all attempts fail, the segments that they released stay released, and the memory that they mapped
stays mapped, as in PyTorch.  Source: docs/concepts/semantics.md 1.8.

The module is long because it is the interface of the core: one short method for each call of
torch.cuda, and for each value that other packages read.  Calls that only a replay makes are in
replay_port.py.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from allocsim.core import option_string
from allocsim.core.block import Block
from allocsim.core.cache_miss import TOO_LARGE, AllocParams, Attempts
from allocsim.core.check import check
from allocsim.core.config import AllocatorConfig, RoundedSizes
from allocsim.core.constants import MAX_REQUEST, SMALL_SIZE
from allocsim.core.device import Device
from allocsim.core.find_split_merge import Heap
from allocsim.core.hash_order import HashOrder, stream_hash
from allocsim.core.pending import PendingFrees
from allocsim.core.pool import BlockPool
from allocsim.core.private_pools import PrivatePools
from allocsim.core.reclaim import (
    holds_releasable,
    release_cached_blocks,
    release_cached_blocks_of_pool,
    release_freeable_pools,
)
from allocsim.core.releases import NEWEST, EmptyCacheInScope, Overflow, find_release
from allocsim.core.snapshot import (
    TraceEntry,
    Witnessed,
    Work,
    memory_snapshot,
    memory_summary,
    segments,
    snapshot,
)
from allocsim.core.stats import DeviceStats
from allocsim.errors import OutOfMemoryError, UpstreamAssertionError
from allocsim.state import DEFAULT_POOL, PoolId, SegmentState
from allocsim.units import parse_size


class CallCounts(NamedTuple):
    """Numbers of driver calls that obtained memory (`allocs`) and that released memory (`frees`).

    retries: number of times that a request released all cached memory and tried again.
    """

    allocs: int
    frees: int
    retries: int

    @property
    def of_driver(self) -> int:
        return self.allocs + self.frees


class CachingAllocator:
    """PyTorch's native CUDA caching allocator of one device.

    device_memory: memory of the card, in bytes or as text such as "16GiB".
    conf: value of PYTORCH_CUDA_ALLOC_CONF.
    torch_version: PyTorch version, such as "2.15".
    address_policy: "bump" never reuses an address, "firstfit" takes the lowest free range, "driver"
        chooses addresses as CUDA does.
    base_address: address of the first segment; with the policy "driver", the address below which
        segments are placed; 0 for `DRIVER_TOP`.
    context_memory: bytes of the CUDA context and of other processes.
    host_spill: host memory that the driver provides once the card is full; 0 if it provides none.
    record_history: True to keep the history that `snapshot` shows.
    device: device number in snapshots and error texts.
    fast_path: False switches off the fast loop for replays (fast_path.py); the result is the same.
    rounded_sizes: cache of rounded sizes to share with an allocator of equal options; None for a
        new cache.

    Raises ConfigError for a value that this version of PyTorch or the model refuses.

    Mirrors: DeviceCachingAllocator
    """

    def __init__(
        self,
        device_memory: int | str = "16GiB",
        conf: str = "",
        torch_version: str = NEWEST,
        *,
        address_policy: str = "bump",
        base_address: int = 0,
        context_memory: int | str = 0,
        host_spill: int | str = 0,
        record_history: bool = False,
        device: int = 0,
        fast_path: bool = True,
        rounded_sizes: RoundedSizes | None = None,
    ) -> None:
        self.release = find_release(torch_version)
        self.device = Device(
            parse_size(device_memory),
            context_memory=parse_size(context_memory),
            host_memory=parse_size(host_spill),
            policy=address_policy,
            base_address=base_address,
        )
        self.device_index = device
        config = option_string.parse(conf, self.release)
        self.heap = Heap(self.release, config, self.device, record_history=record_history)
        if rounded_sizes is not None:
            self.heap.rounded_sizes = rounded_sizes
        self.private_pools = PrivatePools(self.heap)
        self._stream_hash = stream_hash(device)
        self._pending = PendingFrees(self.heap, self._stream_hash)
        self._attempts = Attempts(self.heap, self.private_pools, self._pending, device)
        self._has_fast_path = fast_path
        if config.per_process_memory_fraction < 1.0:
            self.set_per_process_memory_fraction(config.per_process_memory_fraction)

    # -- requests ------------------------------------------------------------------------

    def malloc(self, size: int, stream: int = 0) -> int | None:
        """Allocate at least `size` bytes and return the address; None for 0 bytes.

        stream: number of the CUDA stream, as in a snapshot; 0 for the default stream.
        Raises OutOfMemoryError with the message that the simulated version of PyTorch prints.
        """
        if size <= 0 or size >= MAX_REQUEST:
            self._reject_invalid_size(size)
            return None
        heap, private = self.heap, self.private_pools
        # Upstream queries no events during a capture.
        if self._pending.is_waiting and not private.in_capture:
            self._pending.process_events()
        rounded = heap.rounded_sizes[size]
        if private.scopes:
            return self._malloc_in_scope(stream, rounded, size)
        pool = heap.small if rounded <= SMALL_SIZE else heap.large
        expandable = heap.config.expandable_segments
        block = heap.get_free_block(pool, stream, rounded, expandable)
        if block is not None:
            return heap.alloc_found_block(block, rounded, size, expandable).ptr
        return self._attempts.alloc(None, self._params(pool, stream, rounded), size).ptr

    def _malloc_in_scope(self, stream: int, rounded: int, size: int) -> int:
        heap = self.heap
        owner = self.private_pools.get_pool(stream)
        pools = heap if owner is None else owner
        pool = pools.small if rounded <= SMALL_SIZE else pools.large
        params = self._params(pool, stream, rounded)
        block = heap.get_free_block(pool, stream, rounded, params.expandable)
        return self._attempts.alloc(block, params, size).ptr

    def _reject_invalid_size(self, size: int) -> None:
        if size >= MAX_REQUEST:
            raise OutOfMemoryError(
                TOO_LARGE, requested_bytes=size, rounded_bytes=size, tried_bytes=0
            )
        if size < 0:
            raise ValueError(f"malloc of {size} bytes; expected 0 or more")

    def _params(self, pool: BlockPool, stream: int, rounded: int) -> AllocParams:
        config, owner = self.heap.config, pool.owner
        return AllocParams(
            pool=pool,
            stream=stream,
            size=rounded,
            segment_size=config.segment_size(rounded),
            expandable=config.expandable_segments,
            may_split=owner is None or owner.id not in self.private_pools.no_split,
        )

    # -- frees and streams ---------------------------------------------------------------

    def free(self, ptr: int | None) -> None:
        """Free the block at `ptr`; do nothing if `ptr` is None.

        Raises ValueError if no allocated block begins at `ptr`.
        """
        if ptr is None:
            return
        block = self._pop_live(ptr)
        if block.stream_uses is None:
            self.heap.free_now(block)
            return
        # Other streams may still use the memory, so the block waits for their events.
        self._pending.add(block, in_capture=self.private_pools.in_capture)

    def _pop_live(self, ptr: int) -> Block:
        block = self.heap.live.pop(ptr, None)
        if block is None:
            raise ValueError(f"invalid device pointer: {ptr:#x} is not allocated")
        block.allocated = False
        # The threshold in force now, not the one when the block was allocated.
        if block.size >= self.heap.config.max_split_size:
            self.heap.stats.oversize_allocations.decrease(1)
        return block

    def record_stream(self, ptr: int, stream: int) -> None:
        """Make a later free of the block at `ptr` wait for the work of `stream`."""
        block = self.heap.live.get(ptr)
        if block is None:
            raise ValueError(f"record_stream of {ptr:#x}, which is not allocated")
        if stream == block.stream:  # ordered by the stream itself
            return
        if block.stream_uses is None:
            block.stream_uses = HashOrder(self._stream_hash)
        block.stream_uses[stream] = None
        # PyTorch 2.4 to 2.12 ignores streams recorded during a capture after it (section 5.5).
        if self.private_pools.in_capture and self.release.forgets_captured_streams:
            if block.capture_uses is None:
                block.capture_uses = set()
            block.capture_uses.add(stream)

    def synchronize(self, stream: int | None = None) -> None:
        """Mark the submitted work of `stream`, or of every stream if None, as finished.

        The next malloc then completes the frees that waited for this work.
        """
        self.device.synchronize(stream)

    # -- releasing memory ----------------------------------------------------------------

    def empty_cache(self, pool: int | PoolId | None = None) -> None:
        """Release cached memory like torch.cuda.empty_cache().

        pool: private pool to release, as PyTorch 2.8 and later do when its MemPool is deleted; None
            to release all cached memory.  A private pool that is in use is not released.

        Raises ValueError for a `pool` if empty_cache of this version of PyTorch accepts none.
        """
        pool_id = DEFAULT_POOL if pool is None else _pool_id(pool)
        if pool_id != DEFAULT_POOL:
            if not self.release.empty_cache_of_pool:
                raise ValueError(f"empty_cache takes no pool in release {self.release.version}")
            release_cached_blocks_of_pool(self.heap, self.private_pools, self._pending, pool_id)
            return
        if self.private_pools.scopes:
            if self.release.empty_cache_in_scope is EmptyCacheInScope.ASSERTS:
                # Upstream counts the wait before it asserts.
                self.heap.stats.num_sync_all_streams += 1
                raise UpstreamAssertionError(
                    f"empty_cache inside a pool scope asserts in release {self.release.version}"
                )
            if self.release.empty_cache_in_scope is EmptyCacheInScope.FREEABLE_ONLY:
                release_freeable_pools(self.heap, self.private_pools)
                return
        release_cached_blocks(self.heap, self.private_pools, self._pending)

    # -- pools ---------------------------------------------------------------------------

    @property
    def in_capture(self) -> bool:
        """True while an open pool scope counts as a graph capture.

        Frees of blocks that several streams use then wait for `end_allocate_to_pool`.

        Source: semantics 5.4.
        """
        return self.private_pools.in_capture

    def begin_allocate_to_pool(
        self,
        pool: int | PoolId,
        *,
        no_split: bool = False,
        use_on_oom: bool = False,
        stream: int | None = None,
    ) -> None:
        """Send requests to a private pool until `end_allocate_to_pool`.

        pool: id of the private pool; a number n means (0, n).
        no_split: do not split blocks of the pool (PyTorch 2.10 and later).
        use_on_oom: let the pool serve requests of the default pool on a full device (PyTorch 2.8
            and later).
        stream: in PyTorch up to 2.2, the only stream whose requests go to the pool (None for stream
            0); ignored in later versions.

        Mirrors: setNoSplit, setUseOnOOM
        """
        pool_id = _pool_id(pool)
        if no_split and not self.release.no_split:
            raise ValueError(f"no_split does not exist in release {self.release.version}")
        if use_on_oom and self.release.overflow is Overflow.NEVER:
            raise ValueError(f"use_on_oom does not exist in release {self.release.version}")
        self.private_pools.begin_allocate_to_pool(pool_id, stream)
        if no_split:
            self.private_pools.no_split.add(pool_id)
        if use_on_oom:
            self.private_pools.use_on_oom[pool_id] = None

    def end_allocate_to_pool(self, pool: int | PoolId) -> None:
        """Stop sending requests to a private pool."""
        self.private_pools.end_allocate_to_pool(_pool_id(pool))

    def release_pool(self, pool: int | PoolId) -> None:
        """Decrement the use count of a private pool; at 0 its cached memory can be released.

        The use count is the number of graph captures and MemPools that use the pool.
        """
        self.private_pools.release_pool(_pool_id(pool))

    @property
    def has_cached_memory(self) -> bool:
        """True if the default pools or unused private pools have memory to release."""
        return holds_releasable(self.heap, self.private_pools)

    def delete_mempool(self, pool: int | PoolId) -> None:
        """Delete the torch.cuda.MemPool that uses a private pool (semantics.md, section 5.7).

        This decrements the use count of the pool, ends its use_on_oom (PyTorch 2.11+), and
        releases its cached memory if the count is then 0.  Raises ValueError for PyTorch up to 2.5,
        where a MemPool does not count as a user of its private pool.

        Mirrors: MemPool::~MemPool
        """
        pool_id, release = _pool_id(pool), self.release
        if not release.mempools_hold_pools:
            raise ValueError(f"a MemPool holds no pool in release {release.version}")
        if release.mempool_is_last_user and self.pool_use_count(pool_id) != 1:
            raise UpstreamAssertionError(f"the MemPool of {pool_id} is not its only user")
        if release.mempool_takes_mark_back and pool_id in self.private_pools.use_on_oom:
            del self.private_pools.use_on_oom[pool_id]
        self.private_pools.release_pool(pool_id)
        release_cached_blocks_of_pool(self.heap, self.private_pools, self._pending, pool_id)

    # -- settings ------------------------------------------------------------------------

    def set_allocator_settings(self, conf: str) -> None:
        """Change options at run time, like torch.cuda.memory._set_allocator_settings().

        conf: option string in the form of PYTORCH_CUDA_ALLOC_CONF.

        Raises ConfigError for an option that the simulated PyTorch refuses.  The options before it
        in `conf` are applied nevertheless.
        """
        try:
            self.heap.use_config(option_string.parse(conf, self.release, self.heap.config))
        except option_string.BadOptionError as error:
            # Upstream applies each option as it reads it.
            if error.applied is not None:
                self.heap.use_config(error.applied)
            raise

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """Limit reserved memory to a fraction of the device, 0 to 1 (semantics.md, section 1.11).

        Mirrors: setMemoryFraction
        """
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"memory fraction {fraction} is out of range; expected 0 to 1")
        # From PyTorch 2.10 on, a fraction of 1 removes the limit.
        if fraction == 1.0 and not self.release.full_fraction_is_limit:
            self.heap.limit = None
            return
        share = fraction * self.device.total
        if self.release.fraction_rounds:
            # Exact, as llround is: adding 0.5 to a double would round a second time.
            self.heap.limit = int(Fraction(share) + Fraction(1, 2))
        else:
            self.heap.limit = int(share)

    # -- reading -------------------------------------------------------------------------

    def is_allocated(self, ptr: int) -> bool:
        """Return True if an allocated block begins at `ptr`."""
        return ptr in self.heap.live

    def size_of(self, ptr: int) -> int:
        """Return the bytes of the allocated block at `ptr`; raise KeyError if there is none."""
        return self.heap.live[ptr].size

    def round_size(self, size: int) -> int:
        """Return the block size for a request of `size` bytes (semantics.md, section 1.2)."""
        return self.heap.rounded_sizes[size]

    def pool_use_count(self, pool: int | PoolId) -> int:
        """Return the number of captures and MemPools that use a private pool, 0 if it is unknown.

        Mirrors: getPoolUseCount
        """
        found = self.private_pools.pools.get(_pool_id(pool))
        return 0 if found is None else found.use_count

    @property
    def config(self) -> AllocatorConfig:
        """Present values of the options of PYTORCH_CUDA_ALLOC_CONF."""
        return self.heap.config

    @property
    def reserved_bytes(self) -> int:
        """Bytes obtained from the driver, as torch.cuda.memory_reserved() returns them."""
        return self.heap.reserved

    @property
    def allocated_bytes(self) -> int:
        """Bytes of allocated blocks, as torch.cuda.memory_allocated() returns them."""
        return self.heap.stats.allocated_bytes()

    @property
    def calls(self) -> CallCounts:
        """Numbers of driver calls and retries since the allocator was created."""
        stats = self.heap.stats
        return CallCounts(stats.num_device_alloc, stats.num_device_free, stats.num_alloc_retries)

    @property
    def memory_limit(self) -> int | None:
        """Bytes that may be reserved, or None without a limit.

        set_per_process_memory_fraction sets the limit; so do the options throw_on_cudamalloc_oom
        and per_process_memory_fraction together (semantics.md, section 1.12).
        """
        limit, config = self.heap.limit, self.heap.config
        if not config.throw_on_cudamalloc_oom:
            return limit
        # Truncated in every release (1.12).
        share = int(config.per_process_memory_fraction * self.device.total)
        return share if limit is None else min(limit, share)

    def statistics(self) -> DeviceStats:
        """Return the statistics of torch.cuda.memory_stats() as one object.

        Mirrors: getStats
        """
        self.heap.stats.fold()
        return self.heap.stats

    def memory_stats(self) -> dict[str, int]:
        """Return the flat dict of torch.cuda.memory_stats()."""
        return self.heap.stats.as_dict()

    def memory_allocated(self) -> int:
        """Return `allocated_bytes`; the name is that of torch.cuda."""
        return self.allocated_bytes

    def max_memory_allocated(self) -> int:
        """Return the peak of `memory_allocated`, in bytes."""
        return self.statistics().all.allocated_bytes.peak

    def memory_reserved(self) -> int:
        """Return `reserved_bytes`; the name is that of torch.cuda."""
        return self.reserved_bytes

    def max_memory_reserved(self) -> int:
        """Return the peak of `memory_reserved`, in bytes."""
        return self.statistics().all.reserved_bytes.peak

    def mem_get_info(self) -> tuple[int, int]:
        """Return the free and the total memory of the device, in bytes."""
        return self.device.free, self.device.total

    def reset_peak_memory_stats(self) -> None:
        """Set every peak to its current value.

        Mirrors: resetPeakStats
        """
        self.heap.stats.reset_peak()

    def reset_accumulated_memory_stats(self) -> None:
        """Set all totals and counters to zero: bytes allocated and freed, retries, OOMs and others.

        Mirrors: resetAccumulatedStats
        """
        self.heap.stats.reset_accumulated()

    def memory_summary(self) -> str:
        """Return the table of torch.cuda.memory_summary()."""
        return memory_summary(self.memory_stats(), self.device_index)

    def snapshot(self) -> dict[str, Any]:
        """Return the dict of torch.cuda.memory._snapshot()."""
        return snapshot(self.heap, self.device_index)

    def segments(self) -> tuple[SegmentState, ...]:
        """Return the segments with their blocks, in address order.

        Unlike `snapshot`, this adds no entry to the history.
        """
        return segments(self.heap)

    def memory_snapshot(self) -> list[dict[str, Any]]:
        """Return the list of torch.cuda.memory_snapshot()."""
        return memory_snapshot(self.heap, self.device_index)

    @property
    def history(self) -> list[TraceEntry]:
        """History entries since the last `take_history`; later entries are added to this list."""
        return [] if self.heap.trace is None else self.heap.trace

    def witness(self, act: Callable[[], None]) -> tuple[Witnessed, ...]:
        """Call `act`; return the history entries that it adds, and the memory in use at each entry.

        Raises ValueError if the allocator keeps no history.
        """
        heap = self.heap
        if heap.trace is None:
            raise ValueError("the allocator keeps no history; expected record_history=True")
        found: list[Witnessed] = []
        heap.witnessed, heap.work = found, Work.REQUEST
        try:
            act()
        finally:
            heap.witnessed = None
        return tuple(found)

    def take_history(self) -> list[TraceEntry]:
        """Return all history entries since the last call, and remove them from the history."""
        if self.heap.trace is None:
            return []
        taken = self.heap.trace.copy()
        self.heap.trace.clear()
        return taken

    def check(self) -> None:
        """Raise InvariantError if an invariant of check.py is broken; for tests."""
        check(self.heap, self.private_pools)


def _pool_id(pool: int | PoolId) -> PoolId:
    return (0, pool) if isinstance(pool, int) else pool
