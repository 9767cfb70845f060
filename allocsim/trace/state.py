"""What a device holds at one moment: segments, and the blocks that tile each of them.

A sound state keeps three rules, which `lint` checks: the blocks of a segment follow one another
from its address to its end without gap or overlap; segments of a device do not overlap; states
are the three strings of semantics 6.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.trace.entry import PoolId

__all__ = ["ALLOCATED", "PENDING", "INACTIVE", "BlockState", "SegmentState"]

ALLOCATED = "active_allocated"
PENDING = "active_pending_free"
INACTIVE = "inactive"


@dataclass(frozen=True, slots=True)
class BlockState:
    """A block of a segment.  size: bytes in the segment; requested_size: bytes asked for.

    An inactive block's requested_size is stale (semantics 6.5).  frames: number of the stack
    that allocated it, -1 where unknown.
    """

    address: int
    size: int
    requested_size: int
    state: str
    frames: int = -1


@dataclass(frozen=True, slots=True)
class SegmentState:
    """A segment, or one mapped range of an expandable segment; sizes in bytes."""

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

    @property
    def allocated_size(self) -> int:
        """Bytes of blocks handed out."""
        return sum(block.size for block in self.blocks if block.state == ALLOCATED)

    @property
    def active_size(self) -> int:
        """Bytes of blocks handed out or waiting for other streams."""
        return sum(block.size for block in self.blocks if block.state != INACTIVE)

    @property
    def requested_size(self) -> int:
        """Bytes asked for by the active blocks."""
        return sum(block.requested_size for block in self.blocks if block.state != INACTIVE)
