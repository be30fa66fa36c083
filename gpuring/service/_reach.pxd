"""An engine's ends of its clients' rings (_reach.pyx), for compiled code that builds on them."""
from libc.stdint cimport int64_t, uint64_t

from gpuring.ring.producer cimport Producer


cdef class Answering(Producer):
    cdef public bint delivers
    """Whether a client gets what is written."""
    cdef public list begun
    """Slots that were claimed for answers that were not sent.  They are not open.  The next answers use them, or the next batch
    makes them void.  A client has room for one answer to each call; if there were more, it could lose one."""
    cdef int64_t alive_ns
    """When its client was last known to live: a time.monotonic_ns()."""
    cdef public bint unlisted
    """Whether it may have claimed slots that its verb has not listed as handed out: those in `begun`, and those that were."""
    cdef bint has_nothing(self) except -1


cdef class Reach:
    cdef readonly dict writers
    """By client; None: it cannot be reached."""
    cdef readonly dict _used
    """The writers that may have claimed slots."""
    cdef public double _tidied
    cpdef reach(self, uint64_t client, int64_t now=*)
    cdef _claim(self, uint64_t client, stream, shape)
    cdef int give_up(self) except -1
