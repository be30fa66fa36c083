from gpuring.ring.read_slot cimport ReadSlot


cdef class OneFrame:
    cdef readonly object consumer
    cdef public ReadSlot slot
