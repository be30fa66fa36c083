from libc.stdint cimport int64_t


cdef class Patience:
    cdef readonly double likely
    cdef readonly double fixed_ns
    cdef double n, sizes, costs, squares, products
    cdef readonly int64_t until
    cdef int64_t handed_out
    cdef Py_ssize_t size, reach, most, seen
    cpdef begin(self, int64_t now)
    cdef _learn_cost(self, double size, double cost)
    cpdef open(self, int64_t now, Py_ssize_t most)
    cpdef came(self, int64_t published)
    cpdef bint expects(self, Py_ssize_t size)
    cpdef close(self, int64_t now, Py_ssize_t size)
    cpdef answered(self, int64_t now)
