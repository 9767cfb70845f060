"""The device under the allocator: memory, addresses and streams as plain records.

Addresses come in whole steps of 2 MiB, and an exact fit succeeds.  The work of a stream is finished
when a caller says so; waiting for an event finishes all earlier work of its stream.

Under the policy "driver", cudaMalloc takes address space in chunks of whole 32 MiB, at the highest
place below the base, and memory at the lowest free place of a chunk.  An empty chunk is released.
Reservations without memory are elsewhere, one after another.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.units import MIB, round_up

__all__ = ["PAGE", "Event", "Driver"]

PAGE = 2 * MIB
CHUNK = 32 * MIB


@dataclass(frozen=True, slots=True)
class Event:
    """The `position`-th piece of work recorded on `stream`."""

    stream: int
    position: int


class Driver:
    """Memory, address space and streams of one simulated device; sizes in bytes."""

    def __init__(self, total: int, context: int, policy: str, base: int) -> None:
        self.total = total
        self.free = total - context
        self._policy = policy
        self._base = base
        self._bump = base
        self._top = base or 0x7F00_0000_0000
        self._chunks: list[tuple[int, int]] = []
        if policy == "driver":
            self._bump = 0x3_0200_0000
        self._ranges: list[tuple[int, int]] = []  # address ranges in use, sorted
        self._recorded: dict[int, int] = {}
        self._finished: dict[int, int] = {}

    def reserve(self, size: int) -> int:
        """Reserve an address range of `size` bytes, without memory."""
        size = round_up(size, CHUNK if self._policy == "driver" else PAGE)
        address = self._base
        if self._policy != "firstfit":
            address = self._bump
            self._bump += size
        else:
            for start, end in self._ranges:
                if start - address >= size:
                    break
                address = end
        self._ranges.append((address, address + size))
        self._ranges.sort()
        return address

    def unreserve(self, address: int) -> None:
        """Release the range that begins at `address`."""
        self._ranges = [(start, end) for start, end in self._ranges if start != address]
        self._chunks = [chunk for chunk in self._chunks if self._inside(chunk)]

    def _inside(self, chunk: tuple[int, int]) -> list[tuple[int, int]]:
        """Return the used ranges of a chunk."""
        return [used for used in self._ranges if chunk[0] <= used[0] < chunk[1]]

    def _in_chunk(self, size: int) -> int:
        """Return the address for `size` bytes as the CUDA driver chooses it."""
        for chunk in sorted(self._chunks):
            address = chunk[0]
            for start, end in [*self._inside(chunk), (chunk[1], chunk[1])]:
                if start - address >= size:
                    return address
                address = end
        wide = round_up(size, CHUNK)
        ends = (self._top // CHUNK * CHUNK, *(start for start, _ in self._chunks))
        address = max(end - wide for end in ends if self._is_unused(end - wide, end))
        self._chunks.append((address, address + wide))
        return address

    def _is_unused(self, first: int, last: int) -> bool:
        return all(end <= first or last <= start for start, end in self._chunks)

    def take(self, size: int) -> bool:
        """Take `size` bytes of memory if they are available."""
        if size > self.free:
            return False
        self.free -= size
        return True

    def malloc(self, size: int) -> int | None:
        """Return an address as cudaMalloc, or None if out of memory."""
        size = round_up(size, PAGE)
        if not self.take(size):
            return None
        if self._policy != "driver":
            return self.reserve(size)
        address = self._in_chunk(size)
        self._ranges.append((address, address + size))
        self._ranges.sort()
        return address

    def mfree(self, address: int, size: int) -> None:
        """Free an address as cudaFree, without waiting."""
        self.unreserve(address)
        self.free += round_up(size, PAGE)

    def record(self, stream: int) -> Event:
        """Record an event on `stream`: new work that is not finished."""
        self._recorded[stream] = self._recorded.get(stream, 0) + 1
        return Event(stream, self._recorded[stream])

    def is_done(self, event: Event) -> bool:
        return event.position <= self._finished.get(event.stream, 0)

    def wait(self, event: Event) -> None:
        """Finish the event and all earlier work of its stream."""
        if not self.is_done(event):
            self._finished[event.stream] = event.position

    def finish(self, stream: int | None) -> None:
        """Finish all work recorded so far on `stream`, or on every stream."""
        for key in [stream] if stream is not None else list(self._recorded):
            self._finished[key] = self._recorded.get(key, 0)
