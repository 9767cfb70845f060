from allocsim.core.pool cimport BlockPool, FreeBlocks


cdef class Block:
    cdef public unsigned long long stream, ptr, key, rank
    cdef public long long size, requested_size
    cdef public BlockPool pool
    cdef public FreeBlocks free
    cdef public object expandable, stream_uses, capture_uses
    cdef public bint allocated, mapped, is_reusable
    cdef public Block prev, next
    cdef public long long event_count, gc_base
