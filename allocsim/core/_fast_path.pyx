# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: annotation_typing=False
"""The loop of fast_path.py over C arrays, in place of lists and dictionaries.

fast_path.py explains the rules.  This file has the same steps in the same order; only operations on
keys, blocks, names and columns differ (_columns.pxd).  Change both files together: the test
tests/test_compiled_form.py compares them line by line, without a compiler.
"""

from libc.stdint cimport int64_t, uint64_t

from allocsim.core._columns cimport (
    Blocks, Column, Keys, Names, StepRows, advance, block_at, fetch_ahead, first_not_below,
    has_name, move_higher, move_lower, put_free, put_named, replace_block, take_free, take_named
)
from allocsim.core.block cimport Block
from allocsim.core.pool cimport BlockPool, FreeBlocks

from allocsim.core import constants, fast_path, journal
from allocsim.core.fast_path import MAX_SPARE, fast_pools
from allocsim.core.snapshot import TraceEntry
from allocsim.core.journal import FOLD_AT
from allocsim.core.pool import FreeBlocks as new_free_blocks, least_expandable
from allocsim.core.pool import KeyLayout

__all__ = ["play"]

# Constants of fast_path.py, constants.py and journal.py as numbers of C; checked below.
cdef enum:
    BRIEF = 0
    MALLOC = 1
    FREE = 2
    FREE_REQUESTED = 3
    FREE_COMPLETED = 4
    MIN_BLOCK_SIZE = 512
    SMALL_SIZE = 1048576
    BYTES = 16
    OWN = 2
    OWN_MINUS = -2
    OWN_PLUS = 6
    OWN_STEP = 4
    SPLIT = 2

_OF_C = {
    fast_path: {
        "BRIEF": BRIEF, "MALLOC": MALLOC, "FREE": FREE, "FREE_REQUESTED": FREE_REQUESTED,
        "FREE_COMPLETED": FREE_COMPLETED,
    },
    constants: {"MIN_BLOCK_SIZE": MIN_BLOCK_SIZE, "SMALL_SIZE": SMALL_SIZE},
    journal: {
        "BYTES": BYTES, "OWN": OWN, "OWN_MINUS": OWN_MINUS, "OWN_PLUS": OWN_PLUS,
        "OWN_STEP": OWN_STEP, "SPLIT": SPLIT,
    },
}
for _module, _numbers in _OF_C.items():
    for _name, _number in _numbers.items():
        if getattr(_module, _name) != _number:
            raise ImportError(f"_fast_path.pyx has {_name} = {_number}; {_module.__name__} differs")

cdef extern from *:
    """
    /* A max_split_size that no block reaches. */
    #define UNLIMITED (1LL << 62)
    /* 256 GiB: the key of a larger request would not fit 64 bits. */
    #define LARGEST_REQUEST (1LL << 38)
    """
    const int64_t UNLIMITED, LARGEST_REQUEST

_NO_FREE_BLOCKS = new_free_blocks(KeyLayout())


def play(heap, private, pending, steps, dict waiting, moved_list, places_list=None):
    """Replay steps until a step needs more than free blocks; return that step, or None at the end.

    The parameters are those of `play` in fast_path.py.  The last two may be lists or columns.
    """
    cdef StepRows rows = steps if isinstance(steps, StepRows) else StepRows(steps)
    cdef Column moved = moved_list if isinstance(moved_list, Column) else Column()
    cdef Column places = Column() if isinstance(places_list, list) else places_list
    cdef Column sizes, requests, inactive
    cdef BlockPool pool, small, large
    cdef FreeBlocks free, small_free, large_free
    cdef Keys keys
    cdef Names named
    cdef Blocks blocks
    cdef list spare
    cdef Block tail, block, other, following, prev, before, after, suspended, freed, held
    cdef int64_t rounded, size, found_size, rest, block_size, merged, n_before, at
    cdef int64_t split_change, split_undone, splits
    cdef int64_t oversize, max_rounding, large_rest, least_rest
    cdef uint64_t name, stream, keys_stream, key, ptr
    cdef int kind, is_small, size_shift, place_shift
    cdef bint has_oversize, counts_searches, is_plain, is_split, numbers_objects, cuts_oversize
    pools = fast_pools(heap, private, pending)
    if pools is None:
        return next(iter(steps), None)
    small, large = pools
    named, spare = heap.named, heap.spare
    numbers_objects = heap.numbers_objects
    size_shift = heap.layout.size_shift
    # A shift by 63 gives 0: the place of a numbered block does not depend on sizes.
    place_shift = 63 if numbers_objects else heap.layout.place_shift
    config, rounded_sizes = heap.config, heap.rounded_sizes
    is_plain = not config.rounds_to_power2
    oversize, max_rounding = min(config.max_split_size, UNLIMITED), config.max_non_split_rounding
    has_oversize = oversize != UNLIMITED
    cuts_oversize = config.expandable_segments
    large_rest = MIN_BLOCK_SIZE if config.expandable_segments else large.least_rest
    counts_searches = heap.collects_garbage
    history = heap.trace
    stats = heap.stats
    oversize_allocations = stats.oversize_allocations
    sizes, requests, inactive = stats.journal[:3]
    n_before = sizes.n
    declined = None
    keys_stream = -1
    small_free = large_free = _NO_FREE_BLOCKS
    while advance(rows):
        fetch_ahead(rows, named)
        kind, name, size, stream = rows.kind, rows.name, rows.size, rows.stream
        if kind <= MALLOC:
            if stream != keys_stream:
                keys_stream = stream
                small_free, large_free = small.of(stream), large.of(stream)
            # Checked before rounding, so that the rounded size fits its C type.
            if size <= 0 or size > LARGEST_REQUEST:
                declined = rows.current()
                break
            rounded = (size + 511) & -512 if is_plain else rounded_sizes[size]
            if rounded <= SMALL_SIZE:
                pool, free = small, small_free
                least_rest, is_small = MIN_BLOCK_SIZE, 1
            else:
                pool, free = large, large_free
                least_rest, is_small = large_rest, 0
            # Rule 1.5: best fit
            keys, blocks = free.keys, free.blocks
            at = first_not_below(keys, <uint64_t> rounded << size_shift, 0, keys.n)
            if at == keys.n:
                declined = rows.current()
                break
            tail = block_at(blocks, at)
            expandable = tail.expandable
            if expandable is not None:
                # Rule 4.4: the least expandable size
                following = tail.next
                if following is not None and not following.mapped:
                    at = least_expandable(blocks, at)
                    tail = block_at(blocks, at)
                    expandable = tail.expandable
            found_size = tail.size
            rest = found_size - rounded
            if has_oversize and found_size >= oversize:
                # Rule 1.6: oversize blocks
                if rounded < oversize or rest >= max_rounding:
                    declined = rows.current()
                    break
                if not cuts_oversize:
                    rest = 0
                oversize_allocations.increase(1)
            if counts_searches:
                pool.search_calls += 1
            if kind == BRIEF and not numbers_objects and not has_name(named, name):
                advance(rows)
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
                    places.push(ptr)
                    places.push(ptr)
                sizes.push(block_size)
                sizes.push(-block_size)
                requests.push(size)
                requests.push(size)
                inactive.push(split_change + is_small)
                inactive.push(split_undone + is_small)
                continue
            if rest >= least_rest:
                # Rule 1.7: a new object for the front; the old one is the tail
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
                key = tail.key = tail.key - (
                    (<uint64_t> rounded << size_shift) - (rounded >> place_shift)
                )
                if at and keys.data[at - 1] > key:
                    move_lower(keys, blocks, at, key)
                else:
                    keys.data[at] = key
                split_change = OWN
                if prev is not None:
                    prev.next = block
                elif tail.next is None:
                    split_change = BYTES * rest + SPLIT
            else:
                take_free(keys, blocks, at)
                block = tail
                block.key = 0
                rounded = found_size
                is_split = block.prev is not None or block.next is not None
                split_change = OWN_MINUS if is_split else 0
            block.allocated = True
            block.requested_size = size
            put_named(named, name, block)
            if history is not None:
                # Rule 6.2: the history entry of a request
                history.append(TraceEntry("alloc", block.ptr, size, stream, pool.id))
            elif places is not None:
                places.push(block.ptr)
            sizes.push(rounded)
            requests.push(size)
            inactive.push(split_change + is_small if expandable is None else is_small)
        elif kind == FREE:
            freed = take_named(named, name)
            if freed is None:
                declined = rows.current()
                break
            block, block_size = freed, freed.size
            if block.stream_uses is not None or (
                places is not None and (block.requested_size != size or block.stream != stream)
            ):
                put_named(named, name, block)
                declined = rows.current()
                break
            if has_oversize and block_size >= oversize:
                oversize_allocations.decrease(1)
            pool, ptr = block.pool, block.ptr
            free = block.free
            keys, blocks = free.keys, free.blocks
            block.allocated = False
            if history is not None:
                # Rule 6.2: the history entries of a free
                requested = block.requested_size
                history.append(TraceEntry("free_requested", ptr, requested, block.stream, pool.id))
                history.append(TraceEntry("free_completed", ptr, requested, block.stream, pool.id))
            elif places is not None:
                places.push(ptr)
            # Rule 2.2: merge with both neighbours
            merged, split_change, at = block_size, OWN_PLUS, -1
            other = block.next
            if other is not None and other.key:
                key = other.key
                at = first_not_below(keys, key, 0, keys.n)
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
                    take_free(keys, blocks, at)
                key = other.key
                at = first_not_below(keys, key, 0, keys.n)
                other.key = 0
                key += (<uint64_t> merged << size_shift)
                merged += other.size
                split_change -= OWN_STEP
                block.ptr = other.ptr
                before = block.prev = other.prev
                if before is not None:
                    before.next = block
                if other.is_reusable:
                    spare.append(other)
            elif at >= 0:
                key += ((<uint64_t> block_size << size_shift) - (block_size >> place_shift))
            else:
                key = (<uint64_t> block_size << size_shift) + (block.rank + ptr >> place_shift)
            if numbers_objects:
                key = (<uint64_t> merged << size_shift) + block.rank
            block.size = merged
            block.key = key
            if at >= 0 and (at + 1 == keys.n or keys.data[at + 1] > key):
                keys.data[at] = key
                replace_block(blocks, at, block)
            elif at >= 0:
                replace_block(blocks, at, block)
                move_higher(keys, blocks, at, key)
            else:
                put_free(keys, blocks, key, block)
            block.gc_base = pool.search_calls
            if block.expandable is not None:
                split_change = 0
            elif block.prev is None and block.next is None:
                splits = (split_change - OWN_PLUS) // OWN_STEP
                split_change = BYTES * (block_size - merged) + SPLIT * splits
            sizes.push(-block_size)
            requests.push(block.requested_size)
            inactive.push(split_change + 1 if pool.is_small else split_change)
        elif kind == FREE_REQUESTED:
            suspended = take_named(named, name)
            if suspended is None:
                declined = rows.current()
                break
            if places is not None:
                if suspended.requested_size != size or suspended.stream != stream:
                    put_named(named, name, suspended)
                    declined = rows.current()
                    break
                places.push(suspended.ptr)
            if has_oversize and suspended.size >= oversize:
                oversize_allocations.decrease(1)
            suspended.allocated = False
            waiting[name] = pending.add_requested(suspended)
            moved.add(sizes, n_before)
            moved.push(-suspended.size)
            n_before = sizes.n
        elif kind == FREE_COMPLETED:
            waited = waiting.pop(name, None)
            if waited is None:
                declined = rows.current()
                break
            if places is not None:
                held = waited.block
                if held is None or held.requested_size != size or held.stream != stream:
                    waiting[name] = waited
                    declined = rows.current()
                    break
                places.push(held.ptr)
            moved.add(sizes, n_before)
            pending.complete(waited)  # may fold the journal, which empties `sizes`
            moved.push(0)
            n_before = sizes.n
        else:
            declined = rows.current()
            break
    moved.add(sizes, n_before)
    del spare[MAX_SPARE:]
    if sizes.n > FOLD_AT:
        stats.fold()
    if moved is not moved_list:
        moved_list += moved
    if places is not places_list:
        places_list += places
    return declined
