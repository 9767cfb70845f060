"""An expandable segment: reserved address space into which memory is mapped handle by handle.

Invariant: handles have one size, fixed at creation, and lie at multiples of it from `base`;
mapped and unmapped blocks of the segment begin and end where their handles do, except where a
mapped range was split.  Source: semantics 4.1, 4.3, 4.6, 12.9.
"""

from __future__ import annotations

from allocsim.core.constants import PAGE
from allocsim.core.device import Device
from allocsim.errors import DriverRefusalError
from allocsim.units import MIB, round_up

__all__ = ["ExpandableSegment"]


class ExpandableSegment:
    """Address space of `size` bytes for one pool and stream.

    size: `AllocatorConfig.expandable_reserve`, in whole handles.  base: of one from before the
    simulation, whose addresses are taken over.
    """

    __slots__ = ("base", "size", "handle_size", "stream", "_device")

    def __init__(
        self,
        device: Device,
        stream: int,
        handle_size: int,
        reserve: int,
        base: int | None = None,
    ) -> None:
        self.handle_size = handle_size
        self.size = round_up(reserve, handle_size)
        self.stream = stream
        self._device = device
        if base is None:
            self.base = device.reserve_range(self.size)
        else:
            self.base = base
            device.adopt_address(base, self.size)

    @property
    def end(self) -> int:
        """The first address past the reserved range."""
        return self.base + self.size

    def dictated_move(self) -> int:
        """How far the range, nothing of which is mapped, moves to where a recording has it."""
        there = self._device.move_range(self.base)
        if there is None:
            return 0
        distance, self.base = there - self.base, there
        return distance

    def end_before(self, address: int, least: int) -> None:
        """Leave the addresses from `address` on to others; `least` bytes are mapped already."""
        room = (min(self.end, address) - self.base) // self.handle_size * self.handle_size
        self.size = max(room, least)
        self._device.adopt_address(self.base, self.size)

    def adopt(self, size: int) -> None:
        """Take over handles of `size` bytes that were mapped before the simulation began."""
        self._device.used += size

    def map(self, size: int) -> int | None:
        """Bytes mapped for a request of `size`, in whole handles; None: out of memory.

        All or nothing: handles created before the one that fails are returned.  Raises
        DriverRefusalError for handles that are not a multiple of the driver's granularity.
        """
        if self.handle_size % PAGE:
            raise DriverRefusalError(
                f"a handle of {self.handle_size // MIB} MiB: expected a multiple of "
                f"{PAGE // MIB} MiB, the granularity of the driver"
            )
        mapped = round_up(size, self.handle_size)
        for created in range(0, mapped, self.handle_size):
            if not self._device.create_handle(self.handle_size):
                for _ in range(0, created, self.handle_size):
                    self._device.release_handle(self.handle_size)
                return None
        self._device.count_call("map", mapped)
        return mapped

    def whole_handles(self, ptr: int, size: int) -> tuple[int, int]:
        """(start, length) of the whole handles inside a range; length 0 if there are none."""
        start = round_up(ptr - self.base, self.handle_size)
        end = (ptr - self.base + size) // self.handle_size * self.handle_size
        return self.base + start, max(end - start, 0)

    def unmap(self, size: int) -> None:
        """Return the handles of `size` bytes; waits for the segment's stream."""
        self._device.synchronize(self.stream)
        for _ in range(0, size, self.handle_size):
            self._device.release_handle(self.handle_size)

    def destroy(self) -> None:
        """Give the address space back."""
        self._device.release_address(self.base)
