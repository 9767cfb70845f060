import cython


@cython.locals(
    count=cython.longlong, peak_count=cython.longlong, mallocs=cython.longlong,
    size=cython.longlong, peak_size=cython.longlong, grown=cython.longlong,
    requested=cython.longlong, peak_requested=cython.longlong, grown_requested=cython.longlong,
    split=cython.longlong, peak_split=cython.longlong, grown_split=cython.longlong,
    inactive_bytes=cython.longlong, peak_split_bytes=cython.longlong, grown_split_bytes=cython.longlong,
    requested_bytes=cython.longlong, packed=cython.longlong, held=cython.longlong,
    splits=cython.longlong, split_bytes=cython.longlong, short=cython.longlong, at=cython.Py_ssize_t,
)
cdef tuple _fold_active(
    long long[:] sizes, long long[:] requests, long long[:] inactive, long long without
)


@cython.locals(
    count=cython.longlong, peak_count=cython.longlong, mallocs=cython.longlong,
    size=cython.longlong, peak_size=cython.longlong, grown=cython.longlong,
    held=cython.longlong, waited=cython.longlong, number=cython.Py_ssize_t,
    done=cython.Py_ssize_t, n_sizes=cython.Py_ssize_t, n_waits=cython.Py_ssize_t,
)
cdef tuple _fold_allocated(
    long long[:] sizes, long long[:] inactive, long long[:] at, long long[:] waits,
    long long without
)
