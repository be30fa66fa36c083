from posix.types cimport pid_t

from gpuring.native.c cimport gd_driver
from gpuring.native.device cimport Driver


cdef class Gpu:
    cdef Driver table
    cdef gd_driver *driver
    cdef void *context
    cdef readonly int ordinal
    cdef set reached
    cdef int push(self) except -1
    cdef int pop(self, str call, int status) except -1


cdef class Owned:
    cdef Gpu gpu
    cdef pid_t pid
    cdef void *raw
    cdef int (*destroy)(void *) noexcept nogil


cdef class Event(Owned):
    pass
