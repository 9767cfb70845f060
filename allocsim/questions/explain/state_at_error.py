"""An allocator while a request fails, as frozen values: its segments, and what the request may use.

Invariant: every mapped byte of the device is in exactly one block of `segments`; all figures come
from these blocks, none from the allocator's statistics.
Source: semantics 6.5 (segments), 1.8 (the request), 5.6 (pools that may help out).
"""

from __future__ import annotations

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
from allocsim.state import DEFAULT_POOL, PoolId, SegmentState
from allocsim.units import round_up

__all__ = ["FailedRequest", "StateAtError"]


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """The request that fails, in bytes, and what the allocator would take for it.

    rounded_bytes: the block it needs.
    tried_bytes: the segment it asks from the driver.
    helping_pools: private pools that serve it when the device is full.
    handle_size: of the expandable segment that it grows, 0 if it calls cudaMalloc.
    config: the settings in force.
    """

    rounded_bytes: int
    tried_bytes: int
    stream: int
    pool_id: PoolId
    helping_pools: tuple[PoolId, ...]
    handle_size: int
    config: AllocatorConfig

    @property
    def is_small(self) -> bool:
        """Whether the small pool serves it."""
        return self.rounded_bytes <= SMALL_SIZE

    def may_use(self, segment: SegmentState) -> bool:
        """Whether its search looks at the free blocks of `segment`."""
        return (
            segment.stream == self.stream
            and segment.is_small == self.is_small
            and segment.pool_id in (self.pool_id, *self.helping_pools)
            and (self.config.expandable_segments or not segment.is_expandable)
        )

    def accepts(self, size: int) -> bool:
        """Whether a free block of `size` bytes that it looks at would serve it (1.5)."""
        return self.config.accepts(self.rounded_bytes, size)


@dataclass(frozen=True, slots=True)
class StateAtError:
    """The device while `request` fails, after all that the allocator tried for it.

    total_bytes, free_bytes, context_bytes: of the device.  others_bytes: the part of context_bytes
        that other processes hold, where that is a notable part of the device.
    limit_bytes: None without a memory fraction.
    releases_cache: False inside a capture, where nothing goes back to the driver.
    returnable_pools: whose wholly free memory goes back to the driver.
    handle_sizes: of expandable segments, by address.
    largest_request_bytes: the largest that would have succeeded then and there, asked raw.
    recorded_addresses: where the recording has the blocks in use, by their address here; under
        other settings than the recorded ones the two differ.
    """

    request: FailedRequest
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
        """Return the state as a request left it.

        recorded: the blocks by recorded address.  others: bytes that other processes hold.
        """
        device = allocator.device
        return cls(
            request=_request(allocator, rounded, stream),
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

    def driver_bytes(self, segment: SegmentState) -> int:
        """What the driver gave for a segment: whole pages."""
        size = segment.total_size
        return size if segment.is_expandable else round_up(size, PAGE)

    def is_returnable(self, segment: SegmentState) -> bool:
        """Whether what is wholly free in it goes back to the driver when a request fails."""
        return segment.pool_id in self.returnable_pools


def _request(allocator: CachingAllocator, rounded: int, stream: int) -> FailedRequest:
    config = allocator.config
    pool_id = pool_of_requests(allocator, stream)
    is_mapped = pool_id == DEFAULT_POOL or allocator.release.expandable_private_pools
    handle = PAGE if rounded <= SMALL_SIZE else config.large_segment_size
    return FailedRequest(
        rounded_bytes=rounded,
        tried_bytes=config.segment_size(rounded),
        stream=stream,
        pool_id=pool_id,
        helping_pools=helping_pools(allocator, stream),
        handle_size=handle if config.expandable_segments and is_mapped else 0,
        config=config,
    )
