"""One device's caching allocator: what a program can ask of it, and what can be read.

A malloc completes the frees whose streams have got there (`PendingFrees.poll`), looks for a free
block of the request's pool and stream (`Heap.take_free`), and makes the attempts of attempts.py
if there is none.  Source: semantics 1.8.

Long because it is the core's surface: a short method for each call of torch.cuda, for each kind of
step of a replay, and for what others may read.

A refused operation changes nothing but what the attempts above changed on the way, as upstream.
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
from allocsim.core.oom import TOO_LARGE
from allocsim.core.pending import PendingFrees, RequestedFree
from allocsim.core.pool import BlockPool
from allocsim.core.private_pools import PrivatePools
from allocsim.core.reclaim import (
    holds_releasable,
    release_cached,
    release_freeable,
    release_one,
)
from allocsim.core.releases import NEWEST, EmptyCacheInScope, Overflow, find_release
from allocsim.core.seed import plant
from allocsim.core.snapshot import memory_snapshot, segments, snapshot
from allocsim.core.stats import DeviceStats, Folder, Journal, Marked
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
    """What the driver was asked, and how often after giving cached memory back."""

    allocs: int
    frees: int
    retries: int

    @property
    def of_driver(self) -> int:
        """Calls that got memory and calls that gave it back."""
        return self.allocs + self.frees


class CachingAllocator:
    """PyTorch's native CUDA caching allocator of one device.

    device_memory: bytes of the card, or text such as "16GiB".
    conf: what PYTORCH_CUDA_ALLOC_CONF says.  torch_version: a release of `RELEASES`.
    address_policy: "bump", "firstfit" or "driver", see `Device`.  context_memory: what the CUDA
    context and other processes hold.  host_spill: what the driver lends of the host's memory once
    the card is full; 0: it refuses.  record_history: keep the trace that `snapshot` shows.
    fast_path: False lets `play` decline every step, which changes nothing but the time a replay
    takes.  rounded_sizes: sizes that were rounded before, under the same rounding, to go on with.
    Raises ConfigError for anything that the release or the model refuses.

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
        """The address of a block of at least `size` bytes; None for a request of 0 bytes.

        Raises OutOfMemoryError with the text of the release.

        Mirrors: malloc
        """
        if size <= 0 or size >= MAX_REQUEST:
            self._refuse(size)
            return None
        heap, private = self.heap, self.private_pools
        if self._pending.is_waiting and not private.in_capture:
            self._pending.poll()
        rounded = heap.rounded_sizes[size]
        if private.scopes:
            return self._malloc_in_scope(stream, rounded, size)
        pool = heap.small if rounded <= SMALL_SIZE else heap.large
        expandable = heap.config.expandable_segments
        block = heap.take_free(pool, stream, rounded, expandable)
        if block is not None:
            return heap.hand_out(block, rounded, size, expandable).ptr
        return self._attempts.answer(None, self._params(pool, stream, rounded), size).ptr

    def _malloc_in_scope(self, stream: int, rounded: int, size: int) -> int:
        """A request while a scope is open: it goes to the pool of the scope (5.2)."""
        heap = self.heap
        owner = self.private_pools.target(stream)
        halves = heap if owner is None else owner
        pool = halves.small if rounded <= SMALL_SIZE else halves.large
        params = self._params(pool, stream, rounded)
        block = heap.take_free(pool, stream, rounded, params.expandable)
        return self._attempts.answer(block, params, size).ptr

    def _refuse(self, size: int) -> None:
        """Sizes that never reach the allocator: negative ones and those of an exbibyte and up."""
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
        """Free the block at `ptr`; None does nothing.  Raises ValueError for anything else.

        Mirrors: free
        """
        if ptr is None:
            return
        block = self._take_live(ptr)
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
        """Many steps at once, up to one that needs more than the plain rules (fast_path.py).

        waiting: by name, the frees that steps ask for and that others complete.
        places: gets the address of each step's block in place of the entries that the history
        would have; every step taken leaves those that its kind and its columns say.
        """
        heap = self.heap
        if not self._has_fast_path:
            return next(iter(steps), None)
        if places is None:
            return play(heap, self.private_pools, self._pending, steps, waiting, moved)
        trace, heap.trace = heap.trace, None
        try:
            return play(heap, self.private_pools, self._pending, steps, waiting, moved, places)
        finally:
            heap.trace = trace

    def give_name(self, ptr: int, name: int) -> Block:
        """Let steps call the block at `ptr` by `name`; its address means nothing from here on."""
        block = self.heap.named[name] = self.heap.live.pop(ptr)
        return block

    def name_by_address(self) -> int:
        """Let steps call every allocated block by its address; the bytes that they hold."""
        return sum(self.give_name(ptr, ptr).size for ptr in list(self.heap.live))

    def rename(self, new_name: Callable[[int], int]) -> None:
        """Give every named block the name that `new_name` makes of its own."""
        renamed: dict[int, Block] = Names()
        for old, block in self.heap.named.items():
            renamed[new_name(old)] = block
        self.heap.named = renamed

    @property
    def named_blocks(self) -> dict[int, Block]:
        """The blocks that steps have named, by name; not to be changed."""
        return self.heap.named

    def take_name(self, name: int) -> int | None:
        """The address of the block that steps called `name`, which is its name from here on."""
        block = self.heap.named.pop(name, None)
        if block is None:
            return None
        self.heap.live[block.ptr] = block
        return block.ptr

    def _take_live(self, ptr: int) -> Block:
        block = self.heap.live.pop(ptr, None)
        if block is None:
            raise ValueError(f"invalid device pointer: {ptr:#x} is not allocated")
        block.allocated = False
        if block.size >= self.heap.config.max_split_size:
            self.heap.stats.oversize_allocations.decrease(1)
        return block

    def request_free(self, ptr: int) -> RequestedFree:
        """Free the block at `ptr`, to be completed when `complete_free` says so.

        For replays: a recording shows when a free completed, not which events it waited for.
        """
        return self._pending.add_requested(self._take_live(ptr))

    @property
    def requested_frees(self) -> tuple[RequestedFree, ...]:
        """The frees that wait for `complete_free`, those of `seed` among them."""
        return self._pending.requested

    def wait_last_for(self, free: RequestedFree) -> None:
        """Let a wait for every free complete this one after the others.

        For replays: a recording shows in which order streams were waited for.
        """
        self._pending.put_last(free)

    def complete_free(self, free: RequestedFree) -> bool:
        """Complete a `request_free`; False if that has happened already."""
        return self._pending.complete(free)

    def record_stream(self, ptr: int, stream: int) -> None:
        """Let the free of the block at `ptr` wait for `stream`.

        Mirrors: recordStream
        """
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
        """Let one stream, or all, finish its work; blocks come free at the next malloc."""
        self.device.synchronize(stream)

    # -- giving memory back --------------------------------------------------------------

    def empty_cache(self, pool: int | PoolId | None = None) -> None:
        """torch.cuda.empty_cache() on this device.

        pool: of this private pool alone, which is what PyTorch 2.8 and later do when the pool's
        MemPool is deleted; without effect while anything uses the pool.  Raises ValueError
        where the release takes no pool.

        Mirrors: emptyCache
        """
        pool_id = DEFAULT_POOL if pool is None else _pool_id(pool)
        if pool_id != DEFAULT_POOL:
            if not self.release.empty_cache_of_pool:
                raise ValueError(f"empty_cache takes no pool in release {self.release.version}")
            release_one(self.heap, self.private_pools, self._pending, pool_id)
            return
        if self.private_pools.scopes:
            if self.release.empty_cache_in_scope is EmptyCacheInScope.ASSERTS:
                self.heap.stats.num_sync_all_streams += 1
                raise UpstreamAssertionError(
                    f"empty_cache inside a pool scope asserts in release {self.release.version}"
                )
            if self.release.empty_cache_in_scope is EmptyCacheInScope.FREEABLE_ONLY:
                release_freeable(self.heap, self.private_pools)
                return
        release_cached(self.heap, self.private_pools, self._pending)

    # -- pools ---------------------------------------------------------------------------

    @property
    def in_capture(self) -> bool:
        """Whether an open scope has the effects of a graph capture (5.4)."""
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

        A number n means the pool id (0, n).  stream: the one stream concerned, up to 2.2.

        Mirrors: setNoSplit, setUseOnOOM
        """
        pool_id = _pool_id(pool)
        if no_split and not self.release.no_split:
            raise ValueError(f"no_split does not exist in release {self.release.version}")
        if use_on_oom and self.release.overflow is Overflow.NEVER:
            raise ValueError(f"use_on_oom does not exist in release {self.release.version}")
        self.private_pools.begin(pool_id, stream)
        if no_split:
            self.private_pools.no_split.add(pool_id)
        if use_on_oom:
            self.private_pools.use_on_oom[pool_id] = None

    def end_allocate_to_pool(self, pool: int | PoolId) -> None:
        """Close the scope of a private pool."""
        self.private_pools.end(_pool_id(pool))

    def release_pool(self, pool: int | PoolId) -> None:
        """Give up one use of a private pool; the last makes its memory releasable."""
        self.private_pools.release(_pool_id(pool))

    @property
    def has_cached_memory(self) -> bool:
        """Whether `empty_cache` outside every scope would give memory back, no free pending."""
        return holds_releasable(self.heap, self.private_pools)

    def delete_mempool(self, pool: int | PoolId) -> None:
        """Delete the torch.cuda.MemPool of a private pool, of which it is one use (5.7).

        The mark use_on_oom goes (2.11), the use ends, and if it was the last one the pool's own
        cached memory goes back to the driver.  Raises ValueError up to 2.5, where a MemPool
        holds no pool.

        Mirrors: MemPool::~MemPool
        """
        pool_id, release = _pool_id(pool), self.release
        if not release.mempools_hold_pools:
            raise ValueError(f"a MemPool holds no pool in release {release.version}")
        if release.mempool_is_last_user and self.pool_use_count(pool_id) != 1:
            raise UpstreamAssertionError(f"the MemPool of {pool_id} is not its only user")
        if release.mempool_takes_mark_back and pool_id in self.private_pools.use_on_oom:
            del self.private_pools.use_on_oom[pool_id]
        self.private_pools.release(pool_id)
        release_one(self.heap, self.private_pools, self._pending, pool_id)

    # -- settings ------------------------------------------------------------------------

    def set_allocator_settings(self, conf: str) -> None:
        """Change options at run time under the release's rules.

        Raises ConfigError; the options before the bad one are in force then.

        Mirrors: setAllocatorSettings
        """
        try:
            self.heap.use(option_string.parse(conf, self.release, self.heap.config))
        except option_string.BadOptionError as error:
            if error.applied is not None:
                self.heap.use(error.applied)
            raise

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """Limit reserved memory to a share of the device, in [0, 1] (1.11).

        Mirrors: setMemoryFraction
        """
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"memory fraction {fraction} is out of range; expected 0 to 1")
        if fraction == 1.0 and not self.release.full_fraction_is_limit:
            self.heap.limit = None
            return
        share = fraction * self.device.total
        if self.release.fraction_rounds:
            self.heap.limit = int(Fraction(share) + Fraction(1, 2))
        else:
            self.heap.limit = int(share)

    def limit_to(self, limit: int) -> None:
        """Limit reserved memory to `limit` bytes.

        For replays: what a program did shows the bytes, not the share that it asked for.
        """
        self.heap.limit = limit

    # -- reading -------------------------------------------------------------------------

    def is_allocated(self, ptr: int) -> bool:
        """Whether an allocated block begins at `ptr`."""
        return ptr in self.heap.live

    def size_of(self, ptr: int) -> int:
        """Bytes of the allocated block at `ptr`, slack included; KeyError if there is none."""
        return self.heap.live[ptr].size

    def round_size(self, size: int) -> int:
        """The block size that a request of `size` bytes is rounded to (1.2)."""
        return self.heap.rounded_sizes[size]

    def pool_use_count(self, pool: int | PoolId) -> int:
        """How many scopes and handles hold a private pool; 0 where there is none.

        Mirrors: getPoolUseCount
        """
        found = self.private_pools.pools.get(_pool_id(pool))
        return 0 if found is None else found.use_count

    @property
    def config(self) -> AllocatorConfig:
        """The settings in force."""
        return self.heap.config

    @property
    def reserved_bytes(self) -> int:
        """torch.cuda.memory_reserved(): bytes held from the driver."""
        return self.heap.reserved

    @property
    def allocated_bytes(self) -> int:
        """torch.cuda.memory_allocated(): bytes of the blocks handed out."""
        return self.heap.stats.allocated_bytes()

    @property
    def calls(self) -> Calls:
        """Driver calls and retries up to now, without counting anything else."""
        stats = self.heap.stats
        return Calls(stats.num_device_alloc, stats.num_device_free, stats.num_alloc_retries)

    @property
    def memory_limit(self) -> int | None:
        """Bytes that a memory fraction allows to reserve; None without one.

        throw_on_cudamalloc_oom sets one too, the share of per_process_memory_fraction (1.12).
        """
        limit, config = self.heap.limit, self.heap.config
        if not config.throw_on_cudamalloc_oom:
            return limit
        share = int(config.per_process_memory_fraction * self.device.total)
        return share if limit is None else min(limit, share)

    @property
    def collects_garbage_above(self) -> int | None:
        """Reserved bytes above which a request collects garbage (1.9); None: it never does."""
        if not self.heap.collects_garbage or self.heap.limit is None:
            return None
        return int(self.config.garbage_collection_threshold * self.heap.limit)

    def count_with(self, folder: Folder) -> None:
        """Let `folder` add the statistics up; see `Folder`."""
        self.heap.stats.folder = folder

    def recount(self, journal: Journal) -> None:
        """Let the statistics of blocks be those of `journal`: of all that was ever done.

        For who passes steps over that would have come out as others did.
        """
        self.heap.stats.recount(journal)

    def mark(self) -> None:
        """Remember what is allocated, active and inactive split now; the last mark counts."""
        self.heap.stats.mark()

    def marked(self) -> Marked:
        """What was allocated, active and inactive split at the last mark."""
        return self.statistics().marked

    def statistics(self) -> DeviceStats:
        """Every statistic, counted up to now.

        Mirrors: getStats
        """
        self.heap.stats.fold()
        return self.heap.stats

    def memory_stats(self) -> dict[str, int]:
        """The flat dict of torch.cuda.memory_stats()."""
        return self.heap.stats.as_dict()

    def reset_peak_memory_stats(self) -> None:
        """Set every peak to its current value.

        Mirrors: resetPeakStats
        """
        self.heap.stats.reset_peak()

    def reset_accumulated_memory_stats(self) -> None:
        """Set every allocated and freed total, and the plain counters, to zero.

        Mirrors: resetAccumulatedStats
        """
        self.heap.stats.reset_accumulated()

    def memory_summary(self) -> str:
        """The table of torch.cuda.memory_summary()."""
        return memory_summary(self.memory_stats(), self.device_index)

    def snapshot(self) -> dict[str, Any]:
        """The dict of torch.cuda.memory._snapshot()."""
        return snapshot(self.heap, self.device_index)

    def segments(self) -> tuple[SegmentState, ...]:
        """The segments and blocks in address order; leaves no entry in the history."""
        return segments(self.heap)

    def block_columns(self) -> tuple[BlockColumns, int]:
        """The blocks of every segment as columns, the active ones first; and how many those are."""
        active = self.heap.active
        free = [block for pool in self.heap.pools for block in pool]
        return block_columns([*active, *free]), len(active)

    def memory_snapshot(self) -> list[dict[str, Any]]:
        """The list of torch.cuda.memory_snapshot(): the segments as dictionaries."""
        return memory_snapshot(self.heap, self.device_index)

    @property
    def history(self) -> list[TraceEntry]:
        """The entries since they were last taken, as they grow; none unless kept."""
        return [] if self.heap.trace is None else self.heap.trace

    def witness(self, act: Callable[[], None]) -> tuple[Witnessed, ...]:
        """The entries that `act` leaves in the history, each with what was being done.

        Raises ValueError for an allocator that keeps no history.
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
        """The entries recorded since the last call, which are forgotten; none unless kept."""
        if self.heap.trace is None:
            return []
        taken = self.heap.trace.copy()
        self.heap.trace.clear()
        return taken

    def check(self) -> None:
        """Walk every invariant; raises InvariantError with its number."""
        check(self.heap, self.private_pools)

    def seed(self, segments: Iterable[SegmentState]) -> None:
        """Start from segments that existed before the simulation, as a recording shows them."""
        self._pending.adopt(plant(self.heap, self.private_pools, segments))


def _pool_id(pool: int | PoolId) -> PoolId:
    return (0, pool) if isinstance(pool, int) else pool
