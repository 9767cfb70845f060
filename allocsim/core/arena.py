"""Addresses that the CUDA driver chooses for cudaMalloc, inferred from recordings of an H200.

The driver reserves address space in chunks, whose addresses and sizes are multiples of 32 MiB.  A
hole is a free range inside one chunk; adjacent holes of two chunks are not merged.  In this module,
a gap is an unreserved range between two chunks.

A cudaMalloc takes the lowest hole that is large enough.  If there is none, the driver reserves the
smallest chunk that is large enough: at the end of the highest gap that is large enough, or directly
below the lowest chunk.  The allocation is at the beginning of the new chunk.  A chunk without used
memory is released at once and becomes a gap.  Other code of the process, such as a library, also
allocates and releases memory; this code and its ranges are called foreign.

Source: semantics 10.1 (docs/concepts/semantics.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from sortedcontainers import SortedDict, SortedList

from allocsim.core.constants import ADDRESS_CHUNK
from allocsim.units import round_up


class AddressEventKind(Enum):
    GAP = auto()
    """[start, end) becomes free for new chunks; the driver reserves addresses in chunks."""
    HOLE = auto()
    """[start, end) becomes free for requests, in a chunk that other code keeps reserved."""
    TAKEN = auto()
    """Other code allocates `end - start` bytes where the driver places them, and keeps them."""


@dataclass(frozen=True, slots=True)
class AddressEvent:
    """Change that code other than the allocator makes to the address space.

    start, end: addresses of the range [start, end), both multiples of 2 MiB.
    """

    kind: AddressEventKind
    start: int
    end: int


class Arena:
    """Address space of one process, where addresses are chosen as cudaMalloc chooses them.

    top: address below which the driver reserves its first chunk of addresses.
    """

    __slots__ = (
        "_lowest",
        "_highest",
        "_chunks",
        "_kept",
        "_holes",
        "_starts_by_size",
        "_gaps",
    )

    def __init__(self, top: int) -> None:
        self._lowest = self._highest = top // ADDRESS_CHUNK * ADDRESS_CHUNK
        self._chunks: SortedDict[int, int] = SortedDict()  # start -> end
        self._kept: set[int] = set()  # starts of chunks that foreign code uses as well
        self._holes: SortedDict[int, int] = SortedDict()  # start -> end
        self._starts_by_size: SortedDict[int, SortedList[int]] = SortedDict()
        self._gaps: SortedDict[int, int] = SortedDict()  # start -> end, above the lowest chunk

    @property
    def lowest(self) -> int:
        return self._lowest

    def chunk_at(self, address: int) -> tuple[int, int] | None:
        at = self._chunks.bisect_right(address) - 1
        if at < 0:
            return None
        start, end = self._chunks.peekitem(at)
        return (int(start), int(end)) if address < end else None

    def last_chunk_below(self, address: int) -> tuple[int, int] | None:
        at = self._chunks.bisect_left(address) - 1
        if at < 0:
            return None
        start, end = self._chunks.peekitem(at)
        return int(start), int(end)

    def is_free(self, start: int, end: int) -> bool:
        at = self._holes.bisect_right(start) - 1
        return at >= 0 and end <= int(self._holes.peekitem(at)[1])

    def expected(self, size: int) -> tuple[int, bool]:
        """Return (address, is_inside): the address that `place` would choose for `size` bytes.

        is_inside is True if the address is in an existing chunk.
        """
        hole = self._lowest_hole(size)
        return (self._address_of_new_chunk(size), False) if hole is None else (hole, True)

    # -- requests -----------------------------------------------------------------------

    def place(self, size: int) -> int:
        address, is_hole = self.expected(size)
        if not is_hole:
            self._add_chunk(address, address + round_up(size, ADDRESS_CHUNK))
        self._occupy(address, address + size)
        return address

    def release(self, start: int, end: int) -> None:
        """Release [start, end), and each chunk that is then empty and that no other code keeps."""
        while start < end:
            chunk = self.chunk_at(start)
            if chunk is None:
                start = self._free_until(start, end)
                continue
            covered = min(end, chunk[1])
            self._release_in_chunk(start, covered, chunk)
            start = covered

    # -- changes by foreign code --------------------------------------------------------

    def apply(self, event: AddressEvent) -> None:
        if event.kind is AddressEventKind.GAP:
            self.add_gap(event.start, event.end)
        elif event.kind is AddressEventKind.HOLE:
            self.offer(event.start, event.end)
        else:
            self.place(event.end - event.start)

    def adopt(self, start: int, end: int) -> None:
        """Mark [start, end) as used; addresses outside all chunks become a new chunk.

        The new chunk ends at a multiple of 32 MiB, and its unused part is a hole.
        """
        while start < end:
            chunk = self.chunk_at(start)
            if chunk is None:
                chunk = start, self._free_until(start, round_up(end, ADDRESS_CHUNK))
                self._add_chunk(*chunk)
            covered = min(end, chunk[1])
            self._occupy(start, covered)
            start = covered

    def offer(self, start: int, end: int) -> None:
        """Add [start, end) as an empty chunk that other code of the process keeps reserved.

        If a part of the range is already reserved, the driver places the chunk elsewhere.
        """
        if self.chunk_at(start) is not None or self._free_until(start, end) < end:
            size = end - start
            start = self._address_of_new_chunk(size)
            end = start + size
        self._add_chunk(start, end)
        self._kept.add(start)

    def widen_chunk(self, start: int, end: int) -> int:
        """Extend the chunk at `start` to `end`, or to the next chunk; return its new end.

        The added part is free, but the chunk stays reserved when empty, as if other code used it.
        """
        old = int(self._chunks[start])
        end = max(self._free_until(old, end), old)
        self._kept.add(start)
        self._chunks[start] = end
        self._forget_gaps(old, end)
        self._highest = max(self._highest, end)
        self._release_in_chunk(old, end, (start, end))
        return end

    def add_gap(self, start: int, end: int) -> None:
        """Let the driver place new chunks where no chunk covers [start, end).

        A chunk is a range of addresses that the driver reserves.
        """
        start = max(start, self._lowest)
        while start < end:
            chunk = self.chunk_at(start)
            until = chunk[1] if chunk is not None else self._free_until(start, end)
            if chunk is None:
                self._forget_gaps(start, until)
                self._join_gaps(start, until)
            start = until

    def close_holes(self, size: int, below: int | None = None) -> list[tuple[int, int]]:
        """Mark every free range of at least `size` bytes inside a chunk as used by other code.

        below: mark only the part of each range below this address; None marks whole ranges.
        Returns the marked ranges.
        """
        wide = [(int(start), int(end)) for start, end in self._holes.items() if end - start >= size]
        if below is not None:
            wide = [(start, min(end, below)) for start, end in wide if start < below]
        for start, end in wide:
            self._occupy(start, end)
        return wide

    def close_gaps(self, size: int, above: int) -> None:
        """Forbid new chunks in gaps of at least `size` bytes that begin at or above `above`.

        A gap is an address range between two chunks, and a chunk is a range that the driver has
        reserved.
        """
        wide = round_up(size, ADDRESS_CHUNK)
        for start, end in list(self._gaps.items()):
            if end - start >= wide and start >= above:
                del self._gaps[start]

    # -- parts --------------------------------------------------------------------------

    def _lowest_hole(self, size: int) -> int | None:
        starts = (self._starts_by_size[width][0] for width in self._starts_by_size.irange(size))
        return min(starts, default=None)

    def _address_of_new_chunk(self, size: int) -> int:
        wide = round_up(size, ADDRESS_CHUNK)
        for start, end in reversed(self._gaps.items()):
            # The end of the highest gap, as the driver allocates downwards.
            if end - start >= wide:
                return int(end) - wide
        if wide > self._lowest:  # more than a process can address: above all others
            return round_up(self._highest, ADDRESS_CHUNK)
        return self._lowest // ADDRESS_CHUNK * ADDRESS_CHUNK - wide

    def _free_until(self, start: int, end: int) -> int:
        at = self._chunks.bisect_left(start)
        return end if at == len(self._chunks) else min(end, int(self._chunks.keys()[at]))

    # Chunks and gaps

    def _add_chunk(self, start: int, end: int) -> None:
        self._chunks[start] = end
        self._forget_gaps(start, end)
        self._lowest = min(self._lowest, start)
        self._highest = max(self._highest, end)
        self._add_hole(start, end)

    def _give_up(self, start: int, end: int) -> None:
        self._remove_hole(start)
        del self._chunks[start]
        self._join_gaps(start, end)
        if start == self._lowest:
            # There are no gaps below the lowest chunk: the space there is free without a limit.
            self._lowest = int(self._gaps.pop(start))

    def _join_gaps(self, start: int, end: int) -> None:
        if end in self._gaps:
            end = self._gaps.pop(end)
        at = self._gaps.bisect_left(start) - 1
        if at >= 0 and self._gaps.peekitem(at)[1] == start:
            start = self._gaps.peekitem(at)[0]
        self._gaps[start] = end

    def _forget_gaps(self, start: int, end: int) -> None:
        for first, last in list(self._gaps.items()):
            if last <= start or end <= first:
                continue
            del self._gaps[first]
            if first < start:
                self._gaps[first] = start
            if end < last:
                self._gaps[end] = last

    # Holes

    def _release_in_chunk(self, start: int, end: int, chunk: tuple[int, int]) -> None:
        at = self._holes.bisect_right(start) - 1
        before, before_end = self._holes.peekitem(at) if at >= 0 else (-1, -1)
        if before >= chunk[0] and before_end >= start:
            start, end = int(before), max(end, self._remove_hole(before))
        for first in list(self._holes.irange(start, min(end, chunk[1] - 1))):
            end = max(end, self._remove_hole(first))
        self._add_hole(start, end)
        if (start, end) == chunk and start not in self._kept:
            self._give_up(start, end)

    def _occupy(self, start: int, end: int) -> None:
        first = max(self._holes.bisect_right(start) - 1, 0)
        starts = list(self._holes.islice(first, self._holes.bisect_left(end)))
        for hole in starts:
            if self._holes[hole] <= start:
                continue
            hole_end = self._remove_hole(hole)
            self._add_hole(hole, min(start, hole_end))
            self._add_hole(end, hole_end)

    def _add_hole(self, start: int, end: int) -> None:
        if start >= end:
            return
        self._holes[start] = end
        size = end - start
        if size not in self._starts_by_size:
            self._starts_by_size[size] = SortedList()
        self._starts_by_size[size].add(start)

    def _remove_hole(self, start: int) -> int:
        end = int(self._holes.pop(start))
        starts = self._starts_by_size[end - start]
        starts.remove(start)
        if not starts:
            del self._starts_by_size[end - start]
        return end
