"""Parts of the pinned-memory allocator: driver, statistics, blocks and pools.

As in PyTorch, blocks in use are counted separately for each power of two, and the statistics add up
these counts.  A reported peak is the sum of the peaks of all powers, although these may be reached
at different times (semantics.md, section 13.5).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from allocsim.core import HashOrder, HostStatNames, Stat
from allocsim.errors import ConfigError, OutOfMemoryError
from allocsim.state import ALLOCATED, DEFAULT_POOL, INACTIVE, PENDING, PoolId
from allocsim.units import round_up

PAGE = 4096
"""Alignment of pinned memory in bytes."""

_BASE = 1 << 44
OUT_OF_MEMORY = "CUDA error: out of memory"
"""First line of PyTorch's error text if the driver refuses pinned memory."""


class HostDriver:
    """Model of the CUDA driver for one process: pinned memory, streams and events.

    capacity: bytes of host memory that the driver can pin; None for no limit.
    used: bytes that are pinned now.
    """

    def __init__(self, capacity: int | None) -> None:
        if capacity is not None and capacity < 0:
            raise ConfigError(f"host_memory {capacity} is negative; expected bytes, 0 or more")
        self.capacity = capacity
        self.used = 0
        self._sizes: dict[int, int] = {}
        self._next = _BASE
        self._issued: dict[int, int] = {}
        self._done: dict[int, int] = {}

    def host_alloc(self, size: int) -> int:
        """Pin `size` bytes and return their address, which was never used before.

        Raises OutOfMemoryError if the pinned bytes would exceed `capacity`.

        Mirrors: allocate_host_memory_slowpath
        """
        if self.capacity is not None and self.used + size > self.capacity:
            raise OutOfMemoryError(
                OUT_OF_MEMORY, requested_bytes=size, rounded_bytes=size, tried_bytes=0
            )
        address = self._next
        self._next += round_up(size, PAGE)
        self._sizes[address] = size
        self.used += size
        return address

    def free_host(self, address: int) -> None:
        """Unpin and release the memory at `address`.

        Mirrors: free_block_slowpath
        """
        self.used -= self._sizes.pop(address)

    def record_event(self, stream: int) -> int:
        number = self._issued[stream] = self._issued.get(stream, 0) + 1
        return number

    def query_event(self, stream: int, number: int) -> bool:
        return self._done.get(stream, 0) >= number

    def synchronize(self, stream: int | None = None) -> None:
        """Finish the submitted work of `stream`, or of all streams if it is None."""
        for each in [*self._issued] if stream is None else [stream]:
            self._done[each] = self._issued.get(each, 0)


class ReserveSegment:
    """Segment that is pinned in advance and never released; blocks are taken from its front.

    Source: semantics 13.2.

    Mirrors: PinnedReserveSegment
    """

    def __init__(self, start: int, size: int) -> None:
        self._start, self._next, self._end = start, start, start + size

    def allocate(self, size: int) -> int | None:
        """Return the address of `size` unused bytes; None if fewer are left."""
        address, end = self._next, self._next + round_up(size, PAGE)
        if end > self._end:
            return None
        self._next = end
        return address

    def owns(self, address: int) -> bool:
        return self._start <= address < self._end


def _stats() -> defaultdict[int, Stat]:
    return defaultdict(Stat)


@dataclass(slots=True)
class ActiveStats:
    """Number and bytes of the blocks in use, for each power of two.

    Key n of `count` and `size` is for blocks of more than 2**(n - 1) and at most 2**n bytes.
    """

    count: defaultdict[int, Stat] = field(default_factory=_stats)
    size: defaultdict[int, Stat] = field(default_factory=_stats)

    def increase(self, bucket: int, size: int) -> None:
        self.count[bucket].increase(1)
        self.size[bucket].increase(size)

    def decrease(self, bucket: int, size: int) -> None:
        self.count[bucket].decrease(1)
        self.size[bucket].decrease(size)

    def all(self) -> list[Stat]:
        return [*self.count.values(), *self.size.values()]

    def absorb(self, other: ActiveStats) -> None:
        for ours, theirs in ((self.count, other.count), (self.size, other.size)):
            for bucket, stat in theirs.items():
                _add(ours[bucket], stat)


@dataclass(slots=True)
class OwnedStats:
    """Number and bytes of all blocks of the allocator, in use or cached.

    n_alloc, n_free: number of driver calls that pinned or released memory since the last reset; the
        reserve segment counts as one call.
    """

    count: Stat = field(default_factory=Stat)
    size: Stat = field(default_factory=Stat)
    n_alloc: int = 0
    n_free: int = 0

    def increase(self, size: int) -> None:
        self.count.increase(1)
        self.size.increase(size)

    def decrease(self, size: int) -> None:
        self.count.decrease(1)
        self.size.decrease(size)

    def reset_accumulated(self) -> None:
        self.count.reset_accumulated()
        self.size.reset_accumulated()
        self.n_alloc = self.n_free = 0


def flattened(
    names: HostStatNames, owned: OwnedStats, pools: Iterable[ActiveStats]
) -> dict[str, int]:
    """Return statistics as a dictionary with the keys of torch.cuda.host_memory_stats().

    names: beginnings of the keys, which differ between PyTorch releases.
    owned: statistics of all blocks.
    pools: statistics of the blocks in use of each pool.
    """
    count, size = Stat(), Stat()
    for active in pools:
        for bucket in active.count:
            _add(count, active.count[bucket])
            _add(size, active.size[bucket])
    values = {
        names.active: count,
        names.active_bytes: size,
        names.owned: owned.count,
        names.owned_bytes: owned.size,
    }
    flat = {
        f"{name}.{column}": getattr(stat, column)
        for name, stat in values.items()
        for column in ("allocated", "current", "freed", "peak")
    }
    flat |= {
        "host_alloc_time.count": owned.n_alloc,
        "host_free_time.count": owned.n_free,
        "num_host_alloc": owned.count.allocated,
        "num_host_free": owned.count.freed,
    }
    return dict(sorted(flat.items()))


def _add(total: Stat, stat: Stat) -> None:
    total.current += stat.current
    total.peak += stat.peak
    total.allocated += stat.allocated
    total.freed += stat.freed


Event = tuple[int, int]
"""CUDA event: (stream, index of the event among those recorded on this stream)."""


@dataclass(slots=True, eq=False)
class HostBlock:
    """Block of pinned memory, used by the program or free.

    size: bytes of the block, after rounding.
    allocated: True while the program uses the block.
    streams: keys are the streams that use the block, in the order of PyTorch's hash table.
    event_count: number of events that must pass before the freed block can be reused.
    in_capture: True if the block's last request came from a graph capture.

    Mirrors: HostBlock
    """

    address: int
    size: int
    pool_id: PoolId
    allocated: bool = True
    streams: HashOrder[int, None] | None = None
    event_count: int = 0
    in_capture: bool = False

    @property
    def active(self) -> bool:
        """True if the program uses the block, or a stream may still use it."""
        return self.allocated or self.event_count > 0


@dataclass(slots=True, eq=False)
class HostBlockPool:
    """Default pool, or private pool of a CUDA graph capture.

    stats: statistics of the blocks in use.
    blocks: all blocks of the pool, keyed by address.
    events: CUDA events for which freed blocks wait, each with its block, oldest first.
    use_count: number of captures and graphs that use a private pool.

    Mirrors: HostBlockPool, HostPrivatePool
    """

    stats: ActiveStats
    pool_id: PoolId = DEFAULT_POOL
    blocks: dict[int, HostBlock] = field(default_factory=dict)
    events: deque[tuple[Event, HostBlock]] = field(default_factory=deque)
    use_count: int = 1
    _free: dict[int, list[HostBlock]] = field(default_factory=dict)

    def get_free_block(self, size: int, *, takes_newest: bool) -> HostBlock | None:
        """Remove and return the newest free block of at least `size` bytes; None if none exists.

        Only blocks with the same `bucket_of` (power of two) as `size` are searched.

        takes_newest: True to return the newest of these blocks even if it is too small, as some
            PyTorch releases do.

        Source: semantics 13.2.
        """
        free = self._free.get(bucket_of(size), [])
        for at in range(len(free) - 1, -1, -1):
            if takes_newest or free[at].size >= size:
                return free.pop(at)
        return None

    def add_free_block(self, block: HostBlock) -> None:
        self._free.setdefault(bucket_of(block.size), []).append(block)

    def take_free_blocks(self) -> Iterator[HostBlock]:
        """Remove and yield all free blocks: smallest power of two first, then oldest first."""
        for bucket in sorted(self._free):
            yield from self._free.pop(bucket)


def bucket_of(size: int) -> int:
    """Return the exponent of the smallest power of two that is at least `size`.

    Mirrors: size_index
    """
    return (size - 1).bit_length()


def segment_of(block: HostBlock) -> dict[str, Any]:
    """Return a block as a segment of a snapshot (semantics.md, section 13.7)."""
    state = ALLOCATED if block.allocated else PENDING if block.event_count else INACTIVE
    return {
        "device": -1,
        "address": block.address,
        "total_size": block.size,
        "allocated_size": block.size if block.allocated else 0,
        "active_size": block.size if block.active else 0,
        "requested_size": block.size,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": block.pool_id,
        "is_expandable": False,
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.size,
                "state": state,
            }
        ],
    }
