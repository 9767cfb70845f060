"""Expandable segments: reserved address space where memory is mapped in handles.

A handle is a piece of physical memory from cuMemCreate.  All handles of a segment have the same
size and begin at multiples of it from `base`.  Mapped and unmapped ranges begin and end at the
boundary of a handle.  Blocks inside a mapped range can begin anywhere.

- A request takes the first sequence of adjacent free and unmapped blocks that is large enough, and
  maps the unmapped blocks in turn.  Blocks mapped before a failure stay mapped.
- A newly mapped block absorbs its free neighbours.
- Unmapping takes the whole handles inside a free block.  The parts around them stay free.

Source: semantics 4.1 to 4.3, 4.6, 12.7 to 12.9.
"""

from __future__ import annotations

from allocsim.core.block import Block
from allocsim.core.constants import PAGE, SMALL_BUFFER
from allocsim.core.device import Device
from allocsim.core.find_split_merge import Heap
from allocsim.core.pool import RANK_MASK, BlockPool
from allocsim.core.releases import FreeBlockOrder
from allocsim.errors import DriverRefusalError, UpstreamAssertionError
from allocsim.units import MIB, format_size, round_up


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
        return self.base + self.size

    def dictated_move(self) -> int:
        """Move the range to the address given to `Device.dictate_address`.

        Returns the distance in bytes; 0 if no address was given.  The range must have no mapped
        memory.
        """
        there = self._device.move_range(self.base)
        if there is None:
            return 0
        distance, self.base = there - self.base, there
        return distance

    def end_before(self, address: int, least: int) -> None:
        """Shorten the range to end at or before `address`, but keep at least `least` bytes."""
        room = (min(self.end, address) - self.base) // self.handle_size * self.handle_size
        self.size = max(room, least)
        self._device.adopt_address(self.base, self.size)

    def adopt(self, size: int) -> None:
        self._device.used += size

    def map(self, size: int) -> int | None:
        """Map `size` bytes, rounded up to whole handles; return the mapped bytes.

        If the device has no memory for a handle, release the handles that this call created and
        return None.
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
        """Return address and bytes of the handles that are completely in [ptr, ptr + size).

        The bytes are 0 if there are none.
        """
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


def try_allocate_expandable_block(
    heap: Heap, pool: BlockPool, stream: int, size: int
) -> Block | None:
    """Map memory until a free block has at least `size` bytes, and return this block.

    The block is no longer in its pool.  Returns None if the memory cannot be mapped.
    """
    block = find_expandable_block(heap, pool, stream, size)
    if block is None:
        return None
    if not block.mapped and not _map_block(heap, block, min(block.size, size)):
        return None
    # `_map_block` frees `following`, which then absorbs `block`.
    while block.size < size:
        following = block.next
        if following is None:
            raise UpstreamAssertionError(
                f"a request of {format_size(size)} is larger than a fresh expandable segment"
            )
        if not _map_block(heap, following, min(following.size, size - block.size)):
            return None
        block = following
    # Upstream counts one segment for each such request, and subtracts one for each unmapped range
    # (5.1).
    pool.remove(block)
    if pool.owner is not None:
        pool.owner.segment_count += 1
    return block


def _move_to_dictated_address(heap: Heap, block: Block) -> int:
    assert block.expandable is not None
    distance = block.expandable.dictated_move()
    if heap.release.free_block_order is FreeBlockOrder.SEGMENT:
        # The place is the segment's age, which the move must not change.
        block.rank = (block.rank - distance) & RANK_MASK
    else:
        heap.ensure_keys_fit(heap.layout.place(block.rank, block.ptr + distance), block.size)
    return distance


def find_expandable_block(heap: Heap, pool: BlockPool, stream: int, size: int) -> Block | None:
    """Return the first block of a sequence of adjacent free and unmapped blocks for a request.

    The sequence has at least `size` bytes.  If there is none, the result is the only block of a new
    segment.  From PyTorch 2.15 on, a new segment that cannot hold `size` bytes is destroyed, and
    the result is None (semantics.md, section 4.2).
    """
    return first_of_sequence(pool, stream, size) or _new_segment(heap, pool, stream, size)


def first_of_sequence(pool: BlockPool, stream: int, size: int) -> Block | None:
    """Return the first block of adjacent free and unmapped blocks with `size` bytes in total.

    Among several such sequences of blocks, the one at the lowest address is chosen.  Returns None
    if there is none.
    """
    for unmapped in pool.unmapped_of(stream):
        prev = unmapped.prev
        # A free mapped block before the unmapped one belongs to the sequence.
        start = prev if prev is not None and not prev.is_active else unmapped
        run = 0
        block: Block | None = start
        while block is not None and not block.is_active:
            run += block.size
            if run >= size:
                return start
            block = block.next
    return None


def new_expandable(
    heap: Heap, pool: BlockPool, stream: int, base: int | None = None
) -> ExpandableSegment:
    heap.made_expandable = True
    # Both sizes come from the current settings; existing segments keep theirs.
    handle = SMALL_BUFFER if pool.is_small else heap.config.large_segment_size
    reserve = heap.config.expandable_reserve(heap.device.total)
    return ExpandableSegment(heap.device, stream, handle, reserve, base)


def _new_segment(heap: Heap, pool: BlockPool, stream: int, size: int) -> Block | None:
    segment = new_expandable(heap, pool, stream)
    # Before PyTorch 2.15, a request larger than the segment asserts when the segment is full.
    if segment.size < size and heap.release.short_segment_is_destroyed:
        segment.destroy()
        return None
    rank = heap.new_segment_rank(segment.base, segment.size)
    block = heap.new_block(segment.base, segment.size, pool, stream, rank)
    block.expandable = segment
    block.mapped = False
    pool.unmapped.add(block)
    return block


def _map_block(heap: Heap, block: Block, size: int) -> bool:
    """Map the first `size` bytes of an unmapped block, and add them to the free blocks.

    Returns False, without a change, if the device has too little memory.
    """
    assert block.expandable is not None
    pool = block.pool
    mapped = block.expandable.map(size)
    if mapped is None:
        return False
    # As long as nothing is mapped, the segment may still move to its recorded address.
    distance = 0 if block.is_split else _move_to_dictated_address(heap, block)
    pool.unmapped.remove(block)
    block.ptr += distance
    block.mapped = True
    start = block.ptr
    if mapped < block.size:
        rest = _piece(heap, block, start + mapped, block.size - mapped)
        rest.mapped = False
        block.insert_after(rest)
        block.size = mapped
        pool.unmapped.add(rest)
    heap.free_block(block)
    heap.count_reserved(pool, mapped)
    heap.stats.num_device_alloc += 1
    # The entry has the mapped range, not the merged block.
    heap.record("segment_map", start, mapped, block.stream, pool)
    return True


def _piece(heap: Heap, block: Block, ptr: int, size: int) -> Block:
    piece = heap.new_block(ptr, size, block.pool, block.stream, block.rank)
    piece.expandable = block.expandable
    return piece


def unmap_block(heap: Heap, block: Block) -> None:
    """Unmap the handles that are completely inside a free expandable block, if there are any.

    If the segment then has no mapped memory, its address space is released as well.

    Mirrors: release_expandable_segment
    """
    segment = block.expandable
    assert segment is not None
    if block.size < segment.handle_size:  # most blocks
        return
    start, size = segment.whole_handles(block.ptr, block.size)
    if size == 0:
        return
    pool = block.pool
    heap.check_segment_count(pool)
    pool.remove(block)
    segment.unmap(size)
    _cut(heap, block, start, size)
    block.mapped = False
    _merge_unmapped(block)
    heap.count_reserved(pool, -size)
    heap.stats.num_device_free += 1
    if pool.owner is not None:
        pool.owner.segment_count -= 1
    heap.record("segment_unmap", start, size, block.stream, pool)
    if not block.is_split:  # nothing else of the segment is mapped
        pool.unmapped.remove(block)
        segment.destroy()


def _cut(heap: Heap, block: Block, start: int, size: int) -> None:
    before = start - block.ptr
    after = block.size - before - size
    if before:
        piece = _piece(heap, block, block.ptr, before)
        block.insert_before(piece)
        block.pool.insert(piece)
    if after:
        piece = _piece(heap, block, start + size, after)
        block.insert_after(piece)
        block.pool.insert(piece)
    block.ptr, block.size = start, size


def _merge_unmapped(block: Block) -> None:
    prev, following = block.prev, block.next
    # Unmapped neighbours merge, as free neighbours do.
    if prev is not None and not prev.mapped:
        block.pool.unmapped.remove(prev)
        block.absorb_prev(prev)
    if following is not None and not following.mapped:
        block.pool.unmapped.remove(following)
        block.absorb_next(following)
    block.pool.unmapped.add(block)
