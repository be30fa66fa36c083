"""The endpoints of endpoint.pyx, for compiled code that builds on them."""
from libc.stdint cimport int64_t, uint32_t

from gpuring.native.peer cimport verb
from gpuring.ring.slot cimport Slot
from gpuring.ring.slot_owner cimport SlotOwner


cdef class Endpoint(SlotOwner):
    cdef public object _closed     # None before it has settled in
    cdef readonly str _made_at     # where in the program, in debug mode
    # Whether this object has verbs of its own in Python, as in debug mode.  Compiled code then calls them by name.
    cdef public bint _replaced
    # Of one that goes on over restarts (following.py), and of what it has left.
    cdef readonly object _again    # joins another ring in the same place, and returns the peer; None: it stays in its ring
    cdef readonly object _home     # the ring whose close closes this endpoint, also after it has moved
    cdef bint moved                # whether to a ring that it has attached to by itself, and so has to close
    cdef readonly Endpoint _heir   # who has moved on and left this one behind, with the slots that its user still had
    cdef public int64_t _late      # of one that has joined behind the end of a stream: the producers that had gone by then. Else -1
    cdef public bint _restarted    # whether the next slot is the first one after a restart
    cdef public object _at_end     # a Notifier that wakes up who waits until the stream goes on, while one does
    cdef public bint _polled       # fileno() was given out: whatever is blocked arms it
    cdef readonly object _notifier # made when somebody waits in an event loop
    cdef public object _awaited    # the event loop whose task waits
    cdef public double _rested_s   # when that last had a chance to run others
    cdef public long long _first_in  # the turn of select in which this one came first
    cdef int _tell_first(self) except -1
    cdef uint32_t _at_most(self, n) except 0
    cdef int _first(self, Slot slot) except -1
    cdef bint _goes_on(self, int result, int64_t deadline_ns) except -1
    cdef _many(self, verb which, n, timeout, stream, kind)


cdef inline size_t stream_of(Endpoint endpoint, stream) except? 1:
    """The raw handle of a stream that the user gave.  None: the current one."""
    if stream is None:
        return 0 if endpoint._device is None else endpoint._device.current()
    return endpoint._handle(stream)
