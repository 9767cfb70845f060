from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memmove

from allocsim.core.block cimport Block


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


cdef class Keys:
    cdef uint64_t* data
    cdef Py_ssize_t n, room
    cdef int grow(self) except -1


cdef inline Py_ssize_t first_not_below(Keys keys, uint64_t key, Py_ssize_t low, Py_ssize_t high) noexcept:
    cdef uint64_t* base = keys.data + low
    cdef Py_ssize_t n = high - low, half
    while n > 1:
        half = n >> 1
        base += half if base[half - 1] < key else 0
        n -= half
    return (base - keys.data) + (1 if n == 1 and base[0] < key else 0)


cdef inline int put(Keys keys, Py_ssize_t at, uint64_t key) except -1:
    if keys.n == keys.room:
        keys.grow()
    memmove(keys.data + at + 1, keys.data + at, (keys.n - at) * sizeof(uint64_t))
    keys.data[at] = key
    keys.n += 1
    return 0


cdef inline void take(Keys keys, Py_ssize_t at) noexcept:
    keys.n -= 1
    memmove(keys.data + at, keys.data + at + 1, (keys.n - at) * sizeof(uint64_t))


cdef class Names:
    cdef uint64_t* names
    cdef PyObject** blocks
    cdef Py_ssize_t n, n_slots
    cdef int grow(self) except -1
    cpdef pop(self, uint64_t name, default=*)


cdef inline Py_ssize_t home_of(Names table, uint64_t name) noexcept:
    return <Py_ssize_t> (((name * <uint64_t> 0x9E3779B97F4A7C15) >> 20) & <uint64_t> (table.n_slots - 1))


cdef inline Py_ssize_t slot_of(Names table, uint64_t name) noexcept:
    """Where `name` is, or would be."""
    cdef Py_ssize_t slot = home_of(table, name)
    while table.blocks[slot] and table.names[slot] != name:
        slot = (slot + 1) & (table.n_slots - 1)
    return slot


cdef inline int put_named(Names table, uint64_t name, Block block) except -1:
    cdef Py_ssize_t slot = slot_of(table, name)
    Py_INCREF(block)
    if table.blocks[slot]:
        Py_DECREF(<object> table.blocks[slot])
        table.blocks[slot] = <PyObject*> block
        return 0
    table.names[slot], table.blocks[slot] = name, <PyObject*> block
    table.n += 1
    if 2 * table.n > table.n_slots:
        table.grow()
    return 0


cdef inline Block take_named(Names table, uint64_t name):
    """The block of a name, taken out; None if there is none."""
    cdef Py_ssize_t slot = slot_of(table, name), mask = table.n_slots - 1, at, home
    if not table.blocks[slot]:
        return None
    cdef Block block = <Block> table.blocks[slot]
    Py_DECREF(block)
    table.n -= 1
    at = slot
    while True:
        at = (at + 1) & mask
        if not table.blocks[at]:
            break
        home = home_of(table, table.names[at])
        if ((at - home) & mask) >= ((at - slot) & mask):
            table.names[slot], table.blocks[slot] = table.names[at], table.blocks[at]
            slot = at
    table.blocks[slot] = NULL
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
