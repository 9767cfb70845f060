"""The driver and the device: memory in pages of 2 MiB, addresses, and progress of the streams.

Invariants: `used` is the sum of all allocations in whole pages, and `used + context_memory <= total
+ host_memory`.  `host_memory` is host memory that the driver may use once the device is full.  A
request for exactly the remaining bytes succeeds.  Addresses are multiples of a page, and ranges
never overlap.  Addresses ascend from `base_address`; under the policy "driver" they descend from it
(arena.py).  Source: the simulated driver under which the golden data (tests/golden) was recorded;
for streams docs/concepts/semantics.md 2.3.
"""

from __future__ import annotations

from sortedcontainers import SortedDict

from allocsim.core.arena import AddressEvent, Arena
from allocsim.core.constants import ADDRESS_CHUNK, DRIVER_RANGES, DRIVER_TOP, PAGE
from allocsim.errors import ConfigError
from allocsim.units import round_up

_MOST = 1 << 61
"""Maximum bytes of a device and of its host memory; the compiled form has 64-bit numbers."""

ADDRESS_POLICIES = ("bump", "firstfit", "driver")


class Device:
    """Simulated GPU as the allocator sees it through the driver.

    context_memory: bytes of the CUDA context and of other processes.
    policy: "bump" never reuses an address, "firstfit" takes the lowest free range, "driver" chooses
        as the CUDA driver does (`Arena`).
    host_memory: bytes of host memory that the driver provides once the card is full, as on Windows;
        0 if it provides none.
    used: bytes of all allocations, in whole pages.
    room: upper limit of `used`.  A replay lowers it where the driver refused a recorded request.
    refused_below: bytes of the smallest device on which one of the refused calls would have
        succeeded; None if no call was refused for lack of memory.
    calls: dictionary from (name, bytes) of a driver call to the number of such calls that
        succeeded. The names are "malloc", "free", "create" (one handle), "map" (one range of
        handles) and "unmap" (one handle, including its release).
    """

    __slots__ = (
        "total",
        "context_memory",
        "host_memory",
        "policy",
        "used",
        "room",
        "refused_below",
        "calls",
        "_next",
        "_holes",
        "_sizes",
        "_dictated",
        "_highest",
        "_issued",
        "_done",
        "_arena",
        "_in_arena",
    )

    def __init__(
        self,
        total: int,
        *,
        context_memory: int = 0,
        host_memory: int = 0,
        policy: str = "bump",
        base_address: int = 0,
    ) -> None:
        if policy not in ADDRESS_POLICIES:
            raise ConfigError(
                f"address_policy {policy!r} is unknown; expected bump, firstfit or driver"
            )
        if total <= 0 or not 0 <= context_memory <= total:
            raise ConfigError(
                f"device_memory {total} with context_memory {context_memory}: expected a positive "
                "size and a context that fits in it"
            )
        if host_memory < 0:
            raise ConfigError(f"host_memory {host_memory} is negative; expected bytes, 0 or more")
        if max(total, host_memory) > _MOST:
            raise ConfigError(
                f"device_memory {total} with host_memory {host_memory}: expected at most "
                f"{_MOST} bytes each"
            )
        if base_address < 0:
            raise ConfigError(f"base_address {base_address} is negative; expected an address")
        self.total = total
        self.context_memory = context_memory
        self.host_memory = host_memory
        self.policy = policy
        self.used = 0
        self.room = total + host_memory
        self.refused_below: int | None = None
        self.calls: dict[tuple[str, int], int] = {}
        self._arena: Arena | None = None
        self._in_arena: set[int] = set()
        if policy == "driver":
            self._arena = Arena(base_address or DRIVER_TOP)
            # The arena places cudaMalloc; `_next` is for the ranges of expandable segments.
            base_address = DRIVER_RANGES
        self._next = base_address
        self._holes: SortedDict[int, int] = SortedDict()  # start -> end; coalesced, below _next
        self._sizes: dict[int, int] = {}
        self._dictated: list[int] = []
        self._highest = 0  # end of the dictated ranges; 0 if there is none
        self._issued: dict[int, int] = {}
        self._done: dict[int, int] = {}

    # -- memory -------------------------------------------------------------------------

    @property
    def free(self) -> int:
        return self.available if not self.host_memory else max(self.available - self.host_memory, 0)

    @property
    def available(self) -> int:
        return self.total + self.host_memory - self.context_memory - self.used

    @property
    def spilled(self) -> int:
        """Bytes that are in host memory because the card is full."""
        return max(self.context_memory + self.used - self.total, 0)

    @property
    def held(self) -> int:
        """Bytes in use: the context and all allocations, in whole pages."""
        return self.context_memory + self.used

    def cuda_malloc(self, size: int) -> int | None:
        pages = round_up(size, PAGE)
        if pages > min(self.available, self.room - self.used):
            self._update_refused_below(pages)
            return None
        self.used += pages
        self.count_call("malloc", pages)
        # An address from a recording takes precedence over the driver's choice.
        if self._arena is None or self._dictated:
            return self.reserve_address(size)
        address = self._arena.place(pages)
        self._in_arena.add(address)
        self._sizes[address] = pages
        return address

    def cuda_free(self, address: int) -> None:
        """Release an allocation of `cuda_malloc` without waiting for a stream."""
        size = self._sizes[address]
        self.used -= size
        self.count_call("free", size)
        self.release_address(address)

    def create_handle(self, size: int) -> bool:
        if size > min(self.available, self.room - self.used):
            self._update_refused_below(size)
            return False
        self.used += size
        self.count_call("create", size)
        return True

    def _update_refused_below(self, size: int) -> None:
        if size > self.available:
            needed = self.total + size - self.available
            self.refused_below = min(needed, self.refused_below or needed)

    def release_handle(self, size: int) -> None:
        self.used -= size
        self.count_call("unmap", size)

    def count_call(self, call: str, size: int) -> None:
        self.calls[call, size] = self.calls.get((call, size), 0) + 1

    # -- addresses ----------------------------------------------------------------------

    def dictate_address(self, address: int) -> None:
        """Place the next cudaMalloc, or the next expandable segment, at the recorded `address`.

        If a segment already begins there, the device chooses the address itself.
        """
        self._dictated = [address]

    @property
    def dictated(self) -> int | None:
        return self._dictated[-1] if self._dictated else None

    def adopt(self, address: int, size: int) -> None:
        """Mark [address, address + size) as memory that was allocated before the simulation."""
        self.used += round_up(size, PAGE)
        if self._arena is None:
            self.adopt_address(address, size)
        else:
            self._sizes[address] = round_up(size, PAGE)
            self._in_arena.add(address)
            self._arena.adopt(address, address + self._sizes[address])

    def adopt_address(self, address: int, size: int) -> None:
        """Mark a range as address space without memory, reserved before the simulation."""
        self._sizes[address] = round_up(size, PAGE)
        self._next = max(self._next, round_up(address + size, PAGE))

    def apply(self, event: AddressEvent) -> None:
        if self._arena is not None:
            self._arena.apply(event)

    def reserve_address(self, size: int) -> int:
        size = round_up(size, PAGE if self._arena is None else ADDRESS_CHUNK)
        address = self._take_dictated()
        if address is None:
            address = self._place(size)
        else:
            self._highest = max(self._highest, address + size)
        self._sizes[address] = size
        return address

    def _take_dictated(self) -> int | None:
        address = self._dictated.pop() if self._dictated else None
        # In use only if a replay already differs from the recording that dictates.
        return None if address in self._sizes else address

    def reserve_range(self, size: int) -> int:
        """Reserve `size` bytes of addresses for an expandable segment; return the first address."""
        if not self._dictated and not self._highest:
            return self.reserve_address(size)
        # A recording shows the address only once memory is mapped.  Until then the segment has a
        # placeholder above all dictated addresses, which is odd so that it is no real address.
        address = self._highest + 1
        self._sizes[address] = round_up(size, PAGE)
        self._highest = address + self._sizes[address]
        return address

    def move_range(self, address: int) -> int | None:
        """Move the reserved range at `address` to the address given to `dictate_address`.

        Returns the new address; None if no address was given.
        """
        there = self._take_dictated()
        if there is None:
            return None
        self._sizes[there] = self._sizes.pop(address)
        self._highest = max(self._highest, there + self._sizes[there])
        return there

    def _place(self, size: int) -> int:
        if self.policy == "firstfit":
            for start, end in self._holes.items():
                if end - start >= size:
                    del self._holes[start]
                    if end - start > size:
                        self._holes[start + size] = end
                    return int(start)
        # "bump", and "firstfit" without a hole that is large enough.
        address = self._next
        self._next += size
        return address

    def release_address(self, address: int) -> None:
        size = self._sizes.pop(address)
        if self._arena is not None and address in self._in_arena:
            self._in_arena.remove(address)
            self._arena.release(address, address + size)
        if self.policy != "firstfit":
            return
        end = address + size
        i = self._holes.bisect_left(address)
        if i < len(self._holes) and self._holes.keys()[i] == end:
            end = self._holes.pop(end)
        if i > 0:
            start, previous_end = self._holes.peekitem(i - 1)
            if previous_end == address:
                address = start
                del self._holes[start]
        # A range at the end is not kept as a hole.
        if end == self._next:
            self._next = address
        else:
            self._holes[address] = end

    # -- streams ------------------------------------------------------------------------

    def record_event(self, stream: int) -> int:
        number = self._issued[stream] = self._issued.get(stream, 0) + 1
        return number

    def is_done(self, stream: int, number: int) -> bool:
        return self._done.get(stream, 0) >= number

    def wait_for(self, stream: int, number: int) -> None:
        """Wait for event `number` of `stream`, as cudaEventSynchronize does."""
        # Events of a stream pass in order, so all earlier events have passed as well.
        self._done[stream] = max(self._done.get(stream, 0), number)

    def synchronize(self, stream: int | None = None) -> None:
        streams = list(self._issued) if stream is None else [stream]
        for each in streams:
            self._done[each] = self._issued.get(each, 0)
