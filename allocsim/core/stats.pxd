cdef class Stat:
    cdef public long long current, peak, allocated, freed
    cpdef increase(self, long long amount)
    cpdef decrease(self, long long amount)
    cpdef change_by(self, long long amount)


cdef class StatGroup:
    cdef public Stat allocation, allocated_bytes, active, active_bytes, requested_bytes
    cdef public Stat inactive_split, inactive_split_bytes, segment, reserved_bytes


cdef class DeviceStats:
    cdef public object release, max_split_size, folder, saved_bytes, saved_at
    cdef public StatGroup all
    cdef public dict pools
    cdef public tuple journal
    cdef public Stat oversize_allocations, oversize_segments
    cdef public object reserved_by_pool
    cdef public long long num_alloc_retries, num_ooms, num_sync_all_streams
    cdef public long long num_device_alloc, num_device_free, num_oom_rejections
    cpdef add_record(
        self, bint is_small, long long size, long long requested, long long splits,
        long long split_bytes
    )
    cpdef fold(self)
    cpdef count_reserved(self, bint is_small, long long size, tuple pool_id)
    cpdef count_segments(self, bint is_small, long long change)
