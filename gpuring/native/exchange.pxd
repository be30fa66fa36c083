cdef class Descriptor:
    cdef readonly int fd
    # Whether a thread of its own closes it, because that may take for ever: any process of the ring may have handed over what
    # lingers.
    cdef public bint aside
    cdef int give_up(self) noexcept
    cpdef close(self)
