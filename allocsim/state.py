"""Memory of a device at one moment: segments and their blocks.

The blocks of a valid segment cover it without gap or overlap (semantics.md, section 6.5).
`recording/soundness.py` checks this for recordings, and `core/check.py` for the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
"""State of an allocated block."""

PENDING = "active_pending_free"
"""State of a block that the program freed and that still waits for another stream."""

INACTIVE = "inactive"
"""State of a free block, cached by the allocator."""

PoolId = tuple[int, int]
"""Id of a private pool, as CUDA graphs and MemPools number them."""

DEFAULT_POOL: PoolId = (0, 0)


@dataclass(frozen=True, slots=True)
class BlockState:
    """Block of a segment at one moment.

    requested_size: bytes of the request; meaningless if the block is inactive.
    state: `ALLOCATED`, `PENDING` (freed, but still used by a stream) or `INACTIVE` (free).
    frames: index, in the recording's table, of the stack that allocated the block; -1 if unknown.
    is_least: True if the size is unknown, and `size` is the least possible size.

    Mirrors: BlockInfo
    """

    address: int
    size: int
    requested_size: int
    state: str
    frames: int = -1
    is_least: bool = field(default=False, compare=False)

    @property
    def end(self) -> int:
        return self.address + self.size

    @property
    def is_active(self) -> bool:
        return self.state != INACTIVE


@dataclass(frozen=True, slots=True)
class SegmentState:
    """Segment from cudaMalloc, or one mapped range of an expandable segment, at one moment.

    stream: raw handle (cudaStream_t) of the segment's stream.
    is_small: True if the segment is in the small pool.
    pool_id: `DEFAULT_POOL`, or the private pool that owns the segment.
    blocks: blocks in address order, without gaps.
    frames: index, in the recording's table, of the stack that allocated the segment; -1 if unknown.

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
        return self.address + self.total_size

    def held(self, state: str) -> int:
        """Return the total bytes of the segment's blocks in a state, such as `ALLOCATED`."""
        return sum(block.size for block in self.blocks if block.state == state)

    @property
    def allocated_size(self) -> int:
        return self.held(ALLOCATED)

    @property
    def active_size(self) -> int:
        return sum(block.size for block in self.blocks if block.state != INACTIVE)

    @property
    def requested_size(self) -> int:
        """Sum of the requested bytes of the active blocks."""
        return sum(block.requested_size for block in self.blocks if block.state != INACTIVE)

    @property
    def largest_free(self) -> int:
        return max((block.size for block in self.blocks if block.state == INACTIVE), default=0)

    @property
    def is_idle(self) -> bool:
        return all(block.state == INACTIVE for block in self.blocks)
