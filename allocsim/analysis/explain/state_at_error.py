"""State of the allocator and the device when a request fails, and the uses of the device's memory.

Every mapped byte of the device is in exactly one block of `StateAtError.segments`.  All sizes are
computed from these blocks and not from the allocator's statistics.
Source: semantics 6.5 (segments), 1.8 (the request), 5.6 (pools marked use_on_oom).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from allocsim.core import (
    PAGE,
    SMALL_SIZE,
    AllocatorConfig,
    Block,
    CachingAllocator,
    handle_sizes,
    helping_pools,
    largest_request,
    pool_of_requests,
    returnable_pools,
)
from allocsim.state import ALLOCATED, DEFAULT_POOL, PENDING, BlockState, PoolId, SegmentState
from allocsim.units import round_up


@dataclass(frozen=True, slots=True)
class StateAtError:
    """Device and allocator when a request fails, after all attempts of the allocator.

    rounded_bytes: size of the block that the request needs.
    tried_bytes: size of the segment that the request needs from the driver.
    stream, pool_id: stream and pool of the request.
    helping_pools: private pools marked use_on_oom, which serve the request when the device is full.
    handle_size: if the request grows an expandable segment, the size of one mapped handle; 0 if it
        calls cudaMalloc.
    config: settings in force.
    total_bytes, free_bytes: total and free memory of the device.
    context_bytes: memory held outside PyTorch, for example by the CUDA context.
    limit_bytes: largest number of bytes that a memory fraction allows; None if none is set.
    releases_cache: False during the capture of a CUDA graph, when no memory returns to the driver.
    returnable_pools: private pools whose free segments return to the driver when a request fails.
    handle_sizes: size of the mapped handles of each expandable segment, by its address.
    largest_request_bytes: largest request, before rounding, that would have succeeded.
    recorded_addresses: recorded address of each block in use, by its address in the replay.
    others_bytes: part of context_bytes that other processes hold.
    """

    rounded_bytes: int
    tried_bytes: int
    stream: int
    pool_id: PoolId
    helping_pools: tuple[PoolId, ...]
    handle_size: int
    config: AllocatorConfig
    total_bytes: int
    free_bytes: int
    context_bytes: int
    limit_bytes: int | None
    releases_cache: bool
    returnable_pools: frozenset[PoolId]
    handle_sizes: Mapping[int, int]
    largest_request_bytes: int
    segments: tuple[SegmentState, ...]
    recorded_addresses: Mapping[int, int]
    others_bytes: int = 0

    @classmethod
    def of(
        cls,
        allocator: CachingAllocator,
        rounded: int,
        stream: int,
        recorded: Mapping[int, Block] | None = None,
        others: int = 0,
    ) -> StateAtError:
        """Copy the state of `allocator` after a request of `rounded` bytes failed.

        recorded: blocks in use, by their address in the recording, which differs from the replay's.
        others: bytes of the device that other processes hold.
        """
        device, config = allocator.device, allocator.config
        pool_id = pool_of_requests(allocator, stream)
        is_mapped = pool_id == DEFAULT_POOL or allocator.release.expandable_private_pools
        handle = PAGE if rounded <= SMALL_SIZE else config.large_segment_size
        return cls(
            rounded_bytes=rounded,
            tried_bytes=config.segment_size(rounded),
            stream=stream,
            pool_id=pool_id,
            helping_pools=helping_pools(allocator, stream),
            handle_size=handle if config.expandable_segments and is_mapped else 0,
            config=config,
            total_bytes=device.total,
            free_bytes=device.free,
            context_bytes=device.context_memory,
            limit_bytes=allocator.memory_limit,
            releases_cache=not allocator.in_capture,
            returnable_pools=returnable_pools(allocator),
            handle_sizes=handle_sizes(allocator),
            largest_request_bytes=largest_request(allocator, stream),
            segments=allocator.segments(),
            recorded_addresses={block.ptr: address for address, block in (recorded or {}).items()},
            others_bytes=min(others, device.context_memory),
        )

    @property
    def is_small(self) -> bool:
        return self.rounded_bytes <= SMALL_SIZE

    def may_use(self, segment: SegmentState) -> bool:
        """Return True if the search of the request considers the free blocks of `segment`."""
        return (
            segment.stream == self.stream
            and segment.is_small == self.is_small
            and segment.pool_id in (self.pool_id, *self.helping_pools)
            and (self.config.expandable_segments or not segment.is_expandable)
        )

    def accepts(self, size: int) -> bool:
        return self.config.accepts(self.rounded_bytes, size)

    def driver_bytes(self, segment: SegmentState) -> int:
        """Return the bytes of the driver's pages (2 MiB) that a segment occupies."""
        size = segment.total_size
        return size if segment.is_expandable else round_up(size, PAGE)

    def is_returnable(self, segment: SegmentState) -> bool:
        """Return True if a failed request may return the segment to the driver once it is empty."""
        return segment.pool_id in self.returnable_pools


KINDS = {
    "live": "requested and in use",
    "slack": "in live blocks beyond the requested size",
    "pending": "freed, but waiting for work on another stream",
    "late": "large enough, but freed only while the request was failing",
    "private_pool": "idle, but kept for a private pool (a CUDA graph, a MemPool)",
    "default_pool": "idle, but outside the private pool of the request",
    "other_stream": "idle, but kept for another stream",
    "other_size_pool": "idle, but in the pool of the other size (small: up to 1 MiB)",
    "interleaved": "idle between live blocks of a segment",
    "whole_segments": "idle in whole segments",
    "driver_rounding": "lost to the driver's pages of 2 MiB",
    "free": "free on the device",
    "other_processes": "held by other processes on the card",
    "context": "outside PyTorch: the CUDA context and its libraries",
}
"""Uses of device memory, with descriptions.

If several apply to a byte, it counts for the first.
"""


def kinds_of(state: StateAtError) -> dict[str, int]:
    """Return the bytes of the device by kind of memory (`KINDS`), including kinds with 0 bytes.

    Each is summed separately and none is a remainder, so the sum can be checked.
    """
    kinds: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    for segment in state.segments:
        kinds["driver_rounding"] += state.driver_bytes(segment) - segment.total_size
        for block in segment.blocks:
            if block.state == ALLOCATED:
                kinds["live"] += block.requested_size
                kinds["slack"] += block.size - block.requested_size
            elif block.state == PENDING:
                kinds["pending"] += block.size
            else:
                kinds[_idle_kind(state, segment, block)] += block.size
    kinds["free"] = state.free_bytes
    kinds["other_processes"] = state.others_bytes
    kinds["context"] = state.context_bytes - state.others_bytes
    return dict(kinds)


def _idle_kind(state: StateAtError, segment: SegmentState, block: BlockState) -> str:
    if state.may_use(segment) and state.accepts(block.size):
        return "late"
    if segment.pool_id not in (DEFAULT_POOL, state.pool_id):
        return "private_pool"
    if segment.pool_id != state.pool_id:
        return "default_pool"
    if segment.stream != state.stream:
        return "other_stream"
    if segment.is_small != state.is_small:
        return "other_size_pool"
    return "whole_segments" if segment.is_idle else "interleaved"
