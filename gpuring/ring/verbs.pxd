# cython: language_level=3
"""The verbs of verbs.pyx, for compiled code that builds on them."""
from libc.stdint cimport uint32_t

from gpuring.native.c cimport gd_call
from gpuring.native.device cimport Device
from gpuring.native.peer cimport Peer, verb
from gpuring.ring.slot cimport MAX_BATCH, ReadSlot, Slot, WriteSlot


cdef class Verbs:
    cdef public Peer _peer
    cdef public Device _device
    cdef public list _slots    # by index: the object that has the slot now, or had it last
    cdef public dict _spares   # by index: the object before that, if somebody still had it when the slot came again
    # Whether this object has verbs of its own in Python, as in debug mode.  Compiled code then calls them by name.
    cdef public bint _replaced
    cdef public bint _polled   # fileno() was given out: whatever is blocked arms it
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
    cdef _many(self, verb which, n, timeout, stream, kind)


cdef class ProducerVerbs(Verbs):
    cdef WriteSlot _claim(self, timeout, stream, tuple extents, bint quiet=*)


cdef class ConsumerVerbs(Verbs):
    cdef public list _untold   # the sequences of frames that are known to be torn, and that no call has raised yet
    cdef public bint _lossless
    cdef int _tell_first(self) except -1
    cdef ReadSlot _one(self, verb which, str name, timeout, stream)
