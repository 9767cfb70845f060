import cython


@cython.locals(
    count=cython.longlong, peak_count=cython.longlong, mallocs=cython.longlong,
    size=cython.longlong, peak_size=cython.longlong, grown=cython.longlong,
    requested=cython.longlong, peak_requested=cython.longlong, grown_requested=cython.longlong,
    split=cython.longlong, peak_split=cython.longlong, grown_split=cython.longlong,
    idle=cython.longlong, peak_idle=cython.longlong, grown_idle=cython.longlong,
    asked=cython.longlong, rest=cython.longlong, held=cython.longlong,
    splits=cython.longlong, split_bytes=cython.longlong, short=cython.longlong, at=cython.Py_ssize_t,
)
cdef tuple _moves(
    long long[:] sizes, long long[:] requests, long long[:] inactive, long long without
)


@cython.locals(
    count=cython.longlong, peak_count=cython.longlong, mallocs=cython.longlong,
    size=cython.longlong, peak_size=cython.longlong, grown=cython.longlong,
    held=cython.longlong, waited=cython.longlong, number=cython.Py_ssize_t,
    done=cython.Py_ssize_t, n_sizes=cython.Py_ssize_t, n_waits=cython.Py_ssize_t,
)
cdef tuple _allocated(
    long long[:] sizes, long long[:] inactive, long long[:] at, long long[:] waits,
    long long without
)


cdef class DeviceStats:
    cdef public object release, max_split_size, all, pools, folder, marked, mark_at
    cdef public tuple journal
    cdef public object oversize_allocations, oversize_segments, reserved_by_pool
    cdef public long long num_alloc_retries, num_ooms, num_sync_all_streams
    cdef public long long num_device_alloc, num_device_free, num_oom_rejections
    cpdef note(
        self, bint is_small, long long size, long long requested, long long splits,
        long long split_bytes
    )
    cpdef fold(self)
