"""An expandable segment: reserved address space where memory is mapped in handles.

A handle is a piece of physical memory from cuMemCreate.  Invariant: all handles of a segment have
the same size and begin at multiples of it from `base`.  Mapped and unmapped ranges begin and end at
handles; the blocks of a mapped range need not.  Source: semantics 4.1, 4.3, 4.6, 12.9.
"""

from __future__ import annotations

from allocsim.core.constants import PAGE
from allocsim.core.device import Device
from allocsim.errors import DriverRefusalError
from allocsim.units import MIB, round_up


class ExpandableSegment:
    """Address space of `size` bytes for one pool and stream.

    reserve: bytes to reserve, rounded up to whole handles.
    base: first address, for a segment that existed before the simulation; None lets the device
        choose.
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
        """First address after the reserved range."""
        return self.base + self.size

    def dictated_move(self) -> int:
        """Move the range to the address that a recording dictates; return the distance in bytes.

        No memory may be mapped.  Without a dictated address, nothing moves.
        """
        there = self._device.move_range(self.base)
        if there is None:
            return 0
        distance, self.base = there - self.base, there
        return distance

    def end_before(self, address: int, least: int) -> None:
        """Shorten the range to end at or before `address`, but keep the first `least` bytes."""
        room = (min(self.end, address) - self.base) // self.handle_size * self.handle_size
        self.size = max(room, least)
        self._device.adopt_address(self.base, self.size)

    def adopt(self, size: int) -> None:
        """Add `size` bytes of handles that were mapped before the simulation."""
        self._device.used += size

    def map(self, size: int) -> int | None:
        """Map `size` bytes, rounded up to whole handles; return the mapped bytes.

        If the device has no memory for a handle, release the handles before it and return None.
        Raises DriverRefusalError if the handle size is not a multiple of the driver's granularity.
        """
        if self.handle_size % PAGE:
            raise DriverRefusalError(
                f"a handle of {self.handle_size // MIB} MiB: expected a multiple of "
                f"{PAGE // MIB} MiB, the granularity of the driver"
            )
        mapped = round_up(size, self.handle_size)
        # Handles are created in turn, because the driver may have memory for some of them only.
        for created in range(0, mapped, self.handle_size):
            if not self._device.create_handle(self.handle_size):
                for _ in range(0, created, self.handle_size):
                    self._device.release_handle(self.handle_size)
                return None
        self._device.count_call("map", mapped)
        return mapped

    def whole_handles(self, ptr: int, size: int) -> tuple[int, int]:
        """Return start and bytes of the whole handles in [ptr, ptr + size); 0 bytes if none."""
        start = round_up(ptr - self.base, self.handle_size)
        end = (ptr - self.base + size) // self.handle_size * self.handle_size
        return self.base + start, max(end - start, 0)

    def unmap(self, size: int) -> None:
        """Release `size` bytes of handles, after waiting for the segment's stream."""
        # Unlike cudaFree in this model, cuMemUnmap follows a wait, which lets events pass.
        self._device.synchronize(self.stream)
        for _ in range(0, size, self.handle_size):
            self._device.release_handle(self.handle_size)

    def destroy(self) -> None:
        self._device.release_address(self.base)
