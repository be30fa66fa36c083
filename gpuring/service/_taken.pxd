"""A call that an engine has taken (_taken.pyx), for compiled code that builds on it."""
from libc.stdint cimport uint64_t

from gpuring.ring.read_slot cimport ReadSlot
from gpuring.ring.slot cimport Slot
from gpuring.ring.write_slot cimport WriteSlot
from gpuring.service._envelopes cimport Request
from gpuring.service._reach cimport Answering


cdef class Taken


cdef class TakesCalls:
    cdef int _begun(self) except -1
    cdef int _end(self, Taken call, str ending) except -1
    cpdef _claim_answer(self, Taken call, stream, shape, int status=*, text=*)


cdef class Taken:
    cdef object __weakref__
    cdef readonly TakesCalls _server
    cdef readonly ReadSlot _slot
    """Of the request."""
    cdef readonly uint64_t _client, _number
    cdef readonly bint _redelivered, _answered
    cdef uint64_t sent, base, first_seq, part_seq, open_seq
    """How many parts were sent; how many had been released before; the sequences, in the client's ring, of the first and the last
    of them, and of one that is being written."""
    cdef bint alone
    """Whether no parts of an engine that had the call before are in the client's ring."""
    cdef Request *envelope(self) except NULL


cdef class SendsAnswer(WriteSlot):
    cdef public object _call
    cdef public str _ending
    """Which of Counts it adds to.  "undelivered" means that nobody can read it: it goes nowhere."""


cdef int send_answer(Slot slot, bint well) except -1
