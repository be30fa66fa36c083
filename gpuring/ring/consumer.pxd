from gpuring.native.peer cimport Peer, verb
from gpuring.ring.endpoint cimport Endpoint
from gpuring.ring.slot cimport ReadSlot


cdef class Consumer(Endpoint):
    cdef public list _untold       # the sequences of frames that are known to be torn, and that no call has raised yet
    cdef public bint _lossless
    cdef readonly tuple _options   # those of Ring._join, for a join after a restart
    cdef readonly bint _reattach
    cdef readonly bint _deaths     # whether it is told of each death of a producer
    cdef public bint _restarted    # whether the next frame is the first one after a restart
    cdef bint moved                # whether to a ring that it has attached to by itself, and so has to close
    cdef readonly object _home     # the ring whose close closes this consumer, also after it has moved
    cdef public object _at_end     # a Notifier that wakes up a loop that waits for the stream to go on, while one does
    cdef int _mark(self, Peer peer) except -1
    cdef int _tell_first(self) except -1
    cdef ReadSlot _one(self, verb which, str name, timeout, stream)
