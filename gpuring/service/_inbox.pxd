"""How answers are received (_inbox.pyx), for compiled code that builds on it."""
from libc.stdint cimport uint32_t, uint64_t

from gpuring.native.header cimport Header
from gpuring.native.peer cimport Peer
from gpuring.ring.consumer cimport Consumer
from gpuring.service._books cimport Calls, Entry, HoldsAnswer
from gpuring.service._envelopes cimport Response


cdef class Inbox:
    cdef readonly str service
    """Its name."""
    cdef readonly Calls calls
    cdef readonly Consumer _answers
    cdef readonly Peer peer
    cdef readonly bint on_device
    cdef public uint64_t late
    cdef public object _orphaned
    """A time.monotonic() since when there has been no engine, or None."""
    cdef public double _looked
    cdef readonly dict _loops
    """The tasks of each event loop.  Each loop adds its own."""
    cdef bint polled
    """Whether fileno() was given out.  The consumer does not know it: only `arm` may make the descriptor unreadable."""
    cdef dict untold
    """If fileno() was given out: weak references, by number, to the calls whose answers have come, and that nobody has asked
    since.  Whoever listens to the descriptor has to be told of them, though another thread has received the answers."""

    cdef uint64_t dispatched
    """Answers below this sequence were given to their calls.  The consumer's position may be beyond it: a thread that has
    received an answer without the GIL may still wait for the GIL."""
    cdef Header requests
    """Of the request ring."""
    cdef readonly uint64_t parts
    """How many parts of each answer may have come and not be released."""
    cpdef tasks(self)
    cpdef bint wait(self, Entry call, timeout, stream=*) except -1
    cpdef bint pump(self, ready, deadline, stream=*, dict sleepers=*) except -1
    cpdef bint receive(self, double timeout, stream, Entry only=*, bint one=*) except -1
    cdef bint is_to_receive(self) noexcept
    cpdef order(self, HoldsAnswer answer, stream)
    cdef bint is_owed(self, Entry call, uint64_t seq) except -1
    cdef int part_released(self) except -1
    cdef arm(self)
    cdef Entry untold_call(self, number)
    cdef tell(self, Entry call)
    cpdef _dispatch(self, HoldsAnswer answer)
    cdef bint _take_part(self, Entry call, HoldsAnswer answer, Response *envelope) except -1
    cdef bint is_here(self, uint32_t number, uint64_t id) noexcept


cdef class LoopTasks:
    cdef readonly Inbox _mailbox
    cdef readonly object _loop
    cdef readonly dict _asleep
    """Those for which the loop listens."""
    cdef readonly dict _queue
    """Those that want to send, in turn.  It is that of the loop in every mailbox of the client."""
    cdef public bint _listening
    cdef public double _looks_at
    """The time.monotonic() at which the loop looks next without having been told."""
    cdef object kind
