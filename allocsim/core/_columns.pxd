from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memmove

from allocsim.core.block cimport Block

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define ALLOCSIM_PREFETCH(place) __builtin_prefetch(place)
    #else
    #define ALLOCSIM_PREFETCH(place) ((void) (place))
    #endif
    """
    void fetch "ALLOCSIM_PREFETCH" (const void* place) nogil


cdef class Column:
    cdef int64_t* data
    cdef Py_ssize_t n, room, n_shown
    cdef Py_ssize_t shape[1]
    cdef Py_ssize_t strides[1]
    cdef int grow(self, Py_ssize_t least) except -1
    cpdef append(self, int64_t value)
    cdef int add(self, Column other, Py_ssize_t first) except -1
    cpdef clear(self)

    cdef inline int push(self, int64_t value) except -1:
        if self.n == self.room:
            self.grow(self.n + 1)
        self.data[self.n] = value
        self.n += 1
        return 0


cdef class Words:
    cdef uint64_t* data  # the first word
    cdef uint64_t* begin  # start of the memory
    cdef Py_ssize_t n, n_before, room
    cdef int spread(self) except -1
    cdef Py_ssize_t checked(self, Py_ssize_t at) except -1


cdef class Keys(Words):
    pass


cdef class Blocks(Words):
    cdef object none  # makes Cython register the type with the garbage collector
    cpdef insert(self, Py_ssize_t at, Block block)
    cpdef Block pop(self, Py_ssize_t at)


cdef inline Py_ssize_t first_not_below(Keys keys, uint64_t key, Py_ssize_t low, Py_ssize_t high) noexcept:
    cdef uint64_t* base = keys.data + low
    cdef Py_ssize_t n = high - low, half
    while n > 1:
        half = n >> 1
        base += half if base[half - 1] < key else 0
        n -= half
    return (base - keys.data) + (1 if n == 1 and base[0] < key else 0)


cdef inline void shift(uint64_t* words, Py_ssize_t to, Py_ssize_t at, Py_ssize_t end) noexcept:
    """Move the words in [at, end) to `to`."""
    memmove(words + to, words + at, (end - at) * sizeof(uint64_t))


cdef inline int put(Words words, Py_ssize_t at, uint64_t word) except -1:
    """Insert a word by moving the shorter side."""
    cdef bint is_front = at < words.n >> 1
    if (words.n_before == 0) if is_front else (words.n_before + words.n == words.room):
        words.spread()
    if is_front:
        words.data -= 1
        words.n_before -= 1
        shift(words.data, 0, 1, at + 1)
    else:
        shift(words.data, at + 1, at, words.n)
    words.data[at] = word
    words.n += 1
    return 0


cdef inline void take(Words words, Py_ssize_t at) noexcept:
    """Remove a word by moving the shorter side."""
    words.n -= 1
    if at < words.n >> 1:
        shift(words.data, 1, 0, at)
        words.data += 1
        words.n_before += 1
    else:
        shift(words.data, at, at + 1, words.n + 1)


cdef inline void move(Words words, Py_ssize_t at, Py_ssize_t to, uint64_t word) noexcept:
    """Remove the word at `at` and insert `word` at `to`; only the words between move."""
    if to < at:
        shift(words.data, to + 1, to, at)
    else:
        shift(words.data, at, at + 1, to + 1)
    words.data[to] = word


cdef inline Block block_at(Blocks blocks, Py_ssize_t at):
    return <Block> <PyObject*> blocks.data[at]


cdef inline void replace_block(Blocks blocks, Py_ssize_t at, Block block) noexcept:
    cdef PyObject* old = <PyObject*> blocks.data[at]
    Py_INCREF(block)
    blocks.data[at] = <uint64_t> <PyObject*> block
    Py_DECREF(<object> old)


cdef inline int put_block(Blocks blocks, Py_ssize_t at, Block block) except -1:
    put(blocks, at, <uint64_t> <PyObject*> block)
    Py_INCREF(block)
    return 0


cdef inline Block take_block(Blocks blocks, Py_ssize_t at):
    """Remove and return the block at `at`."""
    cdef Block block = block_at(blocks, at)
    take(blocks, at)
    Py_DECREF(block)
    return block


cdef inline Block take_free(Keys keys, Blocks blocks, Py_ssize_t at):
    """Remove and return the free block at `at`, with its key."""
    take(keys, at)
    return take_block(blocks, at)


cdef inline int put_free(Keys keys, Blocks blocks, uint64_t key, Block block) except -1:
    """Insert a free block in key order."""
    cdef Py_ssize_t at = first_not_below(keys, key, 0, keys.n)
    put(keys, at, key)
    put_block(blocks, at, block)
    return 0


cdef inline void move_lower(Keys keys, Blocks blocks, Py_ssize_t at, uint64_t key) noexcept:
    """Give the block at `at` a lower key and move it."""
    cdef Py_ssize_t to = first_not_below(keys, key, 0, at)
    move(keys, at, to, key)
    move(blocks, at, to, blocks.data[at])


cdef inline void move_higher(Keys keys, Blocks blocks, Py_ssize_t at, uint64_t key) noexcept:
    """Give the block at `at` a higher key and move it."""
    cdef Py_ssize_t to = first_not_below(keys, key, at + 1, keys.n) - 1
    move(keys, at, to, key)
    move(blocks, at, to, blocks.data[at])


cdef struct Named:
    uint64_t name
    PyObject* block


cdef class Names:
    cdef Named* slots
    cdef Py_ssize_t n, n_slots
    cdef int grow(self) except -1
    cpdef pop(self, uint64_t name, default=*)


cdef inline Py_ssize_t home_of(Names table, uint64_t name) noexcept:
    return <Py_ssize_t> (((name * <uint64_t> 0x9E3779B97F4A7C15) >> 20) & <uint64_t> (table.n_slots - 1))


cdef inline Py_ssize_t slot_of(Names table, uint64_t name) noexcept:
    """Return the slot of `name`, or the empty slot for it."""
    cdef Py_ssize_t slot = home_of(table, name)
    while table.slots[slot].block and table.slots[slot].name != name:
        slot = (slot + 1) & (table.n_slots - 1)
    return slot


cdef inline bint has_name(Names table, uint64_t name) noexcept:
    return table.slots[slot_of(table, name)].block != NULL


cdef inline int put_named(Names table, uint64_t name, Block block) except -1:
    cdef Named* slot = table.slots + slot_of(table, name)
    Py_INCREF(block)
    if slot.block:
        Py_DECREF(<object> slot.block)
        slot.block = <PyObject*> block
        return 0
    slot.name, slot.block = name, <PyObject*> block
    table.n += 1
    if 2 * table.n > table.n_slots:
        table.grow()
    return 0


cdef inline Block take_named(Names table, uint64_t name):
    """Remove a name and return its block, None if there is none."""
    cdef Named* slots = table.slots
    cdef Py_ssize_t slot = slot_of(table, name), mask = table.n_slots - 1, at, home
    if not slots[slot].block:
        return None
    cdef Block block = <Block> slots[slot].block
    Py_DECREF(block)
    table.n -= 1
    at = slot
    while True:
        at = (at + 1) & mask
        if not slots[at].block:
            break
        home = home_of(table, slots[at].name)
        if ((at - home) & mask) >= ((at - slot) & mask):
            slots[slot] = slots[at]
            slot = at
    slots[slot].block = NULL
    return block


cdef class StepRows:
    cdef object rows
    cdef const unsigned char[::1] kinds
    cdef const uint64_t[::1] names
    cdef const int64_t[::1] sizes
    cdef const uint64_t[::1] streams
    cdef Py_ssize_t at, n
    cdef int kind
    cdef uint64_t name, stream
    cdef int64_t size
    cdef tuple row
    cdef bint next_row(self) except -1
    cdef tuple current(self)


cdef enum:
    AHEAD = 4  # steps: memory arrives after about four steps
    MANY = 4096  # blocks: fewer stay in the cache anyway


cdef inline PyObject* named_at(Names table, uint64_t name) noexcept:
    """Return the block of a name if it is in its home slot, else NULL."""
    cdef Named* slot = table.slots + home_of(table, name)
    return slot.block if slot.name == name else NULL


cdef inline void fetch_ahead(StepRows steps, Names table) noexcept:
    """Prefetch the names, blocks and neighbours that the next steps need."""
    cdef Py_ssize_t at = steps.at
    cdef PyObject* block
    if table.n < MANY or at + 3 * AHEAD >= steps.n:
        return
    fetch(table.slots + home_of(table, steps.names[at + 3 * AHEAD]))
    block = named_at(table, steps.names[at + 2 * AHEAD])
    if block:
        fetch(block)
        fetch(<char*> block + 64)
        fetch(<char*> block + 128)
    block = named_at(table, steps.names[at + AHEAD])
    if block:
        fetch(<PyObject*> (<Block> block).prev)
        fetch(<char*> <PyObject*> (<Block> block).prev + 64)
        fetch(<PyObject*> (<Block> block).next)
        fetch(<char*> <PyObject*> (<Block> block).next + 64)


cdef inline bint advance(StepRows steps) except -1:
    if steps.rows is not None:
        return steps.next_row()
    cdef Py_ssize_t at = steps.at
    if at == steps.n:
        return False
    steps.kind, steps.name = steps.kinds[at], steps.names[at]
    steps.size, steps.stream = steps.sizes[at], steps.streams[at]
    steps.at = at + 1
    return True
