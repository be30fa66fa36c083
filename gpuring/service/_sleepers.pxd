"""Who waits for something of a client (_sleepers.pyx)."""


cdef class Thread:
    cdef object asleep


cdef class AsleepTask:
    cdef readonly object loop, key, ready, stream, woken
    cdef dict asleep
    cdef unsigned long thread
    cdef int begin(self, loop, dict asleep, ready, stream) except -1
    cpdef wake(self)


cpdef asyncio()
cdef running_loop()
cdef AsleepTask asleep_task(kind, loop, dict asleep, ready, stream)
cdef wake(list sleepers)
