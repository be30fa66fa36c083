# cython: language_level=3
"""Who waits for something of a client (_sleepers.pyx)."""


cdef class Thread:
    cdef object asleep


cdef class AsleepTask:
    cdef readonly object loop, key, ready, stream, woken
    cdef dict asleep
    cdef unsigned long thread
    cpdef ring(self, error=*)


cpdef asyncio()
cdef wake(list sleepers)
