from allocsim.core.block cimport Block
from allocsim.core.find_split_merge cimport Heap
from allocsim.core.pending cimport PendingFrees
from allocsim.core.pool cimport BlockPool


cdef class AllocParams:
    cdef public BlockPool pool
    cdef public unsigned long long stream
    cdef public long long size, segment_size
    cdef public bint expandable, may_split, is_rejected


cdef class Attempts:
    cdef Heap _heap
    cdef PendingFrees _pending
    cdef object _private, _device_index
    cpdef Block alloc(self, Block block, AllocParams params, long long requested)
    cpdef Block _alloc_after_miss(self, AllocParams params)
    cpdef Block _alloc_block(self, AllocParams params)
