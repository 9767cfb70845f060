"""The caching allocator of one device: the calls of a program, and access to its state.

`malloc` completes the frees whose events have passed (`PendingFrees.process_events`), looks for a
free block (`Heap.get_free_block`) and otherwise makes the attempts of attempts.py.  If they all
fail, what they released or mapped stays so, as upstream.  Source: semantics 1.8.

Long because it is the interface of the core: one short method for each call of
torch.cuda, for each kind of replay step and for each value that other packages read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from allocsim.core import option_string
from allocsim.core.attempts import AllocParams, Attempts
from allocsim.core.block import Block
from allocsim.core.check import check
from allocsim.core.columns import BlockColumns, Names, block_columns
from allocsim.core.config import AllocatorConfig, RoundedSizes
from allocsim.core.constants import IS_COMPILED, MAX_REQUEST, SMALL_SIZE
from allocsim.core.device import Device
from allocsim.core.fast_path import PlainStep
from allocsim.core.hash_order import HashOrder, stream_hash
from allocsim.core.heap import Heap
from allocsim.core.history import TraceEntry, Witnessed, Work
from allocsim.core.journal import Folder, Journal
from allocsim.core.oom import TOO_LARGE
from allocsim.core.pending import PendingFrees, RequestedFree
from allocsim.core.pool import BlockPool
from allocsim.core.private_pools import PrivatePools
from allocsim.core.reclaim import (
    holds_releasable,
    release_cached_blocks,
    release_cached_blocks_of_pool,
    release_freeable_pools,
)
from allocsim.core.releases import NEWEST, EmptyCacheInScope, Overflow, find_release
from allocsim.core.seed import plant
from allocsim.core.snapshot import memory_snapshot, segments, snapshot
from allocsim.core.stats import DeviceStats, Marked
from allocsim.core.summary import memory_summary
from allocsim.errors import OutOfMemoryError, UpstreamAssertionError
from allocsim.state import DEFAULT_POOL, PoolId, SegmentState
from allocsim.units import parse_size

if TYPE_CHECKING or not IS_COMPILED:
    from allocsim.core.fast_path import play
else:
    from allocsim.core._fast_path import play

__all__ = ["CachingAllocator"]


class Calls(NamedTuple):
    """Number of driver calls and retries.

    allocs: calls that obtained memory.
    frees: calls that released memory.
    retries: requests repeated after all cached memory was released.
    """

    allocs: int
    frees: int
    retries: int

    @property
    def of_driver(self) -> int:
        """Number of all driver calls."""
        return self.allocs + self.frees


class CachingAllocator:
    """PyTorch's native CUDA caching allocator of one device.

    device_memory: memory of the card, in bytes or as text such as "16GiB".
    conf: value of PYTORCH_CUDA_ALLOC_CONF.
    torch_version: a release in `RELEASES`.
    address_policy: "bump", "firstfit" or "driver"; see `Device`.
    context_memory: memory of the CUDA context and of other processes.
    host_spill: host memory that the driver lends once the card is full; 0 if it refuses.
    record_history: keep the trace that `snapshot` shows.
    fast_path: False makes `play` decline every step; a replay takes longer, with the same result.
    rounded_sizes: cache of rounded sizes to continue, from an allocator with the same rounding.

    Raises ConfigError for a value that the release or the model refuses.

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

        Raises OutOfMemoryError with the text of the release.
        """
        if size <= 0 or size >= MAX_REQUEST:
            self._reject_size(size)
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
        """Allocate from the pool of an open scope (5.2)."""
        heap = self.heap
        owner = self.private_pools.get_pool(stream)
        pools = heap if owner is None else owner
        pool = pools.small if rounded <= SMALL_SIZE else pools.large
        params = self._params(pool, stream, rounded)
        block = heap.get_free_block(pool, stream, rounded, params.expandable)
        return self._attempts.alloc(block, params, size).ptr

    def _reject_size(self, size: int) -> None:
        """Raise for sizes that upstream rejects before it looks for a block."""
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
        """Free the block at `ptr`; None does nothing.

        Raises ValueError if no allocated block begins there.
        """
        if ptr is None:
            return
        block = self._pop_live(ptr)
        if block.stream_uses is None:
            self.heap.free_now(block)
            return
        self._pending.add(block, in_capture=self.private_pools.in_capture)

    def play(
        self,
        steps: Iterable[PlainStep],
        waiting: dict[int, RequestedFree],
        moved: list[int],
        places: list[int] | None = None,
    ) -> PlainStep | None:
        """Replay plain steps in one loop; return the first step that is not plain, or None.

        waiting: frees that a step requested and another step completes, by name.
        moved: receives the change of allocated bytes of each step.
        places: receives the address of each step's block, and the history gets no entries; kind and
        columns of the step and its place give them.
        """
        heap = self.heap
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
        """Let steps refer to the block at `ptr` by `name`, and no longer by its address."""
        block = self.heap.named[name] = self.heap.live.pop(ptr)
        return block

    def name_by_address(self) -> int:
        """Use the address of each allocated block as its name; return their total bytes."""
        return sum(self.give_name(ptr, ptr).size for ptr in list(self.heap.live))

    def rename(self, new_name: Callable[[int], int]) -> None:
        """Replace the name of every named block by `new_name(name)`."""
        renamed: dict[int, Block] = Names()
        for old, block in self.heap.named.items():
            renamed[new_name(old)] = block
        self.heap.named = renamed

    @property
    def named_blocks(self) -> dict[int, Block]:
        """Named blocks by name; read-only."""
        return self.heap.named

    def take_name(self, name: int) -> int | None:
        """Remove a name and return the address of its block, or None if there is none."""
        block = self.heap.named.pop(name, None)
        if block is None:
            return None
        self.heap.live[block.ptr] = block
        return block.ptr

    def _pop_live(self, ptr: int) -> Block:
        block = self.heap.live.pop(ptr, None)
        if block is None:
            raise ValueError(f"invalid device pointer: {ptr:#x} is not allocated")
        block.allocated = False
        if block.size >= self.heap.config.max_split_size:
            self.heap.stats.oversize_allocations.decrease(1)
        return block

    def request_free(self, ptr: int) -> RequestedFree:
        """Begin to free the block at `ptr`; `complete_free` completes it.

        For replays: a recording shows when a free completed, but not the events that it waited for.
        """
        return self._pending.add_requested(self._pop_live(ptr))

    @property
    def requested_frees(self) -> tuple[RequestedFree, ...]:
        """Frees that wait for `complete_free`, including those from `seed`."""
        return self._pending.requested

    def wait_last_for(self, free: RequestedFree) -> None:
        """Move a requested free behind the others that a wait for all frees completes.

        For replays: a recording shows the order of the waits for streams.
        """
        self._pending.put_last(free)

    def complete_free(self, free: RequestedFree) -> bool:
        """Complete a free from `request_free`; return False if it is already complete."""
        return self._pending.complete(free)

    def record_stream(self, ptr: int, stream: int) -> None:
        """Make the free of the block at `ptr` wait for `stream`."""
        block = self.heap.live.get(ptr)
        if block is None:
            raise ValueError(f"record_stream of {ptr:#x}, which is not allocated")
        if stream == block.stream:
            return
        if block.stream_uses is None:
            block.stream_uses = HashOrder(self._stream_hash)
        block.stream_uses[stream] = None
        if self.private_pools.in_capture and self.release.forgets_captured_streams:
            if block.capture_uses is None:
                block.capture_uses = set()
            block.capture_uses.add(stream)

    def synchronize(self, stream: int | None = None) -> None:
        """Finish the work of one stream, or of all; the next malloc completes their frees."""
        self.device.synchronize(stream)

    # -- releasing memory ----------------------------------------------------------------

    def empty_cache(self, pool: int | PoolId | None = None) -> None:
        """Release cached memory like torch.cuda.empty_cache().

        pool: release this private pool only, as 2.8 and later do when its MemPool is deleted; no
        effect while the pool is in use.

        Raises ValueError if the release accepts no pool.
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
        """True if an open scope has the effects of a graph capture (5.4)."""
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

        pool: a pool id; a number n stands for (0, n).
        stream: the only stream whose requests go there, up to 2.2.

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
        """Close the scope of a private pool."""
        self.private_pools.end_allocate_to_pool(_pool_id(pool))

    def release_pool(self, pool: int | PoolId) -> None:
        """End one use of a private pool; after the last one its memory is releasable."""
        self.private_pools.release_pool(_pool_id(pool))

    @property
    def has_cached_memory(self) -> bool:
        """True if `empty_cache` outside all scopes would release memory now."""
        return holds_releasable(self.heap, self.private_pools)

    def delete_mempool(self, pool: int | PoolId) -> None:
        """Delete the torch.cuda.MemPool that uses a private pool (5.7).

        Ends one use of the pool, clears its use_on_oom mark (2.11), and releases its cached memory
        if that was the last use.  Raises ValueError up to 2.5, where a MemPool uses no pool.

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
        """Change options at run time, by the rules of the release.

        Raises ConfigError; the options before the refused one are applied nevertheless.
        """
        try:
            self.heap.use(option_string.parse(conf, self.release, self.heap.config))
        except option_string.BadOptionError as error:
            if error.applied is not None:
                self.heap.use(error.applied)
            raise

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """Limit reserved memory to a fraction of the device, 0 to 1 (1.11).

        Mirrors: setMemoryFraction
        """
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"memory fraction {fraction} is out of range; expected 0 to 1")
        # From 2.10 on, a fraction of 1 removes the limit.
        if fraction == 1.0 and not self.release.full_fraction_is_limit:
            self.heap.limit = None
            return
        share = fraction * self.device.total
        if self.release.fraction_rounds:
            # Exact, as llround is: adding 0.5 to a double would round a second time.
            self.heap.limit = int(Fraction(share) + Fraction(1, 2))
        else:
            self.heap.limit = int(share)

    def limit_to(self, limit: int) -> None:
        """Limit reserved memory to `limit` bytes.

        For replays: a recording shows the limit in bytes, not the fraction.
        """
        self.heap.limit = limit

    # -- reading -------------------------------------------------------------------------

    def is_allocated(self, ptr: int) -> bool:
        """Return True if an allocated block begins at `ptr`."""
        return ptr in self.heap.live

    def size_of(self, ptr: int) -> int:
        """Return the bytes of the allocated block at `ptr`; KeyError if there is none."""
        return self.heap.live[ptr].size

    def round_size(self, size: int) -> int:
        """Return the block size for a request of `size` bytes (1.2)."""
        return self.heap.rounded_sizes[size]

    def pool_use_count(self, pool: int | PoolId) -> int:
        """Return the number of scopes and handles that use a private pool, 0 if it does not exist.

        Mirrors: getPoolUseCount
        """
        found = self.private_pools.pools.get(_pool_id(pool))
        return 0 if found is None else found.use_count

    @property
    def config(self) -> AllocatorConfig:
        """Current settings."""
        return self.heap.config

    @property
    def reserved_bytes(self) -> int:
        """Bytes obtained from the driver, as torch.cuda.memory_reserved()."""
        return self.heap.reserved

    @property
    def allocated_bytes(self) -> int:
        """Bytes of allocated blocks, as torch.cuda.memory_allocated()."""
        return self.heap.stats.allocated_bytes()

    @property
    def calls(self) -> Calls:
        """Driver calls and retries so far; does not fold the other statistics."""
        stats = self.heap.stats
        return Calls(stats.num_device_alloc, stats.num_device_free, stats.num_alloc_retries)

    @property
    def memory_limit(self) -> int | None:
        """Bytes that may be reserved under a memory fraction, or None without one.

        throw_on_cudamalloc_oom also sets a limit, from per_process_memory_fraction (1.12).
        """
        limit, config = self.heap.limit, self.heap.config
        if not config.throw_on_cudamalloc_oom:
            return limit
        share = int(config.per_process_memory_fraction * self.device.total)
        return share if limit is None else min(limit, share)

    @property
    def collects_garbage_above(self) -> int | None:
        """Reserved bytes above which a request collects garbage (1.9), or None if it never does."""
        if not self.heap.collects_garbage or self.heap.limit is None:
            return None
        return int(self.config.garbage_collection_threshold * self.heap.limit)

    def count_with(self, folder: Folder) -> None:
        """Compute the statistics with `folder`."""
        self.heap.stats.folder = folder

    def recount(self, journal: Journal) -> None:
        """Replace the statistics of blocks by those of `journal`.

        For callers that skip repeated steps and supply the records of the whole run.
        """
        self.heap.stats.recount(journal)

    def mark(self) -> None:
        """Remember the bytes allocated, active and inactive split now; replaces an earlier mark."""
        self.heap.stats.mark()

    def marked(self) -> Marked:
        """Return the bytes allocated, active and inactive split at the last mark."""
        return self.statistics().marked

    def statistics(self) -> DeviceStats:
        """Return all statistics up to now.

        Mirrors: getStats
        """
        self.heap.stats.fold()
        return self.heap.stats

    def memory_stats(self) -> dict[str, int]:
        """Return the flat dict of torch.cuda.memory_stats()."""
        return self.heap.stats.as_dict()

    def memory_allocated(self) -> int:
        """Return the bytes of allocated blocks."""
        return self.allocated_bytes

    def max_memory_allocated(self) -> int:
        """Return the peak of `memory_allocated`, in bytes."""
        return self.statistics().all.allocated_bytes.peak

    def memory_reserved(self) -> int:
        """Return the bytes obtained from the driver."""
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
        """Set the allocated and freed totals and the plain counters to zero.

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
        """Return the segments and their blocks by address, without an entry in the history."""
        return segments(self.heap)

    def block_columns(self) -> tuple[BlockColumns, int]:
        """Return all blocks as columns, active blocks first, and the number of active blocks."""
        active = self.heap.active
        free = [block for pool in self.heap.pools for block in pool]
        return block_columns([*active, *free]), len(active)

    def memory_snapshot(self) -> list[dict[str, Any]]:
        """Return the list of torch.cuda.memory_snapshot()."""
        return memory_snapshot(self.heap, self.device_index)

    @property
    def history(self) -> list[TraceEntry]:
        """Entries since the last `take_history`, as a live list; empty without a history."""
        return [] if self.heap.trace is None else self.heap.trace

    def witness(self, act: Callable[[], None]) -> tuple[Witnessed, ...]:
        """Run `act` and return the history entries it made, each with what the allocator was doing.

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
        """Return the entries since the last call and forget them."""
        if self.heap.trace is None:
            return []
        taken = self.heap.trace.copy()
        self.heap.trace.clear()
        return taken

    def check(self) -> None:
        """Check every invariant; raise InvariantError with the number of a broken one."""
        check(self.heap, self.private_pools)

    def seed(self, segments: Iterable[SegmentState]) -> None:
        """Start from segments that existed before the recording."""
        self._pending.adopt(plant(self.heap, self.private_pools, segments))


def _pool_id(pool: int | PoolId) -> PoolId:
    return (0, pool) if isinstance(pool, int) else pool
