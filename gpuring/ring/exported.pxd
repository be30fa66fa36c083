cdef class Exported:
    pass
