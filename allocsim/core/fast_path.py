"""The steps that almost all steps of a replay are, a row of them in one loop.

Rule: nothing here is a rule of its own.  A step is what `CachingAllocator` would make of it
through pool, heap and statistics where only the plain rules can apply (`Heap.plain_pools`); at the
first one that needs more the loop ends, and has changed nothing for it.

One long function, because calls, attributes and names that are not local were half of the time
of a replay (benchmarks/results/speed.md, tricks).  `fast_path=False` switches it off, and the
tests take every script both ways.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from allocsim.core.block import Block
from allocsim.core.constants import MIN_BLOCK_SIZE, SMALL_SIZE, UNLIMITED
from allocsim.core.heap import Heap, least_room
from allocsim.core.pending import PendingFrees, ToldFree
from allocsim.core.pool import SIZE_SHIFT
from allocsim.core.stats import FOLD_AT

__all__ = ["FREE", "FREE_COMPLETED", "FREE_REQUESTED", "MALLOC", "Named", "PlainStep", "play"]

PlainStep = tuple[int, int, int, int]
"""(what to do, or what only the caller knows, name, size, stream)."""

MALLOC: Final = 0
FREE: Final = 1
FREE_REQUESTED: Final = 2
FREE_COMPLETED: Final = 3

MAX_SPARE: Final = 4096


@dataclass(slots=True)
class Named:
    """What steps speak of, by name.

    blocks: handed out by a MALLOC, given back by a FREE or a FREE_REQUESTED.  waiting: the frees
    of FREE_REQUESTED that FREE_COMPLETED tells to be complete.
    """

    blocks: dict[int, Block] = field(default_factory=dict)
    waiting: dict[int, ToldFree] = field(default_factory=dict)


def play(  # noqa: PLR0912, PLR0915  (one loop, by design)
    heap: Heap, pending: PendingFrees, steps: Iterable[PlainStep], named: Named, moved: list[int]
) -> PlainStep | None:
    """Take `steps` while they are plain; the first that is not, None if all were.

    moved: gets the change of allocated bytes of each step taken, doubled, and 1 more in the small
    pool (`Journal`).
    """
    if heap.plain_pools is None:
        return next(iter(steps), None)
    small, large = heap.plain_pools
    live, spare = heap.live, heap.spare
    blocks, waiting = named.blocks, named.waiting
    config, rounded_sizes = heap.config, heap.rounded_sizes
    oversize, most_waste = config.max_split_size, config.max_non_split_rounding
    has_oversize = oversize != UNLIMITED
    large_rest = MIN_BLOCK_SIZE if config.expandable_segments else large.least_rest
    if has_oversize and config.expandable_segments:
        most_waste = 0  # blocks of that size are split there, by a rule that is not here
    small_free, large_free = small.blocks, large.blocks
    counts_searches = heap.collects_garbage
    stats = heap.stats
    oversize_allocations = stats.oversize_allocations
    sizes, requests, inactive, _, _ = stats.journal
    n_before = len(sizes)
    left = None
    keys_stream = -1
    small_keys: list[int] = []
    large_keys: list[int] = []
    for kind, name, size, stream in steps:
        if kind == MALLOC:
            if stream != keys_stream:
                keys_stream = stream
                small_keys = small.keys.setdefault(stream, [])
                large_keys = large.keys.setdefault(stream, [])
            rounded = rounded_sizes[size]
            if rounded <= SMALL_SIZE:
                pool, keys, free = small, small_keys, small_free
                least_rest, is_small = MIN_BLOCK_SIZE, 1
            else:
                pool, keys, free = large, large_keys, large_free
                least_rest, is_small = large_rest, 0
            # Best fit (1.5).
            at = bisect_left(keys, rounded << SIZE_SHIFT)
            if at == len(keys):
                left = kind, name, size, stream
                break
            key = keys[at]
            tail = free[key]
            expandable = tail.expandable
            if expandable is not None:
                following = tail.next
                if following is not None and not following.mapped:
                    tail = least_room(pool, tail)  # the others are such a hole already (4.4)
                    key, expandable = tail.key, tail.expandable
                    at = bisect_left(keys, key)
            whole = tail.size
            rest = whole - rounded
            if has_oversize and whole >= oversize:
                # Too good for the request, or too long (1.6); else taken whole (1.7).
                if rounded < oversize or rest >= most_waste:
                    left = kind, name, size, stream
                    break
                rest = 0
                oversize_allocations.increase(1)
            if counts_searches:
                pool.search_calls += 1
            del free[key]
            if rest >= least_rest:
                # A new object for the front; the old one becomes the tail (1.7).
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
                block.expandable = expandable
                block.next = tail
                block.prev = prev
                tail.prev = block
                tail.ptr = ptr + rounded
                tail.size = rest
                # The tail is smaller than what was found, so it goes no further back.  Its age is
                # never asked: garbage collection looks at whole segments.
                key = tail.key = (rest << SIZE_SHIFT) + tail.rank + ptr + rounded
                if at and keys[at - 1] > key:
                    del keys[at]
                    keys.insert(bisect_left(keys, key, 0, at), key)
                else:
                    keys[at] = key
                free[key] = tail
                idle = 1
                if prev is not None:
                    prev.next = block
                elif tail.next is None:
                    idle = 8 * rest + 1
            else:
                del keys[at]
                block = tail
                block.key = 0
                rounded = whole
                is_split = block.prev is not None or block.next is not None
                idle = -1 if is_split else 0
            block.allocated = True
            block.requested_size = size
            live[block.ptr] = blocks[name] = block
            sizes.append(2 * rounded + is_small)
            requests.append(size)
            inactive.append(idle if expandable is None else 0)
        elif kind == FREE:
            freed = blocks.pop(name, None)
            if freed is None:
                left = kind, name, size, stream
                break
            block, given = freed, freed.size
            if block.stream_uses is not None:
                blocks[name] = block
                left = kind, name, size, stream
                break
            if has_oversize and given >= oversize:
                oversize_allocations.decrease(1)
            pool, ptr = block.pool, block.ptr
            found, free = pool.keys.get(block.stream), pool.blocks
            if found is None:
                found = pool.keys[block.stream] = []
            keys = found
            del live[ptr]
            block.allocated = False
            # Merge with both neighbours (2.2).
            merged, idle = given, 3
            other = block.prev
            if other is not None and other.key:
                key = other.key
                del keys[bisect_left(keys, key)]
                del free[key]
                other.key = 0
                merged += other.size
                idle = 1
                ptr = block.ptr = other.ptr
                before = block.prev = other.prev
                if before is not None:
                    before.next = block
                if other.is_ours:
                    spare.append(other)
            other = block.next
            if other is not None and other.key:
                key = other.key
                del keys[bisect_left(keys, key)]
                del free[key]
                other.key = 0
                merged += other.size
                idle -= 2
                after = block.next = other.next
                if after is not None:
                    after.prev = block
                if other.is_ours:
                    spare.append(other)
            block.size = merged
            key = block.key = (merged << SIZE_SHIFT) + block.rank + ptr
            keys.insert(bisect_left(keys, key), key)
            free[key] = block
            block.gc_base = pool.search_calls
            if block.expandable is not None:
                idle = 0
            elif block.prev is None and block.next is None:
                idle = 8 * (given - merged) + (idle - 3) // 2
            inactive.append(idle)
            sizes.append((1 if pool.is_small else 0) - 2 * given)
            requests.append(-block.requested_size)
        elif kind == FREE_REQUESTED:
            asked = blocks.pop(name, None)
            if asked is None:
                left = kind, name, size, stream
                break
            if asked.stream_uses is not None:
                blocks[name] = asked
                left = kind, name, size, stream
                break
            if has_oversize and asked.size >= oversize:
                oversize_allocations.decrease(1)
            del live[asked.ptr]
            asked.allocated = False
            waiting[name] = pending.add_told(asked)
            moved += sizes[n_before:]
            moved.append(-2 * asked.size)
            n_before = len(sizes)
        elif kind == FREE_COMPLETED:
            told = waiting.pop(name, None)
            if told is None:
                left = kind, name, size, stream
                break
            moved += sizes[n_before:]
            pending.complete(told)  # which may fold the journal
            moved.append(0)
            n_before = len(sizes)
        else:
            left = kind, name, size, stream
            break
    moved += sizes[n_before:]
    del spare[MAX_SPARE:]
    if len(sizes) > FOLD_AT:
        stats.fold()
    return left
