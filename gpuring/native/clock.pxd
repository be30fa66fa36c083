from libc.stdint cimport INT64_MAX, int64_t

cpdef double seconds(value, str what) except? -1
cdef int64_t deadline_after(object timeout) except -1


cdef inline int64_t deadline_of(object timeout) except -1:
    """The deadline on the clock of gr_now_ns.  None is for ever, and 0 means at once.

    It is compiled into who asks, because each claim and acquire does."""
    return INT64_MAX if timeout is None else deadline_after(timeout)
