from allocsim.core.block cimport Block
from allocsim.core.cache_miss cimport AllocParams, Attempts
from allocsim.core.device cimport Device
from allocsim.core.find_split_merge cimport Heap
from allocsim.core.pending cimport PendingFrees
from allocsim.core.pool cimport BlockPool


cdef class CachingAllocator:
    cdef public object release, device_index, private_pools, _stream_hash
    cdef public Device device
    cdef public Attempts _attempts
    cdef public Heap heap
    cdef public PendingFrees _pending
    cdef public bint _has_fast_path
