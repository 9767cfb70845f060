"""The calls that almost every request and free are, each in one piece.

Rule: nothing here is a rule of its own.  A call does what `CachingAllocator` would do through
pool, heap and statistics where only the plain rules can apply (`Heap.is_plain`), or it declines
and has changed nothing.  Taking the pieces together, and using dead block objects again, makes
calls about twice as fast (benchmarks/results/speed.md); `fast_path=False` switches it off, and
the tests play every script both ways.

Two closures rather than methods: what they need are cells, which cost less than attributes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from allocsim.core.block import Block
from allocsim.core.constants import SMALL_SIZE
from allocsim.core.heap import Heap
from allocsim.core.pool import SIZE_SHIFT
from allocsim.core.stats import FOLD_AT

__all__ = ["FastFree", "FastMalloc", "fast_calls"]

FastMalloc = Callable[[int, int], Block | None]
"""(size, stream): the block handed out; None where the call is not a plain hit."""

FastFree = Callable[[Block], bool]
"""A live block of this heap; False where its free is not a plain one."""

MAX_PLAIN: Final = 1 << 40
MAX_SPARE: Final = 4096


def fast_calls(heap: Heap) -> tuple[FastMalloc, FastFree]:
    """The two calls for `heap`."""
    spare: list[Block] = []  # absorbed blocks that nobody can hold any more
    return _malloc_of(heap, spare), _free_of(heap, spare)


def _malloc_of(heap: Heap, spare: list[Block]) -> FastMalloc:
    """Best fit, split off the front, count (1.5 to 1.7)."""
    small, large, live = heap.small, heap.large, heap.live
    journal = heap.stats.journal

    def malloc(size: int, stream: int) -> Block | None:
        if not (heap.is_plain and 0 < size < MAX_PLAIN):
            return None
        rounded = (size + 511) & -512
        pool = small if rounded <= SMALL_SIZE else large
        keys = pool.keys.get(stream)
        if not keys:
            return None
        at = bisect_left(keys, rounded << SIZE_SHIFT)
        if at == len(keys):
            return None
        key = keys.pop(at)
        blocks = pool.blocks
        tail = blocks[key]
        del blocks[key]
        rest = tail.size - rounded
        if rest >= pool.least_rest:
            ptr, prev = tail.ptr, tail.prev
            if spare:
                block = spare.pop()
                block.ptr = ptr
                block.size = rounded
                block.stream = stream
                block.pool = pool
                block.rank = tail.rank
            else:
                block = Block(ptr, rounded, stream, pool, tail.rank)
            block.next = tail
            block.prev = prev
            tail.prev = block
            tail.ptr = ptr + rounded
            tail.size = rest
            # The tail is smaller than what was found, so it goes no further back.  Its age is
            # never asked: garbage collection looks at whole segments.
            key = tail.key = (rest << SIZE_SHIFT) + tail.rank + ptr + rounded
            keys.insert(bisect_left(keys, key, 0, at), key)
            blocks[key] = tail
            if prev is not None:
                prev.next = block
                idle = -8 * rounded
            else:
                idle = 8 * rest + 1 if tail.next is None else -8 * rounded
        else:
            block = tail
            block.key = 0
            rounded = block.size
            idle = 0 if block.prev is None and block.next is None else -8 * rounded - 1
        block.allocated = True
        block.requested_size = size
        live[block.ptr] = block
        journal.append((2 * rounded + pool.is_small, size, idle))
        return block

    return malloc


def _free_of(heap: Heap, spare: list[Block]) -> FastFree:
    """Merge with both neighbours, enter the pool, count (2.2)."""
    live, stats = heap.live, heap.stats
    journal = stats.journal

    def free(block: Block) -> bool:
        if block.stream_uses is not None or not heap.is_plain:
            return False
        pool, size, ptr = block.pool, block.size, block.ptr
        keys, blocks = pool.keys.get(block.stream), pool.blocks
        if keys is None:
            return False
        del live[ptr]
        block.allocated = False
        merged, idle = size, 0
        other = block.prev
        if other is not None and other.key:
            key = other.key
            del keys[bisect_left(keys, key)]
            del blocks[key]
            other.key = 0
            ptr = block.ptr = other.ptr
            merged += other.size
            idle -= 8 * other.size + 1
            before = block.prev = other.prev
            if before is not None:
                before.next = block
            if other.is_ours and len(spare) < MAX_SPARE:
                spare.append(other)
        other = block.next
        if other is not None and other.key:
            key = other.key
            del keys[bisect_left(keys, key)]
            del blocks[key]
            other.key = 0
            merged += other.size
            idle -= 8 * other.size + 1
            after = block.next = other.next
            if after is not None:
                after.prev = block
            if other.is_ours and len(spare) < MAX_SPARE:
                spare.append(other)
        block.size = merged
        key = block.key = (merged << SIZE_SHIFT) + block.rank + ptr
        keys.insert(bisect_left(keys, key), key)
        blocks[key] = block
        block.gc_base = pool.search_calls
        if block.prev is not None or block.next is not None:
            idle += 8 * merged + 1
        journal.append((pool.is_small - 2 * size, -block.requested_size, idle))
        if len(journal) > FOLD_AT:
            stats.fold()
        return True

    return free
