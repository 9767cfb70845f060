"""Fast loop of a replay: mallocs and frees that only search, split and merge free blocks.

Nearly all steps of a plan (the calls of a replay) are of this kind.  Each has the same effect as
the calls of `CachingAllocator`.  The loop stops before the first step that needs anything else,
such as the driver, and changes nothing for it.  Rules that find_split_merge.py also contains have
the comment "also in find_split_merge.py", and a test compares these comments in both files.

The module is long because it is one function: calls, attributes and global names took half of the
time of a replay (`python -m benchmarks.speed --tricks`, in benchmarks/results/speed.md).
`CachingAllocator(fast_path=False)` switches the loop off; the tests run every op script both ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from allocsim.core.block import Block
from allocsim.core.columns import find
from allocsim.core.constants import IS_COMPILED, MIN_BLOCK_SIZE, SMALL_SIZE, UNLIMITED
from allocsim.core.find_split_merge import Heap
from allocsim.core.journal import BYTES, FOLD_AT, OWN, OWN_MINUS, OWN_PLUS, OWN_STEP, SPLIT
from allocsim.core.pending import PendingFrees, RequestedFree
from allocsim.core.pool import BlockPool, FreeBlocks, KeyLayout, least_expandable
from allocsim.core.private_pools import PrivatePools
from allocsim.core.snapshot import TraceEntry

StepRow = tuple[int, int, int, int]
"""(kind, block name, requested bytes, stream) of one step of a plan.

MALLOC adds the block to `Heap.named`; FREE and FREE_REQUESTED remove it.  FREE_REQUESTED begins a
free, and a later FREE_COMPLETED completes it.  BRIEF is a MALLOC whose block the next step frees,
with the same size and stream.  The fast loop `play` stops at a step of any other kind.
"""

_Step = tuple[int, Any, Any, int]
"""`StepRow` with name and size of type Any, so that the compiled form makes no int objects."""

BRIEF: Final = 0
MALLOC: Final = 1
FREE: Final = 2
FREE_REQUESTED: Final = 3
FREE_COMPLETED: Final = 4

MAX_SPARE: Final = 4096
"""Largest number of unused `Block` objects kept from one call of `play` to the next."""

LONG: Final = 400
"""Number of free blocks above which inserting a slice into a list is faster than `list.insert`:
220 ns instead of 390 with 2,000 items.  With 130 items it is slower: 86 ns instead of 62."""

_NO_FREE_BLOCKS: Final = FreeBlocks(KeyLayout())


def play(  # noqa: PLR0912, PLR0915, PLR0917  (one loop, by design)
    heap: Heap,
    private: PrivatePools,
    pending: PendingFrees,
    steps: Iterable[_Step],
    waiting: dict[int, RequestedFree],
    moved: list[int],
    places: list[int] | None = None,
) -> StepRow | None:
    """Replay steps until a step needs more than free blocks; return that step, or None at the end.

    waiting: dictionary from a block's name (its recorded address) to the free that FREE_REQUESTED
        began and FREE_COMPLETED has not completed.
    moved: list to which the change of allocated bytes of each step is appended.
    places: list to which the address of each step's block is appended, for callers that make the
        history entries themselves.  With this list, the loop also stops at a free whose size or
        stream differs from the malloc of its block.
    """
    remaining = iter(steps)
    pools = fast_pools(heap, private, pending)
    if pools is None:
        return next(remaining, None)
    small, large = pools
    named, spare = heap.named, heap.spare
    # A key grows by `unit` for each byte that its block grows at the end, and by `step` for each
    # byte at the front, which also lowers the address.
    numbers_objects = heap.numbers_objects
    unit = 1 << heap.layout.size_shift
    step = unit if numbers_objects else unit - 1
    config, rounded_sizes = heap.config, heap.rounded_sizes
    is_plain = not config.rounds_to_power2
    oversize, max_rounding = config.max_split_size, config.max_non_split_rounding
    has_oversize = oversize != UNLIMITED
    cuts_oversize = config.expandable_segments
    large_rest = MIN_BLOCK_SIZE if config.expandable_segments else large.least_rest
    counts_searches = heap.collects_garbage
    history = heap.trace
    stats = heap.stats
    oversize_allocations = stats.oversize_allocations
    # `split_change` and `split_undone` below are values of the journal's third column without the
    # bit for the pool.
    sizes, requests, inactive, _, _ = stats.journal
    n_before = len(sizes)
    is_long = len(small) > LONG
    declined = None
    keys_stream = -1
    small_free = large_free = _NO_FREE_BLOCKS
    for kind, name, size, stream in remaining:
        if kind <= MALLOC:
            if stream != keys_stream:
                keys_stream = stream
                small_free, large_free = small.of(stream), large.of(stream)
            # A dictionary lookup takes longer than plain rounding (1.2).
            rounded = (size + 511) & -512 if is_plain else rounded_sizes[size]
            if rounded <= SMALL_SIZE:
                if size <= 0:  # not a request
                    declined = kind, name, size, stream
                    break
                pool, free = small, small_free
                least_rest, is_small = MIN_BLOCK_SIZE, 1
            else:
                pool, free = large, large_free
                least_rest, is_small = large_rest, 0
            # Rule 1.5 (also in find_split_merge.py): best fit.
            keys, blocks = free.keys, free.blocks
            at = find(keys, rounded * unit)
            try:
                tail = blocks[at]
            except IndexError:  # rare; testing the index first took 2 % of the time
                declined = kind, name, size, stream
                break
            expandable = tail.expandable
            if expandable is not None:
                # Rule 4.4 (also in find_split_merge.py): the least expandable size.
                following = tail.next
                if following is not None and not following.mapped:
                    at = least_expandable(blocks, at)
                    tail = blocks[at]
                    expandable = tail.expandable
            found_size = tail.size
            rest = found_size - rounded
            if has_oversize and found_size >= oversize:
                # Rule 1.6 (also in find_split_merge.py): an oversize block serves no normal
                # request, and no request that leaves too much of it.  It is split only if segments
                # may expand.
                if rounded < oversize or rest >= max_rounding:
                    declined = kind, name, size, stream
                    break
                if not cuts_oversize:
                    rest = 0
                oversize_allocations.increase(1)
            if counts_searches:
                pool.search_calls += 1
            if kind == BRIEF and not numbers_objects and name not in named:
                # A free right after its malloc undoes the split (1.7, 2.2): the block found is free
                # again, because it had no free neighbour.  Only the records remain.  One step in
                # five of a training run belongs to such a pair.
                next(remaining)
                ptr = tail.ptr
                is_split = tail.prev is not None or tail.next is not None
                if rest >= least_rest:
                    block_size = rounded
                    split_change = OWN if is_split else BYTES * rest + SPLIT
                    split_undone = OWN if is_split else -BYTES * rest - SPLIT
                else:
                    block_size = found_size
                    split_change = OWN_MINUS if is_split else 0
                    split_undone = OWN_PLUS if is_split else 0
                if expandable is not None:
                    split_change = split_undone = 0
                if has_oversize and block_size >= oversize:
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
                sizes.append(block_size)
                sizes.append(-block_size)
                requests.append(size)
                requests.append(size)
                inactive.append(split_change + is_small)
                inactive.append(split_undone + is_small)
                continue
            if rest >= least_rest:
                # Rule 1.7 (also in find_split_merge.py): a new object for the front; the old one is
                # the tail.
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
                # The tail is smaller than the block found, so it can only move to the front.  Its
                # gc_base may be stale: garbage collection ignores blocks of split segments.
                key = tail.key = tail.key - rounded * step
                if at and keys[at - 1] > key:
                    del keys[at]
                    del blocks[at]
                    at = find(keys, key, 0, at)
                    if is_long:
                        keys[at:at] = (key,)
                        blocks[at:at] = (tail,)
                    else:
                        keys.insert(at, key)
                        blocks.insert(at, tail)
                else:
                    keys[at] = key
                split_change = OWN
                if prev is not None:
                    prev.next = block
                elif tail.next is None:
                    split_change = BYTES * rest + SPLIT
            else:
                del keys[at]
                del blocks[at]
                block = tail
                block.key = 0
                rounded = found_size
                is_split = block.prev is not None or block.next is not None
                split_change = OWN_MINUS if is_split else 0
            block.allocated = True
            block.requested_size = size
            named[name] = block
            if history is not None:
                # Rule 6.2 (also in find_split_merge.py): the history entry of a request.
                history.append(TraceEntry("alloc", block.ptr, size, stream, pool.id))
            elif places is not None:
                places.append(block.ptr)
            sizes.append(rounded)
            requests.append(size)
            inactive.append(split_change + is_small if expandable is None else is_small)
        elif kind == FREE:
            freed = named.pop(name, None)
            if freed is None:
                declined = kind, name, size, stream
                break
            block, block_size = freed, freed.size
            if block.stream_uses is not None or (
                places is not None and (block.requested_size != size or block.stream != stream)
            ):
                named[name] = block
                declined = kind, name, size, stream
                break
            if has_oversize and block_size >= oversize:
                oversize_allocations.decrease(1)
            pool, ptr = block.pool, block.ptr
            free = block.free
            keys, blocks = free.keys, free.blocks
            block.allocated = False
            if history is not None:
                # Rule 6.2 (also in find_split_merge.py): the history entries of a free.
                requested = block.requested_size
                history.append(TraceEntry("free_requested", ptr, requested, block.stream, pool.id))
                history.append(TraceEntry("free_completed", ptr, requested, block.stream, pool.id))
            elif places is not None:
                places.append(ptr)
            # Rule 2.2 (also in find_split_merge.py): merge with both neighbours.  `at` is the index
            # of the neighbour whose entry the merged block will replace, -1 without one.
            merged, split_change, at = block_size, OWN_PLUS, -1
            other = block.next
            if other is not None and other.key:
                key = other.key
                at = find(keys, key)
                other.key = 0
                merged += other.size
                split_change = OWN
                after = block.next = other.next
                if after is not None:
                    after.prev = block
                if other.is_reusable:
                    spare.append(other)
            other = block.prev
            if other is not None and other.key:
                if at >= 0:
                    del keys[at]
                    del blocks[at]
                key = other.key
                at = find(keys, key)
                other.key = 0
                key += merged * unit
                merged += other.size
                split_change -= OWN_STEP
                block.ptr = other.ptr
                before = block.prev = other.prev
                if before is not None:
                    before.next = block
                if other.is_reusable:
                    spare.append(other)
            elif at >= 0:
                key += block_size * step
            else:
                key = block_size * unit + (block.rank + ptr)
            if numbers_objects:
                key = merged * unit + block.rank
            block.size = merged
            block.key = key
            if at >= 0 and (at + 1 == len(keys) or keys[at + 1] > key):
                # The merged block is larger than that neighbour, so it can only move to the back.
                keys[at] = key
                blocks[at] = block
            else:
                if at >= 0:
                    del keys[at]
                    del blocks[at]
                at = find(keys, key)
                if is_long:
                    keys[at:at] = (key,)
                    blocks[at:at] = (block,)
                else:
                    keys.insert(at, key)
                    blocks.insert(at, block)
            block.gc_base = pool.search_calls
            if block.expandable is not None:
                split_change = 0
            elif block.prev is None and block.next is None:
                # A whole segment is not split: the neighbours' bytes leave inactive split.
                splits = (split_change - OWN_PLUS) // OWN_STEP
                split_change = BYTES * (block_size - merged) + SPLIT * splits
            sizes.append(-block_size)
            requests.append(block.requested_size)
            inactive.append(split_change + 1 if pool.is_small else split_change)
        elif kind == FREE_REQUESTED:
            suspended = named.pop(name, None)
            if suspended is None:
                declined = kind, name, size, stream
                break
            if places is not None:
                if suspended.requested_size != size or suspended.stream != stream:
                    named[name] = suspended
                    declined = kind, name, size, stream
                    break
                places.append(suspended.ptr)
            if has_oversize and suspended.size >= oversize:
                oversize_allocations.decrease(1)
            suspended.allocated = False
            waiting[name] = pending.add_requested(suspended)
            moved += sizes[n_before:]
            moved.append(-suspended.size)
            n_before = len(sizes)
        elif kind == FREE_COMPLETED:
            waited = waiting.pop(name, None)
            if waited is None:
                declined = kind, name, size, stream
                break
            if places is not None:
                held = waited.block
                if held is None or held.requested_size != size or held.stream != stream:
                    waiting[name] = waited
                    declined = kind, name, size, stream
                    break
                places.append(held.ptr)
            moved += sizes[n_before:]
            pending.complete(waited)  # may fold the journal, which empties `sizes`
            moved.append(0)
            n_before = len(sizes)
        else:
            declined = kind, name, size, stream
            break
    moved += sizes[n_before:]
    del spare[MAX_SPARE:]
    if len(sizes) > FOLD_AT:
        stats.fold()
    return declined


def fast_pools(
    heap: Heap, private: PrivatePools, pending: PendingFrees
) -> tuple[BlockPool, BlockPool] | None:
    """Return the small and large pool that serve requests now; None if `play` cannot run.

    It cannot run in these cases:
    - events must be polled;
    - a caller of `CachingAllocator.witness` collects history entries with the memory state of each;
    - the open pool scope is for one stream only, or its pool does not split blocks;
    - expandable segments were switched off after some had been created;
    - the core is compiled, and the sort keys of free blocks do not fit 64 bits.
    """
    if IS_COMPILED and heap.layout.is_wide:
        return None
    is_mixed = heap.made_expandable and not heap.config.expandable_segments
    if is_mixed or heap.witnessed is not None or pending.is_waiting:
        return None
    if not private.scopes:
        return heap.small, heap.large
    owner = private.fast_pool()
    return None if owner is None else (owner.small, owner.large)
