from allocsim.core.allocator cimport CachingAllocator


cdef class ReplayAllocator(CachingAllocator):
    pass
