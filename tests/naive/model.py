"""A second implementation of the allocator, directly from the rules: slow, simple, complete.

It shares nothing with `allocsim.core` but the error classes and the size formatter.  One malloc is
the list of attempts of semantics 1.8, in that order.
"""

from __future__ import annotations

import re
from math import floor
from typing import Any

from allocsim.errors import ConfigError, OutOfMemoryError, UndefinedBehaviorError
from allocsim.units import MIB, parse_size, round_up
from tests.naive import caches, events, expandable, message, pools
from tests.naive.block import SMALL_SEG, Block, Pool
from tests.naive.driver import Driver
from tests.naive.options import NEWEST, Options
from tests.naive.snapshot import snapshot
from tests.naive.state import State
from tests.naive.statistics import Statistics

__all__ = ["NaiveAllocator"]

MIN = 512
SMALL = MIB
MIN_LARGE = 10 * MIB
ROUND_LARGE = 2 * MIB
EXABYTE = 1 << 60


def release_of(torch_version: str) -> int:
    """Return the minor number n of release 2.n, from "2.9" or "2.9.1"."""
    match = re.fullmatch(r"2\.(\d{1,2})(\.\d+)?", torch_version)
    if match is None or not 1 <= int(match[1]) <= NEWEST:
        raise ConfigError(f"torch_version {torch_version!r} is not one of 2.1 to 2.{NEWEST}")
    return int(match[1])


class NaiveAllocator:
    """Public interface of `allocsim.CachingAllocator`, implemented by lists and scans."""

    def __init__(
        self,
        device_memory: int | str = "16GiB",
        conf: str = "",
        torch_version: str = f"2.{NEWEST}",
        *,
        address_policy: str = "bump",
        base_address: int = 0,
        context_memory: int | str = 0,
        record_history: bool = False,
        device: int = 0,
    ) -> None:
        minor = release_of(torch_version)
        if address_policy not in ("bump", "firstfit", "driver"):
            raise ConfigError(f"address_policy {address_policy!r} is not bump, firstfit or driver")
        options = Options(minor)
        options.parse(conf)
        total, context = parse_size(device_memory), parse_size(context_memory)
        driver = Driver(total, context, address_policy, base_address)
        stats = Statistics(minor, options.max_split_size)
        self._state = State(minor, device, options, driver, stats, record_history)
        if minor >= 10:
            self.set_per_process_memory_fraction(options.fraction)

    def malloc(self, size: int, stream: int = 0) -> int | None:
        """Return an address, None for 0 bytes.

        Raises OutOfMemoryError with the text of the release.
        """
        if size < 0:
            raise ValueError(f"size {size} is negative; expected bytes, 0 or more")
        if size == 0:
            return None
        if size >= EXABYTE:
            raise OutOfMemoryError(
                message.EXABYTE_TEXT, requested_bytes=size, rounded_bytes=size, tried_bytes=0
            )
        return Request(self._state, size, stream).serve().address

    def free(self, address: int | None) -> None:
        """Free a live block; None does nothing, any other address is a ValueError."""
        if address is None:
            return
        state, block = self._state, self._live(address)
        block.state = "pending"
        state.observe()
        state.note_block("free_requested", block)
        if state.is_oversize(block.size):
            state.stats.oversize["oversize_allocations"].move(-1)
        if not len(block.streams):
            events.free_block(state, block)
        elif state.in_capture:
            state.deferred.append(block)
        else:
            events.insert_events(state, block)

    def record_stream(self, address: int, stream: int) -> None:
        """Let the free of the block wait for the work of `stream`."""
        block = self._live(address)
        if stream == block.stream:
            return
        block.streams.insert(stream, None)
        if self._state.minor >= 4 and self._state.in_capture:
            block.capture_streams.add(stream)

    def _live(self, address: int) -> Block:
        for segment in self._state.segments:
            for block in segment.blocks:
                if block.address == address and block.state == "allocated":
                    return block
        raise ValueError(f"address {address} is not that of a live allocation")

    def synchronize(self, stream: int | None = None) -> None:
        """Finish the work of a stream, or of all; the allocator is not informed."""
        self._state.driver.finish(stream)

    def empty_cache(self, pool: int | None = None) -> None:
        """Release all cached memory, or (2.8) that of one private pool; pool 0 stands for all."""
        if not pool:
            caches.empty_cache(self._state)
        elif self._state.minor < 8:
            raise ConfigError(f"empty_cache of a pool is not in PyTorch 2.{self._state.minor}")
        else:
            caches.empty_pool(self._state, pool)

    def delete_mempool(self, pool: int) -> None:
        caches.delete_mempool(self._state, pool)

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """Limit reserved memory to a fraction of the device (semantics 1.11)."""
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"fraction {fraction} is not in [0, 1]")
        state = self._state
        exact = fraction * state.driver.total
        if state.minor >= 10 and fraction == 1.0:
            state.limit = None
        elif state.minor >= 13:
            state.limit = floor(exact + 0.5)
        else:
            state.limit = floor(exact)

    def set_allocator_settings(self, conf: str) -> None:
        self._state.options.parse(conf)

    def begin_allocate_to_pool(
        self,
        pool: int,
        *,
        no_split: bool = False,
        use_on_oom: bool = False,
        stream: int | None = None,
    ) -> None:
        """Open a scope; up to 2.2 for the requests of one stream, by default stream 0."""
        pools.begin(self._state, pool, stream, no_split=no_split, use_on_oom=use_on_oom)

    def end_allocate_to_pool(self, pool: int) -> None:
        pools.end(self._state, pool)

    def release_pool(self, pool: int) -> None:
        pools.release(self._state, pool)

    def reset_peak_memory_stats(self) -> None:
        self._state.stats.reset_peak()

    def reset_accumulated_memory_stats(self) -> None:
        self._state.stats.reset_accumulated()

    def memory_stats(self) -> dict[str, int]:
        return self._state.stats.flat()

    def snapshot(self) -> dict[str, Any]:
        return snapshot(self._state)


class Request:
    """One malloc on its way through the attempts of semantics 1.8."""

    def __init__(self, state: State, size: int, stream: int) -> None:
        self.state = state
        self.requested = size
        self.stream = stream
        self.rejected = False  # by throw_on_cudamalloc_oom (semantics 1.12)
        self.size = self._rounded()
        self.tried = self._segment_size()
        if not state.in_capture:
            events.process_events(state)
        self.pool = pools.pool_for(state, stream, self.size)

    def _rounded(self) -> int:
        """Return the rounded size (semantics 1.2)."""
        size, minor = self.requested, self.state.minor
        divisions = self.state.options.divisions_for(size)
        if size < MIN:
            return MIN
        effective = divisions > 1 if minor >= 4 else divisions > 0
        if not effective or size <= MIN * divisions:
            return round_up(size, MIN)
        below = 1 << (size.bit_length() - 1)
        if divisions == 1 or below == size:
            return size
        step = below >> (divisions.bit_length() - 1)
        return round_up(size, step) if step else 2 * below

    def _segment_size(self) -> int:
        """Return the size of a new segment (semantics 1.4)."""
        if self.size <= SMALL:
            return SMALL_SEG
        if self.size < MIN_LARGE:
            return self.state.options.large_segment
        return round_up(self.size, ROUND_LARGE)

    def serve(self) -> Block:
        """Return the allocated block, or raise the error of the release."""
        found = self._attempts()
        if found is not None:
            return self._take(*found)
        if self.rejected:
            raise self._error(message.rejection_text(self.requested))
        raise self._out_of_memory()

    def _attempts(self) -> tuple[Block, bool] | None:
        """Return the block; True if expandable segments decide how it is split."""
        state = self.state
        active = state.options.expandable
        block = self._search(self.pool, active)
        if block is None and state.gc_enabled:
            caches.collect_garbage(state)
        block = block or self._grow()
        if self.rejected:
            return None
        if block is None and state.minor >= 11:
            block = self._overflow()
            if block is not None:
                active = False
        if block is None and caches.release_available(state, self.pool, self.stream, self.size):
            block = self._grow()
        if block is None and not state.in_capture:
            caches.release_cached(state)
            self._refuse_forgotten()
            state.stats.count("num_alloc_retries")
            block = self._grow()
        if block is None and 8 <= state.minor <= 10:
            block = self._overflow()
            active = active and state.minor <= 9
        return (block, active) if block is not None else None

    def _search(self, pool: Pool, active: bool) -> Block | None:
        """Find the best fit (semantics 1.5), then apply the rules for candidates (4.4, 1.6).

        active: True if expandable blocks may serve.
        """
        state, options = self.state, self.state.options
        if state.gc_enabled:
            pool.searches += 1
        fits = [
            block
            for block in state.in_state(pool, "free")
            if block.stream == self.stream and block.size >= self.size
        ]
        if not active:
            fits = [block for block in fits if not block.segment.expandable]
        if not fits:
            return None
        index = 0
        while (
            fits[index].segment.expandable
            and index + 1 < len(fits)
            and reach(fits[index + 1]) < reach(fits[index])
        ):
            index += 1
        block, most = fits[index], options.max_split_size
        if most is not None:
            if self.size < most <= block.size:
                return None
            if self.size >= most and block.size >= self.size + options.max_non_split_rounding:
                return None
        return block

    def _refuse_forgotten(self) -> None:
        """Raise if the pool was forgotten during this request: real allocators abort (observed)."""
        owner, number = self.pool.owner, self.pool.number
        if owner is None:
            return
        if number not in self.state.private or self.state.private[number][0] is not owner:
            raise UndefinedBehaviorError(f"pool (0, {number}) is forgotten under a request for it")

    def _grow(self) -> Block | None:
        """Return a new segment, or more of an expandable one (semantics 1.8, `alloc_block`)."""
        state, owner = self.state, self.pool.owner
        wanted = state.total_allocated + self.tried
        if state.limit is not None and wanted > state.limit:
            return None
        most = floor(state.options.fraction * state.driver.total)
        if state.options.switches["throw_on_cudamalloc_oom"] and wanted > most:
            # Each refusal counts, but only one at the first attempt ends the request (observed).
            state.stats.count("num_oom_rejections")
            self.rejected = True
            return None
        if state.options.expandable and (owner is None or state.minor >= 5):
            block = expandable.grow(state, self.pool, self.stream, self.size)
            if block is not None and owner is not None:
                owner.segment_count += 1
            return block
        base = state.driver.malloc(self.tried)
        if base is None:
            return None
        segment = state.segment(self.pool, self.stream, base, self.tried, 0)
        if owner is not None:
            owner.segment_count += 1
        if state.is_oversize(self.tried):
            state.stats.oversize["oversize_segments"].move(1)
        state.stats.count("num_device_alloc")
        state.note("segment_alloc", base, self.tried, self.stream, self.pool.number)
        state.observe()
        return segment.blocks[0]

    def _overflow(self) -> Block | None:
        """Return a free block of a pool marked use_on_oom (semantics 5.6).

        Marked pools are searched in the order of the table of ids.  A mark outlives the last
        release of its pool.  From 2.10 on, search and split ignore expandable segments.
        """
        state = self.state
        if self.pool.owner is not None:
            return None
        active = state.options.expandable and state.minor <= 9
        for number in state.use_on_oom:
            pools.hold(state, number)
            _, small, large = state.private[number]
            block = self._search(small if self.size <= SMALL else large, active)
            pools.release(state, number)
            if block is not None:
                return block
        return None

    def _take(self, block: Block, active: bool) -> Block:
        """Allocate the block, and split off the rest if it is large enough (semantics 1.7)."""
        state, rest = self.state, block.size - self.size
        owner, most = block.pool.owner, state.options.max_split_size
        if owner is not None and owner.number in state.no_split:
            split = False
        elif block.pool.small or active:
            split = rest >= MIN
        else:
            split = (most is None or self.size < most) and rest > SMALL
        if split:
            front = state.block(block.segment, block.address, self.size, "free")
            blocks = block.segment.blocks
            blocks.insert(blocks.index(block), front)
            block.address, block.size = front.end, rest
            state.make_free(block)
            block = front
        block.state = "allocated"
        block.requested_size = self.requested
        state.note_block("alloc", block)
        if state.is_oversize(block.size):
            state.stats.oversize["oversize_allocations"].move(1)
        state.observe()
        return block

    def _error(self, text: str) -> OutOfMemoryError:
        return OutOfMemoryError(
            text,
            requested_bytes=self.requested,
            rounded_bytes=self.size,
            tried_bytes=self.tried,
        )

    def _out_of_memory(self) -> OutOfMemoryError:
        """Record the `oom` entry, count it, and return the error (semantics 7.4)."""
        state = self.state
        free = state.driver.free
        state.note("oom", free, self.size, self.stream, self.pool.number)
        state.stats.count("num_ooms")
        private = (s for s in state.segments if s.pool.owner is not None)
        figures = message.Figures(
            device=state.device,
            tried=self.tried,
            total=state.driver.total,
            free=free,
            allocated=state.stats.current("allocated_bytes.all"),
            reserved=state.stats.current("reserved_bytes.all"),
            pools=sum(b.size for s in private for b in s.blocks if b.state == "free"),
            limit=state.limit,
            expandable=state.options.expandable,
            reserve=state.options.reserve_limit(state.driver.total),
        )
        return self._error(message.oom_text(state.minor, figures))


def reach(block: Block) -> int:
    """Return the size of the block plus the unmapped space behind it (semantics 4.4)."""
    following = block.next
    if following is not None and following.state == "unmapped":
        return block.size + following.size
    return block.size
