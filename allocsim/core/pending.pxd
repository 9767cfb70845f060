from allocsim.core.find_split_merge cimport Heap


cdef class PendingFrees:
    cdef Heap _heap
    cdef object _queues, _deferred, _requested
    cdef public bint is_waiting
