from libc.stdint cimport int64_t

cpdef double seconds(value, str what) except? -1
cdef int64_t deadline_of(object timeout) except -1
