"""Segments as lists of blocks in address order that cover them without gaps.

Everything else (free blocks, neighbours, reserved bytes) is computed from these lists on each use;
nothing is stored twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from allocsim.units import MIB
from tests.naive.table import Table

__all__ = ["Block", "Segment", "Pool", "PrivatePool", "SMALL_SEG"]

SMALL_SEG = 2 * MIB


@dataclass(eq=False, slots=True)
class PrivatePool:
    """Pool (0, number), with the counts that decide its lifetime (semantics 5.1)."""

    number: int
    use_count: int = 1
    segment_count: int = 0


@dataclass(eq=False, slots=True)
class Pool:
    """Destination of a request: small or large, default or of a private pool."""

    small: bool
    owner: PrivatePool | None = None
    searches: int = 0

    @property
    def kind(self) -> str:
        return "small_pool" if self.small else "large_pool"

    @property
    def number(self) -> int:
        return self.owner.number if self.owner else 0


@dataclass(eq=False, slots=True)
class Segment:
    """One cudaMalloc, or one reserved range of handles (handle > 0: expandable)."""

    pool: Pool
    stream: int
    base: int
    counter: int
    handle: int = 0
    blocks: list[Block] = field(default_factory=list)

    @property
    def expandable(self) -> bool:
        return self.handle > 0

    @property
    def mapped(self) -> int:
        """Bytes of its mapped memory."""
        return sum(b.size for b in self.blocks if b.state != "unmapped")


@dataclass(eq=False, slots=True)
class Block:
    """Part of a segment; state is "allocated", "pending", "free" or "unmapped".

    The identity of the object outlives an allocation: the object that survives a split or a merge
    decides stale figures (semantics 2.2, 12.8) and the counters of 2.12.
    """

    segment: Segment
    address: int
    size: int
    state: str
    counter: int
    streams: Table[None]
    requested_size: int = 0
    event_count: int = 0
    gc_base: int = 0
    capture_streams: set[int] = field(default_factory=set)

    @property
    def pool(self) -> Pool:
        return self.segment.pool

    @property
    def stream(self) -> int:
        return self.segment.stream

    @property
    def end(self) -> int:
        return self.address + self.size

    @property
    def prev(self) -> Block | None:
        index = self.segment.blocks.index(self)
        return self.segment.blocks[index - 1] if index else None

    @property
    def next(self) -> Block | None:
        index = self.segment.blocks.index(self)
        return self.segment.blocks[index + 1] if index + 1 < len(self.segment.blocks) else None

    @property
    def is_split(self) -> bool:
        return len(self.segment.blocks) > 1
