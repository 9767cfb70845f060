"""One device's caching allocator: the order in which a request is answered.

A malloc tries, in this order, and stops at the first success (semantics 1.8):

    1  complete frees whose streams have got there        `PendingFrees.poll`
    2  a free block of the request's pool and stream      `Heap.take_free`
    3  garbage collection, then a new segment             `collect_garbage`, `_new_memory`
    4  pools marked use_on_oom (2.11+)                    `_from_overflow`
    5  release oversize blocks of the stream, again       `release_available`
    6  release everything cached, again: a retry          `_release_cached`
    7  pools marked use_on_oom (2.8 to 2.10)              `_from_overflow`
    8  out of memory                                      `_out_of_memory`

A refused operation changes nothing but what the attempts above changed on the way, as upstream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from allocsim.core import option_string
from allocsim.core.block import Block
from allocsim.core.check import check
from allocsim.core.config import AllocatorConfig
from allocsim.core.constants import MAX_REQUEST, SMALL_SIZE
from allocsim.core.device import Device
from allocsim.core.fast_path import PlainStep, play
from allocsim.core.hash_order import HashOrder, stream_hash
from allocsim.core.heap import Heap, TraceEntry
from allocsim.core.mapping import allocate_expandable
from allocsim.core.oom import TOO_LARGE, OomFigures, oom_text, rejection_text
from allocsim.core.pending import PendingFrees, ToldFree
from allocsim.core.pool import BlockPool, PoolId
from allocsim.core.private_pools import PrivatePools
from allocsim.core.reclaim import collect_garbage, release_available, release_pool
from allocsim.core.releases import NEWEST, EmptyCacheInScope, Overflow, find_release
from allocsim.core.seed import SeedSegment, plant
from allocsim.core.snapshot import segments, snapshot
from allocsim.core.summary import memory_summary
from allocsim.errors import OutOfMemoryError, UndefinedBehaviorError, UpstreamAssertionError
from allocsim.units import parse_size

__all__ = ["CachingAllocator"]


@dataclass(slots=True)
class AllocParams:
    """One request on its way through the attempts.  Mirrors `AllocParams`.

    fine: large blocks are split down to 512 bytes because expandable segments are active.
    """

    pool: BlockPool
    stream: int
    size: int
    segment_size: int
    fine: bool
    may_split: bool
    is_rejected: bool = False


class CachingAllocator:
    """PyTorch's native CUDA caching allocator of one device.  Mirrors `DeviceCachingAllocator`.

    device_memory: bytes of the card, or text such as "16GiB".
    conf: what PYTORCH_CUDA_ALLOC_CONF says.  torch_version: "2.1" to "2.15".
    address_policy: "bump" or "firstfit".  context_memory: what the CUDA context and other
    processes hold.  record_history: keep the trace that `snapshot` shows.  fast_path: False
    lets `play` decline every step, which changes nothing but the time a replay takes.
    Raises ConfigError for anything that the release or the model refuses.
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
        record_history: bool = False,
        device: int = 0,
        fast_path: bool = True,
    ) -> None:
        self.release = find_release(torch_version)
        self.device = Device(
            parse_size(device_memory),
            context_memory=parse_size(context_memory),
            policy=address_policy,
            base_address=base_address,
        )
        self.device_index = device
        config = option_string.parse(conf, self.release)
        self.heap = Heap(self.release, config, self.device, record_history=record_history)
        self.private_pools = PrivatePools(self.heap)
        self._stream_hash = stream_hash(device)
        self._pending = PendingFrees(self.heap, self._stream_hash)
        self._has_fast_path = fast_path
        self._apply_settings()
        if config.per_process_memory_fraction < 1.0:
            self.set_per_process_memory_fraction(config.per_process_memory_fraction)

    # -- requests ------------------------------------------------------------------------

    def malloc(self, size: int, stream: int = 0) -> int | None:
        """The address of a block of at least `size` bytes; None for a request of 0 bytes.

        Raises OutOfMemoryError with the text of the release.
        """
        if size <= 0 or size >= MAX_REQUEST:
            self._refuse(size)
            return None
        heap = self.heap
        if self._pending.is_waiting and not self._in_capture:
            self._pending.poll()
            self._choose_path()
        rounded = heap.rounded_sizes[size]
        if self.private_pools.scopes:
            pool = self._scoped_pool(stream, rounded)
        else:
            pool = heap.small if rounded <= SMALL_SIZE else heap.large
        if heap.fits_plainly:
            block = pool.take(stream, rounded)  # what take_free would do, one call less
        else:
            block = heap.take_free(pool, stream, rounded, self._fine)
        if block is not None and pool.owner is None:
            block = heap.hand_out(block, rounded, size, self._fine)
        else:
            block = self._answer(block, self._params(pool, stream, rounded), size)
        return block.ptr

    def _refuse(self, size: int) -> None:
        """Sizes that never reach the allocator: negative ones and those of an exbibyte and up."""
        if size >= MAX_REQUEST:
            raise OutOfMemoryError(
                TOO_LARGE, requested_bytes=size, rounded_bytes=size, tried_bytes=0
            )
        if size < 0:
            raise ValueError(f"malloc of {size} bytes; expected 0 or more")

    def _params(self, pool: BlockPool, stream: int, rounded: int) -> AllocParams:
        return AllocParams(
            pool=pool,
            stream=stream,
            size=rounded,
            segment_size=self.heap.config.segment_size(rounded),
            fine=self._fine,
            may_split=pool.owner is None or pool.owner.id not in self.private_pools.no_split,
        )

    def _answer(self, block: Block | None, params: AllocParams, requested: int) -> Block:
        """Attempts 3 to 8, then the block is handed out."""
        if block is None:
            block = self._miss(params)
        if block is None:
            raise self._out_of_memory(params, requested)
        return self.heap.hand_out(block, params.size, requested, params.fine, params.may_split)

    def _miss(self, params: AllocParams) -> Block | None:
        heap = self.heap
        collect_garbage(heap)
        block = self._new_memory(params)
        if block is not None or params.is_rejected:
            return block
        if self.release.overflow is Overflow.FIRST and (block := self._from_overflow(params)):
            return block
        if release_available(heap, params.pool, params.stream, params.size):
            block = self._new_memory(params)
        if block is None and not self._in_capture:
            self._release_cached()
            self._refuse_forgotten(params.pool)
            heap.stats.num_alloc_retries += 1
            block = self._new_memory(params)
        if block is None and self.release.overflow is Overflow.LAST:
            block = self._from_overflow(params)
        return block

    def _refuse_forgotten(self, pool: BlockPool) -> None:
        """A pool whose last use ended inside its scope may be forgotten under its own request."""
        owner = pool.owner
        if owner is not None and self.private_pools.pools.get(owner.id) is not owner:
            raise UndefinedBehaviorError(
                f"pool {owner.id} was released inside its scope and is forgotten under a request; "
                "PyTorch goes on with freed memory"
            )

    def _new_memory(self, params: AllocParams) -> Block | None:
        """Memory from the driver, within the limit (1.8, `alloc_block`).

        Each refusal of throw_on_cudamalloc_oom counts (observed); only one of the first attempt
        ends the chain (1.12).
        """
        heap = self.heap
        after = heap.reserved + params.segment_size
        if heap.limit is not None and after > heap.limit:
            return None
        if heap.config.throw_on_cudamalloc_oom:
            fraction = heap.config.per_process_memory_fraction
            if after > int(fraction * self.device.total):
                heap.stats.num_oom_rejections += 1
                params.is_rejected = True
                return None
        owner = params.pool.owner
        expandable = heap.config.expandable_segments
        if expandable and (owner is None or self.release.expandable_private_pools):
            return allocate_expandable(heap, params.pool, params.stream, params.size)
        return heap.allocate_segment(params.pool, params.stream, params.segment_size)

    def _from_overflow(self, params: AllocParams) -> Block | None:
        """A free block of a pool marked use_on_oom, for a request of the default pool (5.6).

        From 2.10 on, expandable segments count as inactive for such a request (observed).
        """
        if params.pool.owner is not None:
            return None
        fine = params.fine and self.release.overflow_may_be_expandable
        for pool in self.private_pools.overflow():
            half = pool.small if params.pool.is_small else pool.large
            block = self.heap.take_free(half, params.stream, params.size, fine)
            if block is not None:
                params.may_split = pool.id not in self.private_pools.no_split
                params.fine = fine
                return block
        return None

    def _out_of_memory(self, params: AllocParams, requested: int) -> OutOfMemoryError:
        heap = self.heap
        tried = params.segment_size
        if params.is_rejected:
            text = rejection_text(requested)
        else:
            heap.record("oom", self.device.free, params.size, params.stream, params.pool)
            heap.stats.num_ooms += 1
            figures = OomFigures(
                device=self.device_index,
                tried=tried,
                total=self.device.total,
                free=self.device.free,
                allocated=heap.stats.allocated_bytes(),
                reserved=heap.reserved,
                private=self.private_pools.free_bytes(),
                limit=heap.limit,
            )
            text = oom_text(figures, heap.config)
        return OutOfMemoryError(
            text, requested_bytes=requested, rounded_bytes=params.size, tried_bytes=tried
        )

    # -- frees and streams ---------------------------------------------------------------

    def free(self, ptr: int | None) -> None:
        """Free the block at `ptr`; None does nothing.  Raises ValueError for anything else."""
        if ptr is None:
            return
        block = self._take_live(ptr)
        if block.stream_uses is None:
            self.heap.free_now(block)
            return
        self._pending.add(block, in_capture=self._in_capture)
        self._choose_path()

    def play(
        self, steps: Iterable[PlainStep], waiting: dict[int, ToldFree], moved: list[int]
    ) -> PlainStep | None:
        """Many steps at once, up to one that needs more than the plain rules (fast_path.py).

        waiting: by name, the frees that steps ask for and that others complete.
        """
        return play(self.heap, self._pending, steps, waiting, moved)

    def give_name(self, ptr: int, name: int) -> Block:
        """Let steps call the block at `ptr` by `name`; its address means nothing from here on."""
        block = self.heap.named[name] = self.heap.live.pop(ptr)
        return block

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

    def request_free(self, ptr: int) -> ToldFree:
        """Free the block at `ptr`, to be completed when `complete_free` says so.

        For replays: a recording shows when a free completed, not which events it waited for.
        """
        return self._pending.add_told(self._take_live(ptr))

    @property
    def told_frees(self) -> tuple[ToldFree, ...]:
        """The frees that wait for `complete_free`, those of `seed` among them."""
        return self._pending.told

    def complete_free(self, free: ToldFree) -> bool:
        """Complete a `request_free`; False if that has happened already."""
        return self._pending.complete(free)

    def record_stream(self, ptr: int, stream: int) -> None:
        """Let the free of the block at `ptr` wait for `stream`."""
        block = self.heap.live.get(ptr)
        if block is None:
            raise ValueError(f"record_stream of {ptr:#x}, which is not allocated")
        if stream == block.stream:
            return
        if block.stream_uses is None:
            block.stream_uses = HashOrder(self._stream_hash)
        block.stream_uses[stream] = None
        if self._in_capture and self.release.forgets_captured_streams:
            if block.capture_uses is None:
                block.capture_uses = set()
            block.capture_uses.add(stream)

    def synchronize(self, stream: int | None = None) -> None:
        """Let one stream, or all, finish its work; blocks come free at the next malloc."""
        self.device.synchronize(stream)

    # -- giving memory back --------------------------------------------------------------

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache() on this device."""
        if self.private_pools.scopes:
            if self.release.empty_cache_in_scope is EmptyCacheInScope.ASSERTS:
                self.heap.stats.num_sync_all_streams += 1
                raise UpstreamAssertionError(
                    f"empty_cache inside a pool scope asserts in release {self.release.version}"
                )
            if self.release.empty_cache_in_scope is EmptyCacheInScope.FREEABLE_ONLY:
                self._release_freeable()
                return
        self._release_cached()

    def _release_cached(self) -> None:
        self._pending.synchronize()
        release_pool(self.heap, self.heap.large)
        release_pool(self.heap, self.heap.small)
        self._release_freeable()

    def _release_freeable(self) -> None:
        freeable = self.private_pools.freeable
        for pool_id in freeable:
            pool = freeable[pool_id]
            release_pool(self.heap, pool.small)
            release_pool(self.heap, pool.large)
            self.private_pools.forget_empty(pool)
        self._choose_path()

    # -- pools ---------------------------------------------------------------------------

    @property
    def _in_capture(self) -> bool:
        return self.release.scope_is_capture and bool(self.private_pools.scopes)

    def _scoped_pool(self, stream: int, rounded: int) -> BlockPool:
        owner = self.private_pools.target(stream)
        halves = self.heap if owner is None else owner
        return halves.small if rounded <= SMALL_SIZE else halves.large

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
        self._choose_path()

    def end_allocate_to_pool(self, pool: int | PoolId) -> None:
        """Close the scope of a private pool."""
        self.private_pools.end(_pool_id(pool))
        self._choose_path()

    def release_pool(self, pool: int | PoolId) -> None:
        """Give up one use of a private pool; the last makes its memory releasable."""
        self.private_pools.release(_pool_id(pool))

    # -- settings ------------------------------------------------------------------------

    def set_allocator_settings(self, conf: str) -> None:
        """Change options at run time under the release's rules.

        Raises ConfigError; the options before the bad one are in force then.
        """
        try:
            self.heap.use(option_string.parse(conf, self.release, self.heap.config))
        except option_string.BadOptionError as error:
            if error.applied is not None:
                self.heap.use(error.applied)
            raise
        finally:
            self._apply_settings()

    def _apply_settings(self) -> None:
        self._fine = self.heap.config.expandable_segments
        self._choose_path()

    def _choose_path(self) -> None:
        """Whoever changes what `Heap.plain_pools` hangs on calls this."""
        heap = self.heap
        may_be_plain = self._has_fast_path and heap.may_be_plain and not self._pending.is_waiting
        if not may_be_plain:
            heap.plain_pools = None
        elif self.private_pools.scopes:
            owner = self.private_pools.plain_target()
            heap.plain_pools = None if owner is None else (owner.small, owner.large)
        else:
            heap.plain_pools = heap.small, heap.large

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """Limit reserved memory to a share of the device, in [0, 1] (1.11)."""
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"memory fraction {fraction} is out of range; expected 0 to 1")
        if fraction == 1.0 and not self.release.full_fraction_is_limit:
            self._limit_to(None)
            return
        share = fraction * self.device.total
        if self.release.fraction_rounds:
            self._limit_to(int(Fraction(share) + Fraction(1, 2)))
        else:
            self._limit_to(int(share))

    def _limit_to(self, limit: int | None) -> None:
        self.heap.limit_to(limit)
        self._choose_path()

    # -- reading -------------------------------------------------------------------------

    @property
    def config(self) -> AllocatorConfig:
        """The settings in force."""
        return self.heap.config

    @property
    def reserved_bytes(self) -> int:
        """torch.cuda.memory_reserved(): bytes held from the driver."""
        return self.heap.reserved

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

    def memory_stats(self) -> dict[str, int]:
        """The flat dict of torch.cuda.memory_stats()."""
        return self.heap.stats.as_dict()

    def reset_peak_memory_stats(self) -> None:
        """Set every peak to its current value."""
        self.heap.stats.reset_peak()

    def reset_accumulated_memory_stats(self) -> None:
        """Set every allocated and freed total, and the plain counters, to zero."""
        self.heap.stats.reset_accumulated()

    def memory_summary(self) -> str:
        """The table of torch.cuda.memory_summary()."""
        return memory_summary(self.memory_stats(), self.device_index)

    def snapshot(self) -> dict[str, Any]:
        """The dict of torch.cuda.memory._snapshot()."""
        return snapshot(self.heap, self.device_index)

    def segments(self) -> list[dict[str, Any]]:
        """The segments and blocks, as in a snapshot; leaves no entry in the history."""
        return segments(self.heap, self.device_index)

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

    def seed(self, segments: Iterable[SeedSegment]) -> None:
        """Start from segments that existed before the simulation, as a recording shows them."""
        self._pending.adopt(plant(self.heap, self.private_pools, segments))
        self._choose_path()


def _pool_id(pool: int | PoolId) -> PoolId:
    return (0, pool) if isinstance(pool, int) else pool
