"""Model of the CUDA driver for pinned host memory: its addresses, and the progress of streams."""

from __future__ import annotations

from allocsim.errors import ConfigError, OutOfMemoryError
from allocsim.units import round_up

PAGE = 4096
"""Alignment of pinned memory in bytes."""

_BASE = 1 << 44
OUT_OF_MEMORY = "CUDA error: out of memory"
"""First line of PyTorch's error text if the driver refuses pinned memory."""


class HostDriver:
    """Model of the driver for one process: pinned memory, and streams with their events.

    capacity: bytes of host memory that the driver can pin; None for no limit.
    used: pinned bytes.
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
        """Return the address of `size` new bytes; no address is used twice.

        Raises OutOfMemoryError if they exceed the capacity.

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
        """Release the memory at `address`.

        Mirrors: free_block_slowpath
        """
        self.used -= self._sizes.pop(address)

    def record_event(self, stream: int) -> int:
        """Append an event to the work of `stream` and return its number."""
        number = self._issued[stream] = self._issued.get(stream, 0) + 1
        return number

    def query_event(self, stream: int, number: int) -> bool:
        """Return True if `stream` has passed its event `number`."""
        return self._done.get(stream, 0) >= number

    def synchronize(self, stream: int | None = None) -> None:
        """Let one stream, or all streams if it is None, finish their submitted work."""
        for each in [*self._issued] if stream is None else [stream]:
            self._done[each] = self._issued.get(each, 0)


class ReserveSegment:
    """Segment that is pinned in advance and never released; new blocks are cut from it.

    Source: semantics 13.2.

    Mirrors: PinnedReserveSegment
    """

    def __init__(self, start: int, size: int) -> None:
        self._start, self._next, self._end = start, start, start + size

    def allocate(self, size: int) -> int | None:
        """Return the address of a new block; None if the rest of the segment is too small."""
        address, end = self._next, self._next + round_up(size, PAGE)
        if end > self._end:
            return None
        self._next = end
        return address

    def owns(self, address: int) -> bool:
        return self._start <= address < self._end
