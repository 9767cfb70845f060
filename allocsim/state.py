"""A device's memory at one moment: segments, and the blocks that tile each of them.

A sound state keeps three rules, which `trace.lint` checks of a recording and `core.check` of the
model: the blocks of a segment follow one another from its address to its end without gap or
overlap; segments of a device do not overlap; a block's state is one of PyTorch's three strings.
Source: semantics 6.5.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ALLOCATED",
    "PENDING",
    "INACTIVE",
    "DEFAULT_POOL",
    "BlockState",
    "PoolId",
    "SegmentState",
]

ALLOCATED = "active_allocated"
"""Handed out."""

PENDING = "active_pending_free"
"""Freed by the program, and waiting for a stream that used it."""

INACTIVE = "inactive"
"""Free: cached by the allocator, in use by nobody."""

PoolId = tuple[int, int]
"""A private pool, as CUDA graphs and MemPools are numbered."""

DEFAULT_POOL: PoolId = (0, 0)


@dataclass(frozen=True, slots=True)
class BlockState:
    """A block of a segment.

    address: its first byte.
    size: bytes in the segment.
    requested_size: bytes asked for; stale where the block is inactive.
    state: `ALLOCATED`, `PENDING` or `INACTIVE`.
    frames: number of the stack that allocated it, -1 where unknown.

    Mirrors: BlockInfo
    """

    address: int
    size: int
    requested_size: int
    state: str
    frames: int = -1

    @property
    def end(self) -> int:
        """The first address past the block."""
        return self.address + self.size

    @property
    def is_active(self) -> bool:
        """Whether it is handed out, or waits for a stream."""
        return self.state != INACTIVE


@dataclass(frozen=True, slots=True)
class SegmentState:
    """A segment of cudaMalloc, or one mapped range of an expandable segment.

    address: its first byte.
    total_size: bytes.
    stream: the raw handle that it belongs to.
    is_small: whether it is of the small pool.
    pool_id: `DEFAULT_POOL`, or the private pool that owns it.
    blocks: tile it in address order.
    frames: number of the stack that allocated it, -1 where unknown.

    Mirrors: SegmentInfo
    """

    address: int
    total_size: int
    stream: int
    is_small: bool
    pool_id: PoolId
    is_expandable: bool
    blocks: tuple[BlockState, ...]
    frames: int = -1

    @property
    def end(self) -> int:
        """The first address past the segment."""
        return self.address + self.total_size

    def held(self, state: str) -> int:
        """Bytes of the blocks in `state`."""
        return sum(block.size for block in self.blocks if block.state == state)

    @property
    def allocated_size(self) -> int:
        """Bytes of blocks handed out."""
        return self.held(ALLOCATED)

    @property
    def active_size(self) -> int:
        """Bytes of blocks handed out or waiting for other streams."""
        return sum(block.size for block in self.blocks if block.state != INACTIVE)

    @property
    def requested_size(self) -> int:
        """Bytes asked for by the active blocks."""
        return sum(block.requested_size for block in self.blocks if block.state != INACTIVE)

    @property
    def largest_free(self) -> int:
        """Bytes of the largest inactive block, 0 for none."""
        return max((block.size for block in self.blocks if block.state == INACTIVE), default=0)

    @property
    def is_idle(self) -> bool:
        """Whether no block of it is in use or waiting."""
        return all(block.state == INACTIVE for block in self.blocks)
