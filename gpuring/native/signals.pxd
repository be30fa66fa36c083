cdef class Dropped:
    pass
