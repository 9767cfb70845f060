"""Model of PyTorch's allocator of pinned host memory (semantics.md, section 13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from allocsim.core import (
    NEWEST,
    UNLIMITED,
    AllocatorConfig,
    BadOptionError,
    HashOrder,
    TraceEntry,
    find_release,
    parse_conf,
    pool_hash,
    stream_hash,
)
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamAssertionError
from allocsim.host.pool import (
    ActiveStats,
    HostBlock,
    HostBlockPool,
    HostDriver,
    OwnedStats,
    ReserveSegment,
    bucket_of,
    flattened,
    segment_of,
)
from allocsim.state import PoolId
from allocsim.units import MIB

_ANY_SIZE = -1
_HASH_OF_STREAM = stream_hash(0)


class CachingHostAllocator:
    """Model of the allocator that serves `torch.empty(n, pin_memory=True)`.

    conf: value of PYTORCH_CUDA_ALLOC_CONF; only options that begin with `pinned_` have an effect.
    torch_version: PyTorch release, 2.6 or later.
    host_memory: bytes of host memory that the driver can pin; None for no limit.
    record_history: True to record entries in `history`.

    Streams finish their work when `synchronize` is called.  With `pinned_use_background_threads`,
    the background thread is assumed to finish its polling between any two calls.

    Raises ConfigError for an invalid `conf` or an unsupported PyTorch release.

    Mirrors: CachingHostAllocatorImpl
    """

    def __init__(
        self,
        conf: str = "",
        torch_version: str = NEWEST,
        *,
        host_memory: int | None = None,
        record_history: bool = False,
    ) -> None:
        self.release = find_release(torch_version)
        if not self.release.models_host:
            raise ConfigError(
                f"pinned memory of torch {self.release.version} is not modelled; "
                f"expected 2.6 to {NEWEST}"
            )
        self._config: AllocatorConfig = parse_conf(conf, self.release)
        self._driver = HostDriver(host_memory)
        self._owned = OwnedStats()
        self._default = HostBlockPool(ActiveStats())
        self._private: dict[PoolId, HostBlockPool] = {}
        self._freeable: HashOrder[PoolId, HostBlockPool] = HashOrder(pool_hash)
        self._blocks: dict[int, HostBlock] = {}
        self._reserve: ReserveSegment | None = None
        self._asked_for_reserve = False
        self._has_thread = False
        self._capture: tuple[PoolId, int] | None = None
        self._history: list[TraceEntry] | None = [] if record_history else None

    # -- the calls of a program ----------------------------------------------------------

    def malloc(self, size: int) -> int | None:
        """Allocate a block of at least `size` bytes and return its address; None for 0 bytes.

        Raises OutOfMemoryError if the driver cannot pin the memory.  Source: semantics 13.1, 13.2.

        Mirrors: CachingHostAllocatorImpl::allocate
        """
        if size < 0:
            raise ValueError(f"size {size} is negative; expected bytes, 0 or more")
        if size == 0:
            return None
        pool = self._pool_of_request()
        in_background = bool(self._config.host.get("pinned_use_background_threads"))
        if not (in_background and pool is self._default):
            self._process_events(pool)
        rounded = self.round_size(size)
        block = self._get_free_block(rounded, pool)
        if block is None and in_background:
            if self.release.host_polls_one_size:
                self._process_events(pool, rounded)
                block = self._get_free_block(rounded, pool)
            self._has_thread |= block is None
        if block is None:
            block = self._alloc_block(rounded, pool)
        # PyTorch releases without private pools do not mark blocks of a capture.
        block.in_capture = self.release.host_private_pools and self._capture is not None
        self._note("alloc", block)
        self._poll_in_background()
        return block.address

    def free(self, address: int | None) -> None:
        """Free a block, for reuse when its streams have finished (semantics.md, section 13.3)."""
        if address is None:
            return
        block = self._allocated(address, "free")
        streams = block.streams or ()
        if not block.in_capture and self._capture is not None and self._capture[1] in streams:
            raise UndefinedBehaviorError(
                f"free({address:#x}) during a capture on stream {self._capture[1]}, which uses "
                "the block; PyTorch would query an event of the capture and fail"
            )
        block.allocated = False
        self._note("free_requested", block)
        if not streams:
            self._complete_free(block, self._pool_of(block), block.size, is_plain=True)
            return
        block.event_count += len(streams)
        events = self._pool_of(block).events
        # Upstream records no events for a block of a capture, so it is never reused (13.6).
        for stream in () if block.in_capture else streams:
            events.append(((stream, self._driver.record_event(stream)), block))
        block.streams = None

    def record_event(self, address: int, stream: int) -> None:
        """Record that `stream` uses the block at `address`, for example in a non-blocking copy.

        After a free, the block is reused only when this use has ended.  Source: semantics 13.3.
        """
        block = self._allocated(address, "record_event")
        if block.streams is None:
            block.streams = HashOrder(_HASH_OF_STREAM)
        block.streams[stream] = None

    def synchronize(self, stream: int | None = None) -> None:
        """Finish the submitted work of `stream`, or of all streams if it is None."""
        self._driver.synchronize(stream)
        self._poll_in_background()

    def empty_cache(self) -> None:
        """Release all free blocks of the default pool and of private pools that no graph uses.

        Source: semantics 13.4.

        Mirrors: CachingHostAllocatorImpl::empty_cache
        """
        self._free_from_pool(self._default)
        for pool_id in self._freeable:
            pool = self._freeable[pool_id]
            self._free_from_pool(pool)
            if not pool.blocks:
                del self._freeable[pool_id], self._private[pool_id]
                if self.release.host_stats_by_pool:
                    self._default.stats.absorb(pool.stats)

    def set_allocator_settings(self, conf: str) -> None:
        """Change options at run time, as torch.cuda.memory._set_allocator_settings() does.

        Raises ConfigError for an option that the PyTorch release refuses; the options before it in
        `conf` have then been applied, as in PyTorch.
        """
        try:
            self._config = parse_conf(conf, self.release, self._config)
        except BadOptionError as error:
            self._config = error.applied or self._config
            raise

    # -- graph captures ------------------------------------------------------------------

    def begin_allocate_to_pool(self, pool_id: PoolId, stream: int = 0) -> None:
        """Begin a CUDA graph capture on `stream`: requests now go to the private pool `pool_id`.

        Up to PyTorch 2.10, they still go to the default pool.  All calls before the end of the
        capture are assumed to come from the capturing thread.  Source: semantics 13.6.
        """
        if self._capture is not None:
            raise ValueError(f"pool {self._capture[0]} is being captured; expected one capture")
        self._capture = pool_id, stream
        if not self.release.host_private_pools:
            return
        if (pool := self._private.get(pool_id)) is None:
            stats = ActiveStats() if self.release.host_stats_by_pool else self._default.stats
            self._private[pool_id] = HostBlockPool(stats, pool_id)
            return
        if pool.use_count == 0:
            raise UpstreamAssertionError(f"capture to pool {pool_id}, which was released")
        pool.use_count += 1

    def end_allocate_to_pool(self, pool_id: PoolId) -> None:
        if self._capture is None or self._capture[0] != pool_id:
            raise ValueError(f"pool {pool_id} is not being captured; expected a capture to it")
        self._capture = None

    def release_pool(self, pool_id: PoolId) -> None:
        """Record that a CUDA graph that uses the pool is deleted (semantics.md, section 13.6)."""
        if not self.release.host_private_pools:
            return
        pool = self._private.get(pool_id)
        if pool is None or pool.use_count == 0:
            raise ValueError(f"pool {pool_id} is not in use; expected a pool of a capture")
        pool.use_count -= 1
        if pool.use_count == 0:
            self._freeable[pool_id] = pool

    # -- what the program can read -------------------------------------------------------

    def round_size(self, size: int) -> int:
        """Return the bytes of a new block for a request of `size` (semantics.md, section 13.1)."""
        threshold = self._bytes("pinned_max_round_threshold_mb")
        is_rounded = size <= min(threshold, self._bytes("pinned_max_cached_size_mb"))
        return 1 << bucket_of(size) if is_rounded else size

    def host_memory_stats(self) -> dict[str, int]:
        """Return the values of torch.cuda.host_memory_stats(), except durations.

        The result is empty for PyTorch 2.6.  Source: semantics 13.5.
        """
        names = self.release.host_stats
        return {} if names is None else flattened(names, self._owned, self._active())

    def reset_peak_host_memory_stats(self) -> None:
        for stat in self._all_stats():
            stat.reset_peak()

    def reset_accumulated_host_memory_stats(self) -> None:
        for stat in self._all_stats():
            stat.reset_accumulated()
        self._owned.reset_accumulated()

    def host_segments(self) -> list[dict[str, Any]]:
        """Return "host_segments" as in a snapshot: one segment per block, sorted by address."""
        return [segment_of(block) for _, block in sorted(self._blocks.items())]

    @property
    def history(self) -> list[TraceEntry]:
        """Entries since the allocator was created, as in "host_traces" of a snapshot.

        All streams are 0.  The list is empty unless `record_history` was True.
        """
        return [] if self._history is None else self._history

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken; for tests."""
        pools = [self._default, *self._private.values()]
        by_pool = [block for pool in pools for block in pool.blocks.values()]
        assert sorted(map(id, by_pool)) == sorted(map(id, self._blocks.values()))
        assert all(block.address == at for at, block in self._blocks.items())
        assert self._owned.count.current == len(self._blocks)
        assert self._owned.size.current == sum(block.size for block in self._blocks.values())

    # -- parts ---------------------------------------------------------------------------

    def _bytes(self, option: str) -> int:
        return min(self._config.host.get(option, UNLIMITED) * MIB, UNLIMITED)

    def _pool_of_request(self) -> HostBlockPool:
        if self._capture is None or not self.release.host_private_pools:
            return self._default
        return self._private[self._capture[0]]

    def _pool_of(self, block: HostBlock) -> HostBlockPool:
        return self._private.get(block.pool_id, self._default)

    def _allocated(self, address: int, call: str) -> HostBlock:
        block = self._blocks.get(address)
        if block is None or not block.allocated:
            raise UndefinedBehaviorError(f"{call}({address:#x}) of memory that is not allocated")
        return block

    def _poll_in_background(self) -> None:
        if self._has_thread:
            self._process_events(self._default)

    def _get_free_block(self, size: int, pool: HostBlockPool) -> HostBlock | None:
        newest = self.release.host_takes_newest
        block = pool.get_free_block(size, takes_newest=newest)
        if block is not None:
            block.allocated = True
            pool.stats.increase(bucket_of(size), size if newest else block.size)
        return block

    def _alloc_block(self, size: int, pool: HostBlockPool) -> HostBlock:
        address = self._allocate_host_memory(size)
        block = HostBlock(address, size, pool.pool_id)
        self._note("segment_alloc", block)
        self._blocks[address] = pool.blocks[address] = block
        self._owned.increase(size)
        pool.stats.increase(bucket_of(size), size)
        return block

    def _allocate_host_memory(self, size: int) -> int:
        """Return the address of `size` bytes, from the reserve segment if it has enough room.

        Otherwise the driver pins new memory.  Source: semantics 13.2.
        """
        if not self._asked_for_reserve:
            reserved = self._config.host.get("pinned_reserve_segment_size_mb", 0) * MIB
            if reserved:
                self._reserve = ReserveSegment(self._host_alloc(reserved), reserved)
            self._asked_for_reserve = True
        address = None if self._reserve is None else self._reserve.allocate(size)
        return self._host_alloc(size) if address is None else address

    def _host_alloc(self, size: int) -> int:
        address = self._driver.host_alloc(size)
        self._owned.n_alloc += 1
        return address

    def _process_events(self, pool: HostBlockPool, size: int = _ANY_SIZE) -> None:
        """Complete the frees whose CUDA events have passed (semantics.md, section 13.4).

        size: if given, complete one free of a block of this size.  By default, complete all frees
            up to the first event that has not passed.

        Mirrors: process_events_for_specific_size
        """
        events, tried, most = pool.events, 0, len(pool.events)
        while events:
            event, block = events.popleft()
            if size != _ANY_SIZE:
                tried += 1
                if tried > most + 1:  # upstream also tries one event more than the queue had
                    events.append((event, block))
                    return
                if block.size != size:
                    events.append((event, block))
                    continue
            if not self._driver.query_event(*event):
                if size == _ANY_SIZE:
                    events.appendleft((event, block))
                    return
                events.append((event, block))
                continue
            block.event_count -= 1
            if block.event_count == 0:
                self._complete_free(block, pool, size, is_plain=False)
                if size != _ANY_SIZE:
                    return

    def _complete_free(
        self, block: HostBlock, pool: HostBlockPool, polled: int, *, is_plain: bool
    ) -> None:
        """Add a freed block to the free list, or release it if it is too large to be cached.

        polled: argument `size` of `_process_events`; some PyTorch releases subtract it from the
            active bytes in place of the block's size.
        is_plain: True if the free waited for no stream.

        Mirrors: maybe_cache_block
        """
        self._note("free_completed", block)
        release, size = self.release, block.size
        if not is_plain or release.host_counts_plain_frees:
            counted = polled if release.host_counts_polled_size else size
            pool.stats.decrease(bucket_of(size), counted)
        if size > self._bytes("pinned_max_cached_size_mb"):
            self._destroy_block(block, pool)
        else:
            pool.add_free_block(block)

    def _free_from_pool(self, pool: HostBlockPool) -> None:
        self._process_events(pool)
        for block in pool.take_free_blocks():
            self._destroy_block(block, pool)

    def _destroy_block(self, block: HostBlock, pool: HostBlockPool) -> None:
        del self._blocks[block.address], pool.blocks[block.address]
        if self._reserve is None or not self._reserve.owns(block.address):
            self._driver.free_host(block.address)
            self._owned.n_free += 1
        self._owned.decrease(block.size)
        self._note("segment_free", block)

    def _note(self, action: str, block: HostBlock) -> None:
        if self._history is not None:
            entry = TraceEntry(action, block.address, block.size, 0, block.pool_id)
            self._history.append(entry)

    def _active(self) -> Iterator[ActiveStats]:
        yield self._default.stats
        if self.release.host_stats_by_pool:
            yield from (pool.stats for pool in self._private.values())

    def _all_stats(self) -> Iterator[Any]:
        yield from (self._owned.count, self._owned.size)
        for active in self._active():
            yield from active.all()
