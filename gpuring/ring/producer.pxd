from gpuring.ring.endpoint cimport Endpoint
from gpuring.ring.write_slot cimport WriteSlot


cdef class Producer(Endpoint):
    cdef WriteSlot _claim(self, timeout, stream, tuple extents, bint quiet=*)
