"""The endpoints of endpoint.pyx, for compiled code that builds on them."""
from libc.stdint cimport int64_t, uint32_t

from gpuring.native.c cimport gd_call
from gpuring.native.device cimport Device
from gpuring.native.peer cimport Peer, verb
from gpuring.native.signals cimport Dropped
from gpuring.ring.slot cimport MAX_BATCH, Slot


cdef class Endpoint(Dropped):
    cdef object __weakref__
    cdef dict __dict__             # verbs of its own, in debug mode and in tests
    cdef public object _ring
    cdef public Peer _peer
    cdef public Device _device
    cdef public object _closed     # None before it has settled in
    cdef public object _kind       # of its slots: _slot_type, or that watched
    cdef public list _slots        # by index: the object that has the slot now, or had it last
    cdef public dict _spares       # by index: the object before that, if somebody still had it when the slot came again
    cdef readonly object _watch    # a Watcher in debug mode, else None
    cdef readonly str _made_at     # where in the program, in debug mode
    # Whether this object has verbs of its own in Python, as in debug mode.  Compiled code then calls them by name.
    cdef public bint _replaced
    # Of one that goes on over restarts (following.py), and of what it has left.
    cdef readonly object _again    # joins another ring in the same place, and returns the peer; None: it stays in its ring
    cdef readonly object _home     # the ring whose close closes this endpoint, also after it has moved
    cdef bint moved                # whether to a ring that it has attached to by itself, and so has to close
    cdef readonly Endpoint _heir   # who has moved on and left this one behind, with the slots that its user still had
    cdef public bint _late         # whether it has joined behind the end of a stream, and has seen no other one yet
    cdef public bint _restarted    # whether the next slot is the first one after a restart
    cdef public object _at_end     # a Notifier that wakes up who waits until the stream goes on, while one does
    cdef public bint _polled       # fileno() was given out: whatever is blocked arms it
    cdef readonly object _notifier # made when somebody waits in an event loop
    cdef public object _awaited    # the event loop whose task waits
    cdef public double _rested_s   # when that last had a chance to run others
    cdef public long long _first_in  # the turn of select in which this one came first
    # `given` lists the slots that were handed out and had not been ended when the last verb began, and those that it has
    # handed out.  Each slot is in it once, so it has no more entries than the ring has slots.  A batch is taken behind its end.
    cdef uint32_t given[2 * MAX_BATCH]
    cdef uint32_t givens, recent, turn
    cdef unsigned char listed[MAX_BATCH]
    cdef Slot _slot(self, gd_call *call, uint32_t index)
    cdef Slot _another(self, gd_call *call, uint32_t index)
    cpdef Slot _renew(self, uint32_t index)
    cdef int _enter(self) except -1
    cdef int _tell_first(self) except -1
    cdef void _remember(self, uint32_t n) noexcept
    cdef bint _is_lost(self, uint32_t index) except -1
    cdef size_t _stream_of(self, stream) except? 1
    cdef uint32_t _at_most(self, n) except 0
    cdef int _first(self, Slot slot) except -1
    cdef bint _goes_on(self, int result, int64_t deadline_ns) except -1
    cdef _many(self, verb which, n, timeout, stream, kind)
