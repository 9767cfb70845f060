"""The driver and the device: memory in 2 MiB pages, addresses, and how far each stream is.

Invariant: `used` is the sum of what was handed out, each reservation in whole pages, and
`used + context_memory <= total + host_memory`; what fits exactly succeeds.  Addresses come in whole
pages and never overlap: from `base_address` up, under the policy "driver" from there down
(`arena.py`).  Source: the conditions under which the golden data was recorded; semantics 2.3 for
streams.
"""

from __future__ import annotations

from sortedcontainers import SortedDict

from allocsim.core.arena import AddressEvent, Arena
from allocsim.core.constants import ADDRESS_CHUNK, DRIVER_RANGES, DRIVER_TOP, PAGE
from allocsim.errors import ConfigError
from allocsim.units import round_up

__all__ = ["ADDRESS_POLICIES", "Device"]

ADDRESS_POLICIES = ("bump", "firstfit", "driver")


class Device:
    """One simulated GPU as the allocator sees it through the driver.

    total: bytes of the card.  context_memory: what the CUDA context and other processes hold.
    policy: "bump" never reuses an address, "firstfit" takes the lowest hole, "driver" chooses as
    the CUDA driver does (`Arena`).
    host_memory: bytes of the host's memory that the driver lends once the card is full, as drivers
    of Windows do; 0 for one that refuses.
    room: bytes that may be handed out, where a recording shows that a request was refused.
    refused_below: bytes of the smallest device that would have answered one of the calls that were
    refused; None as long as none was.
    calls: number of successful driver calls by name and bytes: "malloc", "free", "create" (one
    handle), "map" (one range of handles) and "unmap" (one handle, with its release).
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
            base_address = DRIVER_RANGES
        self._next = base_address
        self._holes: SortedDict[int, int] = SortedDict()  # start -> end; coalesced, below _next
        self._sizes: dict[int, int] = {}
        self._dictated: list[int] = []
        self._highest = 0  # the end of what was dictated; 0 if nothing was
        self._issued: dict[int, int] = {}
        self._done: dict[int, int] = {}

    # -- memory -------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """What cudaMemGetInfo calls free, in bytes: the card's own."""
        return self.left if not self.host_memory else max(self.left - self.host_memory, 0)

    @property
    def left(self) -> int:
        """Bytes that the driver has, of the card and of what the host lends."""
        return self.total + self.host_memory - self.context_memory - self.used

    @property
    def spilled(self) -> int:
        """Bytes that lie in the host's memory; which they are is the driver's to choose."""
        return max(self.context_memory + self.used - self.total, 0)

    @property
    def held(self) -> int:
        """Bytes that are not free: the context's and what was handed out, in whole pages."""
        return self.context_memory + self.used

    def cuda_malloc(self, size: int) -> int | None:
        """The address of `size` fresh bytes, or None: out of memory."""
        pages = round_up(size, PAGE)
        if pages > min(self.left, self.room - self.used):
            self._note_refusal(pages)
            return None
        self.used += pages
        self.count_call("malloc", pages)
        if self._arena is None or self._dictated:
            return self.reserve_address(size)
        address = self._arena.place(pages)
        self._in_arena.add(address)
        self._sizes[address] = pages
        return address

    def cuda_free(self, address: int) -> None:
        """Give back what `cuda_malloc` returned; no stream is waited for."""
        size = self._sizes[address]
        self.used -= size
        self.count_call("free", size)
        self.release_address(address)

    def create_handle(self, size: int) -> bool:
        """Take physical memory for one handle of an expandable segment; False: none left."""
        if size > min(self.left, self.room - self.used):
            self._note_refusal(size)
            return False
        self.used += size
        self.count_call("create", size)
        return True

    def _note_refusal(self, size: int) -> None:
        """Note the device that would have had `size` bytes, where it is the device that has not."""
        if size > self.left:
            needed = self.total + size - self.left
            self.refused_below = min(needed, self.refused_below or needed)

    def release_handle(self, size: int) -> None:
        """Give one handle's memory back."""
        self.used -= size
        self.count_call("unmap", size)

    def count_call(self, call: str, size: int) -> None:
        """Count one driver call for `size` bytes.  See `calls`."""
        self.calls[call, size] = self.calls.get((call, size), 0) + 1

    # -- addresses ----------------------------------------------------------------------

    def dictate_address(self, address: int) -> None:
        """Let what is obtained next lie at `address`, as a recording says.

        Used up by the next cudaMalloc or the first mapping of an expandable segment, or replaced
        by the next dictate.  Keeping dictated ranges apart is up to the recording.
        """
        self._dictated = [address]

    @property
    def dictated(self) -> int | None:
        """Where what is obtained next will lie, if that is dictated."""
        return self._dictated[-1] if self._dictated else None

    def adopt(self, address: int, size: int) -> None:
        """Take over memory that was there before the simulation began, and its addresses."""
        self.used += round_up(size, PAGE)
        if self._arena is None:
            self.adopt_address(address, size)
        else:
            self._sizes[address] = round_up(size, PAGE)
            self._in_arena.add(address)
            self._arena.adopt(address, address + self._sizes[address])

    def adopt_address(self, address: int, size: int) -> None:
        """Take over a reservation of addresses; what comes next comes after it."""
        self._sizes[address] = round_up(size, PAGE)
        self._next = max(self._next, round_up(address + size, PAGE))

    def happen(self, event: AddressEvent) -> None:
        """Let others change the address space; without effect but under "driver"."""
        if self._arena is not None:
            self._arena.happen(event)

    def reserve_address(self, size: int) -> int:
        """The start of a free address range of `size` bytes, rounded up to whole pages."""
        size = round_up(size, PAGE if self._arena is None else ADDRESS_CHUNK)
        if self._dictated:
            address = self._dictated.pop()
            self._highest = max(self._highest, address + size)
        else:
            address = self._place(size)
        self._sizes[address] = size
        return address

    def reserve_range(self, size: int) -> int:
        """As `reserve_address`, for an expandable segment, of which a recording says where it lies
        once memory is mapped: until then its addresses are no real ones, after all before it."""
        if not self._dictated and not self._highest:
            return self.reserve_address(size)
        address = self._highest + 1
        self._sizes[address] = round_up(size, PAGE)
        self._highest = address + self._sizes[address]
        return address

    def move_range(self, address: int) -> int | None:
        """Where the range at `address` lies as dictated; None if nothing is."""
        if not self._dictated:
            return None
        there = self._dictated.pop()
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
        address = self._next
        self._next += size
        return address

    def release_address(self, address: int) -> None:
        """Give an address range back; under "bump" it is used up."""
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
        if end == self._next:
            self._next = address
        else:
            self._holes[address] = end

    # -- streams ------------------------------------------------------------------------

    def record_event(self, stream: int) -> int:
        """Put an event at the end of `stream`'s work; its number there."""
        number = self._issued[stream] = self._issued.get(stream, 0) + 1
        return number

    def is_done(self, stream: int, number: int) -> bool:
        """Whether `stream` has passed its event `number`."""
        return self._done.get(stream, 0) >= number

    def wait_for(self, stream: int, number: int) -> None:
        """Let `stream` pass its event `number`, and with it everything submitted before."""
        self._done[stream] = max(self._done.get(stream, 0), number)

    def synchronize(self, stream: int | None = None) -> None:
        """Let one stream, or all, finish what has been submitted."""
        streams = list(self._issued) if stream is None else [stream]
        for each in streams:
            self._done[each] = self._issued.get(each, 0)
