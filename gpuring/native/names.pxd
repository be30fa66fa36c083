from gpuring.native.c cimport gpuring_error, gpuring_status

cdef int refuse(const gpuring_error *error) except -1
cdef object kind_of(gpuring_status status)
