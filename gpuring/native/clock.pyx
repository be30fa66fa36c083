"""The clock of all times in a header, and deadlines on it."""
from libc.math cimport INFINITY
from libc.stdint cimport INT64_MAX, int64_t

from gpuring.native.c cimport gr_now_ns

from gpuring import arguments


def now_ns() -> int:
    """CLOCK_MONOTONIC in nanoseconds, which is the clock of every time in a header."""
    return gr_now_ns()


cpdef double seconds(value, str what) except? -1:
    """`value` as a time that a call may take, as arguments.seconds checks it.  None is for ever: infinity."""
    cdef double checked = -1
    if value is None:
        return INFINITY
    try:
        if type(value) is float or type(value) is int:
            checked = value
    except OverflowError:
        pass
    return checked if checked >= 0 else arguments.seconds(value, what)  # a number of another type, or an error


cdef int64_t deadline_after(object timeout) except -1:
    """deadline_of, for a timeout that is not None."""
    cdef double patience_s = seconds(timeout, "timeout")
    if not patience_s:
        return 0
    return INT64_MAX if patience_s > 9e9 else gr_now_ns() + <int64_t>(patience_s * 1e9)
