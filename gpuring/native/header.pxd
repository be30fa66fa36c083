from libc.stdint cimport uint32_t

from gpuring.native.c cimport gr_ring


cdef class Header:
    cdef gr_ring *ring
    cdef readonly bint is_copy
    cdef object __weakref__
    cdef int to_write(self) except -1
    cpdef bint is_own(self, uint32_t peer) noexcept
    cdef bint has_creator(self) noexcept
