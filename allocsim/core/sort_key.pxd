cdef class KeyLayout:
    cdef public int size_shift, place_shift
    cdef public bint is_wide
    cdef object _origin, _order
