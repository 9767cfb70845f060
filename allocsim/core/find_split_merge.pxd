from allocsim.core.device cimport Device
from allocsim.core.block cimport Block
from allocsim.core.pool cimport BlockPool
from allocsim.core.pool cimport KeyLayout
from allocsim.core.stats cimport DeviceStats


cdef class Heap:
    cdef public object release, config, limit, trace, work, witnessed
    cdef public Device device
    cdef public bint made_expandable, numbers_objects
    cdef public object rounded_sizes, named
    cdef public dict live, pending
    cdef public list spare, pools
    cdef public DeviceStats stats
    cdef public BlockPool small, large
    cdef public KeyLayout layout
    cdef public long long reserved, least_segment
    cdef public object _counter, _next_place
    cpdef Block get_free_block(self, BlockPool pool, unsigned long long stream, size, bint expandable)
    cpdef Block alloc_found_block(
        self, Block block, long long size, long long requested, bint expandable, bint may_split=*
    )
    cpdef free_now(self, Block block)
    cpdef tuple free_block(self, Block block)
    cpdef Block alloc_segment(self, BlockPool pool, unsigned long long stream, long long size)
    cpdef release_block(self, Block block)
    cpdef count_reserved(self, BlockPool pool, long long size, int segments=*)
    cpdef record(self, action, unsigned long long address, long long size, unsigned long long stream, BlockPool pool)
    cpdef new_segment_rank(self, unsigned long long base, long long size)
