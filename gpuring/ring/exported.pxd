# cython: language_level=3
cdef class Exported:
    pass
