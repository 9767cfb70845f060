from allocsim.core.block cimport Block


cdef class KeyLayout:
    cdef public int size_shift, place_shift
    cdef public bint is_wide
    cdef object _origin, _order


cdef class FreeBlocks:
    cdef public object keys, blocks
    cpdef Block take(self, Py_ssize_t at)


cdef class BlockPool:
    cdef public bint is_small
    cdef public object owner, id, unmapped
    cdef public KeyLayout layout
    cdef public dict free
    cdef public long long search_calls, least_rest
    cpdef FreeBlocks of(self, stream)
    cpdef insert(self, Block block)
    cpdef remove(self, Block block)
    cpdef Py_ssize_t index_of(self, FreeBlocks free, Block block) except -1
