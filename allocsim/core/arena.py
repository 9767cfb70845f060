"""Addresses that the CUDA driver chooses for cudaMalloc, inferred from recordings of an H200.

The driver reserves address space in chunks, whose addresses and sizes are multiples of 32 MiB.  A
hole is a free range inside one chunk; adjacent holes of two chunks are not merged.  A gap is a free
range between chunks.

A cudaMalloc takes the lowest hole that is large enough.  If there is none, the driver reserves the
smallest chunk that is large enough, at the end of the highest gap with room for it, or directly
below the lowest chunk.  The allocation is at the beginning of the new chunk.  A chunk without used
memory is released at once and becomes a gap.  Other code of the process, such as a library, takes
and releases addresses too; its ranges are called foreign here.  Source: semantics 10.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from sortedcontainers import SortedDict, SortedList

from allocsim.core.constants import ADDRESS_CHUNK
from allocsim.units import round_up


class AddressEventKind(Enum):
    """Kind of change in the address space by foreign code."""

    GAP = auto()
    """[start, end) becomes free for new chunks."""
    HOLE = auto()
    """[start, end) of a chunk that foreign code also uses becomes free for requests."""
    TAKEN = auto()
    """Foreign code allocates `end - start` bytes and keeps them."""


@dataclass(frozen=True, slots=True)
class AddressEvent:
    """Change of the address space by foreign code.

    start, end: first address and end of the range, in whole pages.
    """

    kind: AddressEventKind
    start: int
    end: int


class Arena:
    """Address space of one process for cudaMalloc.

    top: address below which the first chunk is placed.
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
        """Lowest address of all chunks; `top` if there are none."""
        return self._lowest

    def chunk_at(self, address: int) -> tuple[int, int] | None:
        """Return (start, end) of the chunk that contains `address`, or None."""
        at = self._chunks.bisect_right(address) - 1
        if at < 0:
            return None
        start, end = self._chunks.peekitem(at)
        return (int(start), int(end)) if address < end else None

    def last_chunk_below(self, address: int) -> tuple[int, int] | None:
        """Return (start, end) of the highest chunk that begins below `address`, or None."""
        at = self._chunks.bisect_left(address) - 1
        if at < 0:
            return None
        start, end = self._chunks.peekitem(at)
        return int(start), int(end)

    def is_free(self, start: int, end: int) -> bool:
        """Return True if one hole covers [start, end)."""
        at = self._holes.bisect_right(start) - 1
        return at >= 0 and end <= int(self._holes.peekitem(at)[1])

    def expected(self, size: int) -> tuple[int, bool]:
        """Return the address that `place` would choose, and True if it is in a hole."""
        hole = self._hole_for(size)
        return (self._chunk_for(size), False) if hole is None else (hole, True)

    # -- requests -----------------------------------------------------------------------

    def place(self, size: int) -> int:
        """Allocate `size` bytes, in whole pages, and return the address."""
        address, is_hole = self.expected(size)
        if not is_hole:
            self._add_chunk(address, address + round_up(size, ADDRESS_CHUNK))
        self._occupy(address, address + size)
        return address

    def release(self, start: int, end: int) -> None:
        """Release [start, end), and the chunk if it is empty then."""
        while start < end:
            chunk = self.chunk_at(start)
            if chunk is None:
                start = self._free_until(start, end)
                continue
            covered = min(end, chunk[1])
            self._release(start, covered, chunk)
            start = covered

    # -- changes by foreign code --------------------------------------------------------

    def happen(self, event: AddressEvent) -> None:
        """Apply a change by foreign code."""
        if event.kind is AddressEventKind.GAP:
            self.add_gap(event.start, event.end)
        elif event.kind is AddressEventKind.HOLE:
            self.offer(event.start, event.end)
        else:
            self.place(event.end - event.start)

    def adopt(self, start: int, end: int) -> None:
        """Mark [start, end) as used.

        A part outside all chunks becomes a new chunk that ends at a multiple of 32 MiB.  The unused
        part of the new chunk is a hole.
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
        """Add [start, end) as a free chunk that foreign code keeps reserved.

        If another chunk overlaps it, the new chunk is placed where the driver would place it.
        """
        if self.chunk_at(start) is not None or self._free_until(start, end) < end:
            size = end - start
            start = self._chunk_for(size)
            end = start + size
        self._add_chunk(start, end)
        self._kept.add(start)

    def widen_chunk(self, start: int, end: int) -> int:
        """Extend the chunk at `start` to `end`, or to the next chunk; return its new end.

        Foreign code uses the chunk as well, so it is not released when empty.  The added part is a
        hole.
        """
        old = int(self._chunks[start])
        end = max(self._free_until(old, end), old)
        self._kept.add(start)
        self._chunks[start] = end
        self._forget_gaps(old, end)
        self._highest = max(self._highest, end)
        self._release(old, end, (start, end))
        return end

    def add_gap(self, start: int, end: int) -> None:
        """Mark the parts of [start, end) above the lowest chunk and outside all chunks as gaps."""
        start = max(start, self._lowest)
        while start < end:
            chunk = self.chunk_at(start)
            until = chunk[1] if chunk is not None else self._free_until(start, end)
            if chunk is None:
                self._forget_gaps(start, until)
                self._join_gaps(start, until)
            start = until

    def close_holes(self, size: int, below: int | None = None) -> list[tuple[int, int]]:
        """Let foreign code take every hole of at least `size` bytes; return the ranges taken.

        below: take only the part of each hole below this address; None takes whole holes.
        """
        wide = [(int(start), int(end)) for start, end in self._holes.items() if end - start >= size]
        if below is not None:
            wide = [(start, min(end, below)) for start, end in wide if start < below]
        for start, end in wide:
            self._occupy(start, end)
        return wide

    def close_gaps(self, size: int, above: int) -> None:
        """Remove the gaps from address `above` on that have room for a chunk of `size` bytes."""
        wide = round_up(size, ADDRESS_CHUNK)
        for start, end in list(self._gaps.items()):
            if end - start >= wide and start >= above:
                del self._gaps[start]

    # -- parts --------------------------------------------------------------------------

    def _hole_for(self, size: int) -> int | None:
        """Return the lowest address of a hole that is large enough, or None."""
        starts = (self._starts_by_size[width][0] for width in self._starts_by_size.irange(size))
        return min(starts, default=None)

    def _chunk_for(self, size: int) -> int:
        """Return the address at which the driver would place a new chunk for `size` bytes."""
        wide = round_up(size, ADDRESS_CHUNK)
        for start, end in reversed(self._gaps.items()):
            # The end of the highest gap, as the driver allocates downwards.
            if end - start >= wide:
                return int(end) - wide
        if wide > self._lowest:  # more than a process can address: above all others
            return round_up(self._highest, ADDRESS_CHUNK)
        return self._lowest // ADDRESS_CHUNK * ADDRESS_CHUNK - wide

    def _free_until(self, start: int, end: int) -> int:
        """Return the end of the free range from `start` on: the next chunk, or `end` if before."""
        at = self._chunks.bisect_left(start)
        return end if at == len(self._chunks) else min(end, int(self._chunks.keys()[at]))

    # Chunks and gaps

    def _add_chunk(self, start: int, end: int) -> None:
        self._chunks[start] = end
        self._forget_gaps(start, end)
        self._lowest = min(self._lowest, start)
        self._highest = max(self._highest, end)
        self._open(start, end)

    def _give_up(self, start: int, end: int) -> None:
        self._fill(start)
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

    def _release(self, start: int, end: int, chunk: tuple[int, int]) -> None:
        """Add a hole, join it with adjacent holes of its chunk, and release the chunk if empty."""
        at = self._holes.bisect_right(start) - 1
        before, before_end = self._holes.peekitem(at) if at >= 0 else (-1, -1)
        if before >= chunk[0] and before_end >= start:
            start, end = int(before), max(end, self._fill(before))
        for first in list(self._holes.irange(start, min(end, chunk[1] - 1))):
            end = max(end, self._fill(first))
        self._open(start, end)
        if (start, end) == chunk and start not in self._kept:
            self._give_up(start, end)

    def _occupy(self, start: int, end: int) -> None:
        first = max(self._holes.bisect_right(start) - 1, 0)
        starts = list(self._holes.islice(first, self._holes.bisect_left(end)))
        for hole in starts:
            if self._holes[hole] <= start:
                continue
            hole_end = self._fill(hole)
            self._open(hole, min(start, hole_end))
            self._open(end, hole_end)

    def _open(self, start: int, end: int) -> None:
        """Add the free address range [start, end) of a chunk, unless it is empty."""
        if start >= end:
            return
        self._holes[start] = end
        size = end - start
        if size not in self._starts_by_size:
            self._starts_by_size[size] = SortedList()
        self._starts_by_size[size].add(start)

    def _fill(self, start: int) -> int:
        """Remove the hole at `start` and return its end."""
        end = int(self._holes.pop(start))
        starts = self._starts_by_size[end - start]
        starts.remove(start)
        if not starts:
            del self._starts_by_size[end - start]
        return end
