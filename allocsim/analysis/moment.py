"""An allocator at one moment, as frozen values: its segments, their blocks, and one request.

Invariant: the blocks of a segment tile it in address order, and every mapped byte of the device
is in exactly one block; nothing here is a statistic of the allocator, all is read off its blocks.
Source: semantics 6.3 (segments), 1.8 (the request), 5.6 (pools that may help out).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from allocsim.analysis.largest import largest_request
from allocsim.core import Block, CachingAllocator
from allocsim.core.constants import PAGE, SMALL_SIZE, UNLIMITED
from allocsim.core.pool import DEFAULT_POOL, PoolId
from allocsim.core.releases import Overflow
from allocsim.core.snapshot import all_blocks
from allocsim.units import round_up

__all__ = ["FREE", "LIVE", "PENDING", "Moment", "MomentBlock", "MomentSegment", "Request"]

LIVE, PENDING, FREE = "live", "pending", "free"


@dataclass(frozen=True, slots=True)
class MomentBlock:
    """A block.  requested_bytes: what its user asked for, 0 unless it is live.

    recorded_address: where the recording has it, None without a recording; under other settings
    than the recorded ones it lies elsewhere in the replay.
    """

    address: int
    size: int
    requested_bytes: int
    state: str
    recorded_address: int | None = None

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.size


@dataclass(frozen=True, slots=True)
class MomentSegment:
    """A cudaMalloc, or a maximal mapped range of an expandable segment.

    handle_size: bytes of a physical handle, 0 for a cudaMalloc.  is_returnable: whether what is
    wholly free in it goes back to the driver when a request fails.
    """

    address: int
    size: int
    stream: int
    pool_id: PoolId
    is_small: bool
    handle_size: int
    is_returnable: bool
    blocks: tuple[MomentBlock, ...]

    @property
    def driver_bytes(self) -> int:
        """What the driver gave for it: whole pages."""
        return self.size if self.handle_size else round_up(self.size, PAGE)

    @property
    def is_idle(self) -> bool:
        """Whether no block of it is in use or waiting."""
        return all(block.state == FREE for block in self.blocks)


@dataclass(frozen=True, slots=True)
class Request:
    """The request of the moment, in bytes, and what the allocator would take for it.

    rounded_bytes: the block it needs.  tried_bytes: the segment it asks from the driver.
    helping_pools: private pools that serve it when the device is full.  fine: expandable
    segments are active.  handle_size: of the expandable segment that it grows, 0 if it calls
    cudaMalloc.
    """

    rounded_bytes: int
    tried_bytes: int
    stream: int
    pool_id: PoolId
    helping_pools: tuple[PoolId, ...]
    fine: bool
    handle_size: int
    max_split_size: int
    max_non_split_rounding: int

    @property
    def is_small(self) -> bool:
        """Whether the small pool serves it."""
        return self.rounded_bytes <= SMALL_SIZE

    def may_use(self, segment: MomentSegment) -> bool:
        """Whether its search looks at the free blocks of `segment`."""
        pools = (self.pool_id, *self.helping_pools)
        is_mine = segment.stream == self.stream and segment.is_small == self.is_small
        return is_mine and segment.pool_id in pools and (self.fine or not segment.handle_size)

    def accepts(self, size: int) -> bool:
        """Whether a free block of `size` bytes that it looks at would serve it (1.5)."""
        if size < self.rounded_bytes:
            return False
        if self.rounded_bytes < self.max_split_size:
            return self.max_split_size == UNLIMITED or size < self.max_split_size
        return size < self.rounded_bytes + self.max_non_split_rounding


@dataclass(frozen=True, slots=True)
class Moment:
    """The device while `request` fails, after all that the allocator tried for it.

    total_bytes, free_bytes, context_bytes: of the device.  limit_bytes: None without a memory
    fraction.  releases_cache: False inside a capture, where nothing goes back to the driver.
    largest_request_bytes: the largest that would have succeeded then and there, asked raw.
    """

    request: Request
    total_bytes: int
    free_bytes: int
    context_bytes: int
    limit_bytes: int | None
    reserved_bytes: int
    allocated_bytes: int
    releases_cache: bool
    largest_request_bytes: int
    segments: tuple[MomentSegment, ...]

    @classmethod
    def of(
        cls,
        allocator: CachingAllocator,
        rounded: int,
        stream: int,
        recorded: Mapping[int, Block] | None = None,
    ) -> Moment:
        """The state of `allocator` as a request of `rounded` bytes for `stream` left it.

        recorded: the blocks by the addresses that the recording gives them.
        """
        heap, private = allocator.heap, allocator.private_pools
        names = {id(block): address for address, block in (recorded or {}).items()}
        blocks = sorted(all_blocks(heap), key=lambda block: block.ptr)
        freeable = {pool_id for pool_id in private.pools if pool_id in private.freeable}
        segments = tuple(_segments(blocks, names, freeable))
        in_capture = heap.release.scope_is_capture and bool(private.scopes)
        return cls(
            request=_request(allocator, rounded, stream),
            total_bytes=heap.device.total,
            free_bytes=heap.device.free,
            context_bytes=heap.device.context_memory,
            limit_bytes=allocator.memory_limit,
            reserved_bytes=sum(segment.size for segment in segments),
            allocated_bytes=sum(block.size for block in blocks if block.allocated),
            releases_cache=not in_capture,
            largest_request_bytes=largest_request(allocator, stream),
            segments=segments,
        )


def _request(allocator: CachingAllocator, rounded: int, stream: int) -> Request:
    config, release, private = allocator.config, allocator.release, allocator.private_pools
    owner = private.target(stream)
    maps = config.expandable_segments and (owner is None or release.expandable_private_pools)
    helps = owner is None and release.overflow is not Overflow.NEVER
    handle = PAGE if rounded <= SMALL_SIZE else config.large_segment_size
    return Request(
        rounded_bytes=rounded,
        tried_bytes=config.segment_size(rounded),
        stream=stream,
        pool_id=DEFAULT_POOL if owner is None else owner.id,
        helping_pools=tuple(private.use_on_oom) if helps else (),
        fine=config.expandable_segments,
        handle_size=handle if maps else 0,
        max_split_size=config.max_split_size,
        max_non_split_rounding=config.max_non_split_rounding,
    )


def _segments(
    blocks: Iterable[Block], names: Mapping[int, int], freeable: set[PoolId]
) -> Iterable[MomentSegment]:
    """`blocks`, which come in address order, cut where a segment begins."""
    number = 0

    def place(block: Block) -> int:
        nonlocal number
        number += block.prev is None or not block.prev.mapped
        return number

    for _, group in groupby(blocks, key=place):
        chain = list(group)
        head = chain[0]
        pool_id = DEFAULT_POOL if head.pool.owner is None else head.pool.owner.id
        yield MomentSegment(
            address=head.ptr,
            size=sum(block.size for block in chain),
            stream=head.stream,
            pool_id=pool_id,
            is_small=head.pool.is_small,
            handle_size=0 if head.expandable is None else head.expandable.handle_size,
            is_returnable=pool_id == DEFAULT_POOL or pool_id in freeable,
            blocks=tuple(_block(block, names.get(id(block))) for block in chain),
        )


def _block(block: Block, recorded: int | None) -> MomentBlock:
    state = LIVE if block.allocated else PENDING if block.is_active else FREE
    requested = block.requested_size if block.allocated else 0
    return MomentBlock(block.ptr, block.size, requested, state, recorded)
