from gpuring.ring.slot cimport Slot


cdef class ReadSlot(Slot):
    cdef int _begin(self) except -1
    cdef int _finish(self) except -1
    cpdef bint _goes_back(self, kind) except -1
