cdef class Device:
    cdef public long long total, context_memory, host_memory, used, room
    cdef public object policy, refused_below, _next, _holes, _highest, _arena
    cdef public dict calls, _sizes, _issued, _done
    cdef public list _dictated
    cdef public set _in_arena
    cpdef cuda_malloc(self, long long size)
    cpdef cuda_free(self, unsigned long long address)
    cpdef count_call(self, str call, long long size)
    cpdef reserve_address(self, long long size)
    cpdef release_address(self, unsigned long long address)
    cpdef _take_dictated(self)
    cpdef _place(self, long long size)
