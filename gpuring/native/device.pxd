from libc.stdint cimport intptr_t

from gpuring.native.c cimport gd_device, gd_driver, gd_trouble
from gpuring.native.header cimport Header


cdef class Driver:
    cdef gd_driver *driver
    cdef gd_driver own
    cdef object functions


ctypedef intptr_t (*fast_stream)() noexcept

cdef class Device:
    cdef gd_device gd
    cdef readonly Header header
    cdef Driver driver
    cdef bint is_open
    cdef public object get_current_stream
    cdef fast_stream fast_current_stream
    cdef object __weakref__
    cdef object refused(self, const gd_trouble *trouble)
    cdef size_t current(self) except? 1
