"""Runs plain steps of a replay, which nearly all steps are, in one loop.

Rule: nothing here is a rule of its own.  A step is what `CachingAllocator` would make of it
through pool, heap and statistics where only the plain rules can apply (`plain_pools`); at the
first one that needs more the loop ends, and has changed nothing for it.  The rules that stand here
and in heap.py are marked "twice" in both places, and a test holds the marks together.

One long function, because calls, attributes and names that are not local were half of the time
of a replay (benchmarks/results/speed.md, tricks).  `fast_path=False` switches it off, and the
tests take every script both ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from allocsim.core.block import Block
from allocsim.core.columns import find
from allocsim.core.constants import IS_COMPILED, MIN_BLOCK_SIZE, SMALL_SIZE, UNLIMITED
from allocsim.core.heap import Heap
from allocsim.core.history import TraceEntry
from allocsim.core.pending import PendingFrees, RequestedFree
from allocsim.core.pool import BlockPool, FreeBlocks, KeyLayout, least_room
from allocsim.core.private_pools import PrivatePools
from allocsim.core.stats import FOLD_AT

__all__ = [
    "BRIEF",
    "FREE",
    "FREE_COMPLETED",
    "FREE_REQUESTED",
    "MALLOC",
    "PlainStep",
    "plain_pools",
    "play",
]

PlainStep = tuple[int, int, int, int]
"""(what to do, or what only the caller knows, name, size, stream).

MALLOC gives a block a name, in `Heap.named`; FREE and FREE_REQUESTED take it back.  BRIEF is a
MALLOC of which the caller knows that the next step is its FREE, of the same size and stream.
"""

_Objects = tuple[int, Any, Any, int]
"""A step whose name and size are passed on as they are: of a number, the compiled form would make a
new object each time."""

BRIEF: Final = 0
MALLOC: Final = 1
FREE: Final = 2
FREE_REQUESTED: Final = 3
FREE_COMPLETED: Final = 4

MAX_SPARE: Final = 4096

LONG: Final = 400
"""Free blocks of which a slice moves those behind in less time than `list.insert`, which goes one
by one: 220 ns and 390 among 2,000, 86 ns and 62 among 130."""

_NOTHING: Final = FreeBlocks(KeyLayout())


def play(  # noqa: PLR0912, PLR0915, PLR0917  (one loop, by design)
    heap: Heap,
    private: PrivatePools,
    pending: PendingFrees,
    steps: Iterable[_Objects],
    waiting: dict[int, RequestedFree],
    moved: list[int],
    places: list[int] | None = None,
) -> PlainStep | None:
    """Take `steps` while they are plain; the first that is not, None if all were.

    waiting: the frees of FREE_REQUESTED, by name, that FREE_COMPLETED tells to be complete.
    moved: gets the change of allocated bytes of each step taken.
    places: gets the address of each step's block, where the caller writes the history of plain
    steps itself; it says so only of frees that name the size and stream of the request, so that a
    step and its place tell its entries, and of any other the step is left to the caller.
    """
    coming = iter(steps)
    pools = plain_pools(heap, private, pending)
    if pools is None:
        return next(coming, None)
    small, large = pools
    named, spare = heap.named, heap.spare
    # By how much a key grows with a byte more behind its block, and with one more before it, which
    # moves its place too unless that is its number.
    numbers_objects = heap.numbers_objects
    unit = 1 << heap.layout.size_shift
    step = unit if numbers_objects else unit - 1
    config, rounded_sizes = heap.config, heap.rounded_sizes
    is_plain = not config.rounds_to_power2
    oversize, most_waste = config.max_split_size, config.max_non_split_rounding
    has_oversize = oversize != UNLIMITED
    cuts_oversize = config.expandable_segments
    large_rest = MIN_BLOCK_SIZE if config.expandable_segments else large.least_rest
    counts_searches = heap.collects_garbage
    history = heap.trace
    stats = heap.stats
    oversize_allocations = stats.oversize_allocations
    # `idle` and `back` below are what `Journal` says of the third column, but for the pool.
    sizes, requests, inactive, _, _ = stats.journal
    n_before = len(sizes)
    is_long = len(small) > LONG
    left = None
    keys_stream = -1
    small_free = large_free = _NOTHING
    for kind, name, size, stream in coming:
        if kind <= MALLOC:
            if stream != keys_stream:
                keys_stream = stream
                small_free, large_free = small.of(stream), large.of(stream)
            # A look takes longer than plain rounding (1.2), most of all where sizes hardly repeat.
            rounded = (size + 511) & -512 if is_plain else rounded_sizes[size]
            if rounded <= SMALL_SIZE:
                if size <= 0:  # no request
                    left = kind, name, size, stream
                    break
                pool, free = small, small_free
                least_rest, is_small = MIN_BLOCK_SIZE, 1
            else:
                pool, free = large, large_free
                least_rest, is_small = large_rest, 0
            # Rule 1.5, twice: best fit.
            keys, found = free.keys, free.blocks
            at = find(keys, rounded * unit)
            try:
                tail = found[at]
            except IndexError:  # seldom, and looking for it first took 2 % of the time
                left = kind, name, size, stream
                break
            expandable = tail.expandable
            if expandable is not None:
                # Rule 4.4, twice: the hole with the least room; the others are such a hole already.
                following = tail.next
                if following is not None and not following.mapped:
                    at = least_room(found, at)
                    tail = found[at]
                    expandable = tail.expandable
            whole = tail.size
            rest = whole - rounded
            if has_oversize and whole >= oversize:
                # Rule 1.6, twice: too good for the request, or too long; else taken whole, unless
                # it may be expandable.
                if rounded < oversize or rest >= most_waste:
                    left = kind, name, size, stream
                    break
                if not cuts_oversize:
                    rest = 0
                oversize_allocations.increase(1)
            if counts_searches:
                pool.search_calls += 1
            if kind == BRIEF and not numbers_objects and name not in named:
                # Rules 1.7 and 2.2 undo each other: what is freed at once becomes again the block
                # that was found, for that had no free neighbour.  One step in five of a training
                # program is of such a pair.
                next(coming)
                ptr = tail.ptr
                is_split = tail.prev is not None or tail.next is not None
                if rest >= least_rest:
                    given = rounded
                    idle = 2 if is_split else 16 * rest + 2
                    back = 2 if is_split else -16 * rest - 2
                else:
                    given = whole
                    idle = -2 if is_split else 0
                    back = 6 if is_split else 0
                if expandable is not None:
                    idle = back = 0
                if has_oversize and given >= oversize:
                    oversize_allocations.decrease(1)
                tail.requested_size = size
                tail.gc_base = pool.search_calls
                if history is not None:
                    history.append(TraceEntry("alloc", ptr, size, stream, pool.id))
                    history.append(TraceEntry("free_requested", ptr, size, stream, pool.id))
                    history.append(TraceEntry("free_completed", ptr, size, stream, pool.id))
                elif places is not None:
                    places.append(ptr)
                    places.append(ptr)
                sizes.append(given)
                sizes.append(-given)
                requests.append(size)
                requests.append(size)
                inactive.append(idle + is_small)
                inactive.append(back + is_small)
                continue
            if rest >= least_rest:
                # Rule 1.7, twice: a new object for the front; the old one becomes the tail.
                ptr, prev = tail.ptr, tail.prev
                if spare:
                    block = spare.pop()
                    block.ptr = ptr
                    block.size = rounded
                    block.stream = stream
                    block.pool = pool
                    block.free = free
                    block.rank = tail.rank
                else:
                    block = Block(ptr, rounded, stream, pool, tail.rank)
                if numbers_objects:
                    block.rank = heap.next_rank()
                block.expandable = expandable
                block.next = tail
                block.prev = prev
                tail.prev = block
                ptr += rounded
                tail.ptr = ptr
                tail.size = rest
                # The tail is smaller than what was found, so it goes no further back.  Its age is
                # never asked: garbage collection looks at whole segments.
                key = tail.key = tail.key - rounded * step
                if at and keys[at - 1] > key:
                    del keys[at]
                    del found[at]
                    at = find(keys, key, 0, at)
                    if is_long:
                        keys[at:at] = (key,)
                        found[at:at] = (tail,)
                    else:
                        keys.insert(at, key)
                        found.insert(at, tail)
                else:
                    keys[at] = key
                idle = 2
                if prev is not None:
                    prev.next = block
                elif tail.next is None:
                    idle = 16 * rest + 2
            else:
                del keys[at]
                del found[at]
                block = tail
                block.key = 0
                rounded = whole
                is_split = block.prev is not None or block.next is not None
                idle = -2 if is_split else 0
            block.allocated = True
            block.requested_size = size
            named[name] = block
            if history is not None:
                # Rule 6.2, twice: what a request leaves in the history.
                history.append(TraceEntry("alloc", block.ptr, size, stream, pool.id))
            elif places is not None:
                places.append(block.ptr)
            sizes.append(rounded)
            requests.append(size)
            inactive.append(idle + is_small if expandable is None else is_small)
        elif kind == FREE:
            freed = named.pop(name, None)
            if freed is None:
                left = kind, name, size, stream
                break
            block, given = freed, freed.size
            if block.stream_uses is not None or (
                places is not None and (block.requested_size != size or block.stream != stream)
            ):
                named[name] = block
                left = kind, name, size, stream
                break
            if has_oversize and given >= oversize:
                oversize_allocations.decrease(1)
            pool, ptr = block.pool, block.ptr
            free = block.free
            keys, found = free.keys, free.blocks
            block.allocated = False
            if history is not None:
                # Rule 6.2, twice: what a free leaves that waits for nothing.
                requested = block.requested_size
                history.append(TraceEntry("free_requested", ptr, requested, block.stream, pool.id))
                history.append(TraceEntry("free_completed", ptr, requested, block.stream, pool.id))
            elif places is not None:
                places.append(ptr)
            # Rule 2.2, twice: merge with both neighbours; `at` is where the last of them was found.
            merged, idle, at = given, 6, -1
            other = block.next
            if other is not None and other.key:
                key = other.key
                at = find(keys, key)
                other.key = 0
                merged += other.size
                idle = 2
                after = block.next = other.next
                if after is not None:
                    after.prev = block
                if other.is_ours:
                    spare.append(other)
            other = block.prev
            if other is not None and other.key:
                if at >= 0:
                    del keys[at]
                    del found[at]
                key = other.key
                at = find(keys, key)
                other.key = 0
                key += merged * unit
                merged += other.size
                idle -= 4
                block.ptr = other.ptr
                before = block.prev = other.prev
                if before is not None:
                    before.next = block
                if other.is_ours:
                    spare.append(other)
            elif at >= 0:
                key += given * step
            else:
                key = given * unit + (block.rank + ptr)
            if numbers_objects:
                key = merged * unit + block.rank
            block.size = merged
            block.key = key
            if at >= 0 and (at + 1 == len(keys) or keys[at + 1] > key):
                # Larger than the neighbour whose place it takes, so that it goes no further front.
                keys[at] = key
                found[at] = block
            else:
                if at >= 0:
                    del keys[at]
                    del found[at]
                at = find(keys, key)
                if is_long:
                    keys[at:at] = (key,)
                    found[at:at] = (block,)
                else:
                    keys.insert(at, key)
                    found.insert(at, block)
            block.gc_base = pool.search_calls
            if block.expandable is not None:
                idle = 0
            elif block.prev is None and block.next is None:
                idle = 16 * (given - merged) + (idle - 6) // 2
            sizes.append(-given)
            requests.append(block.requested_size)
            inactive.append(idle + 1 if pool.is_small else idle)
        elif kind == FREE_REQUESTED:
            asked = named.pop(name, None)
            if asked is None:
                left = kind, name, size, stream
                break
            if places is not None:
                if asked.requested_size != size or asked.stream != stream:
                    named[name] = asked
                    left = kind, name, size, stream
                    break
                places.append(asked.ptr)
            if has_oversize and asked.size >= oversize:
                oversize_allocations.decrease(1)
            asked.allocated = False
            waiting[name] = pending.add_requested(asked)
            moved += sizes[n_before:]
            moved.append(-asked.size)
            n_before = len(sizes)
        elif kind == FREE_COMPLETED:
            waited = waiting.pop(name, None)
            if waited is None:
                left = kind, name, size, stream
                break
            if places is not None:
                held = waited.block
                if held is None or held.requested_size != size or held.stream != stream:
                    waiting[name] = waited
                    left = kind, name, size, stream
                    break
                places.append(held.ptr)
            moved += sizes[n_before:]
            pending.complete(waited)  # which may fold the journal
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


def plain_pools(
    heap: Heap, private: PrivatePools, pending: PendingFrees
) -> tuple[BlockPool, BlockPool] | None:
    """The small and the large pool that requests go to; None where more than plain rules may apply.

    Plain: a request below max_split_size comes down to the best fit, or the hole with the least
    room, and a split, and a free without streams to wait for to a merge.
    """
    if IS_COMPILED and heap.layout.is_wide:
        return None
    is_mixed = heap.made_expandable and not heap.config.expandable_segments
    if is_mixed or heap.witnessed is not None or pending.is_waiting:
        return None
    if not private.scopes:
        return heap.small, heap.large
    owner = private.plain_target()
    return None if owner is None else (owner.small, owner.large)
