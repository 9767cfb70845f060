"""State of one device's allocator, and values computed by scanning all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.naive.block import Block, Pool, PrivatePool, Segment
from tests.naive.driver import Driver, Event
from tests.naive.options import Options
from tests.naive.statistics import Statistics
from tests.naive.table import Table, pool_hash, stream_hash

__all__ = ["State"]


@dataclass(eq=False, slots=True)
class State:
    """Complete state; the other modules are functions on it."""

    minor: int
    device: int
    options: Options
    driver: Driver
    stats: Statistics
    record_history: bool
    limit: int | None = None
    segments: list[Segment] = field(default_factory=list)
    small: Pool = field(default_factory=lambda: Pool(small=True))
    large: Pool = field(default_factory=lambda: Pool(small=False))
    private: dict[int, tuple[PrivatePool, Pool, Pool]] = field(default_factory=dict)
    freeable: Table[None] = field(default_factory=lambda: Table(pool_hash))
    scopes: list[tuple[int, int | None]] = field(default_factory=list)
    no_split: set[int] = field(default_factory=set)
    use_on_oom: Table[None] = field(default_factory=lambda: Table(pool_hash))
    queues: Table[list[tuple[Event, Block]]] = field(init=False)
    deferred: list[Block] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    block_counter: int = 0
    segment_counter: int = 0

    def __post_init__(self) -> None:
        self.queues = Table(stream_hash(self.device))

    @property
    def in_capture(self) -> bool:
        """True if an open scope counts as a capture (semantics 5.4)."""
        return self.minor <= 12 and bool(self.scopes)

    @property
    def total_allocated(self) -> int:
        return sum(segment.mapped for segment in self.segments)

    @property
    def gc_enabled(self) -> bool:
        return self.limit is not None and self.options.gc_threshold > 0.0

    def is_oversize(self, size: int) -> bool:
        most = self.options.max_split_size
        return most is not None and size >= most

    def block(self, segment: Segment, address: int, size: int, state: str) -> Block:
        """Create a block object, not yet in its segment's list."""
        self.block_counter += 1
        streams: Table[None] = Table(stream_hash(self.device))
        return Block(segment, address, size, state, self.block_counter, streams)

    def segment(self, pool: Pool, stream: int, base: int, size: int, handle: int) -> Segment:
        """Create a segment of one block, free if it has memory."""
        self.segment_counter += 1
        segment = Segment(pool, stream, base, self.segment_counter, handle)
        state = "unmapped" if handle else "free"
        segment.blocks.append(self.block(segment, base, size, state))
        self.segments.append(segment)
        return segment

    def key(self, block: Block) -> tuple[int, ...]:
        """Return the sort key of a free block in this release (semantics 1.5)."""
        if self.minor <= 11:
            return (block.stream, block.size, block.address)
        counter = block.counter if self.minor == 12 else block.segment.counter
        return (block.stream, block.size, counter, block.address)

    def in_state(self, pool: Pool, state: str) -> list[Block]:
        """Return the blocks of the pool in that state, in key order."""
        mine = (s for s in self.segments if s.pool is pool)
        return sorted((b for s in mine for b in s.blocks if b.state == state), key=self.key)

    def make_free(self, block: Block) -> None:
        block.state = "free"
        block.gc_base = block.pool.searches

    def merge(self, block: Block) -> None:
        """Merge `block` with neighbours of the same kind; its object survives."""
        for other in (block.prev, block.next):
            if other is not None and other.state == block.state:
                block.address = min(block.address, other.address)
                block.size += other.size
                block.segment.blocks.remove(other)

    def observe(self) -> None:
        self.stats.observe(self.segments)

    def note(self, action: str, address: int, size: int, stream: int, number: int = 0) -> None:
        """Append a trace entry; of an `oom`, the address is the free bytes."""
        if not self.record_history:
            return
        place = "device_free" if action == "oom" else "addr"
        entry: dict[str, Any] = {"action": action, place: address, "size": size}
        entry["stream"] = stream
        if self.minor >= 2:
            entry["time_us"] = 0
        if self.minor >= 8:
            entry["compile_context"] = "N/A"
        if self.minor >= 10:
            entry["user_metadata"] = ""
        if self.minor >= 12:
            entry["pool_id"] = (0, number)
        self.trace.append(entry)

    def note_block(self, action: str, block: Block) -> None:
        self.note(action, block.address, block.requested_size, block.stream, block.pool.number)
