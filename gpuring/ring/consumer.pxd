from gpuring.native.peer cimport Peer, verb
from gpuring.ring.endpoint cimport Endpoint
from gpuring.ring.read_slot cimport ReadSlot

cdef object RingTimeout  # for inner.pxd, since no .pxd can import it


cdef class Consumer(Endpoint):
    cdef public list _untold       # the sequences of frames that are known to be torn, and that no call has raised yet
    cdef public bint _lossless
    cdef readonly bint _deaths     # whether it is told of each death of a producer
    cdef int _mark(self, Peer peer) except -1
    cdef int _tell_first(self) except -1
    cdef ReadSlot _one(self, verb which, str name, timeout, stream)
