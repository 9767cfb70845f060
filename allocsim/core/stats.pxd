cdef class DeviceStats:
    cdef public object release, max_split_size, all, pools, folder, saved_bytes, saved_at
    cdef public tuple journal
    cdef public object oversize_allocations, oversize_segments, reserved_by_pool
    cdef public long long num_alloc_retries, num_ooms, num_sync_all_streams
    cdef public long long num_device_alloc, num_device_free, num_oom_rejections
    cpdef add_record(
        self, bint is_small, long long size, long long requested, long long splits,
        long long split_bytes
    )
    cpdef fold(self)
