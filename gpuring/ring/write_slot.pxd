from gpuring.native.peer cimport verb
from gpuring.ring.slot cimport Slot


cdef class WriteSlot(Slot):
    cpdef _reshape(self, tuple shape)
    cdef int _finish(self, verb which, str name) except -1
