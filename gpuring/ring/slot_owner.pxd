"""The owner of slots of slot_owner.pyx, for compiled code that builds on it."""
from libc.stdint cimport uint32_t

from gpuring.native.c cimport gd_call
from gpuring.native.device cimport Device
from gpuring.native.peer cimport Peer
from gpuring.native.signals cimport Dropped
from gpuring.ring.slot cimport MAX_BATCH, Slot


cdef class SlotOwner(Dropped):
    cdef object __weakref__
    cdef dict __dict__             # verbs of its own, in debug mode and in tests
    cdef public object _ring
    cdef public Peer _peer
    cdef public Device _device
    cdef public object _kind       # of its slots: _slot_type, or that watched
    cdef public list _slots        # by index: the object that has the slot now, or had it last
    cdef public dict _spares       # by index: the object before that, if somebody still had it when the slot came again
    cdef readonly object _watch    # a Watcher in debug mode, else None
    # `given` lists the slots that were handed out and had not been ended when the last verb began, and those that it has
    # handed out.  Each slot is in it once, so it has no more entries than the ring has slots.  A batch is taken behind its end.
    cdef uint32_t given[2 * MAX_BATCH]
    cdef uint32_t givens, recent, turn
    cdef unsigned char listed[MAX_BATCH]
    cdef Slot _slot(self, gd_call *call, uint32_t index)
    cdef Slot _another(self, gd_call *call, uint32_t index)
    cpdef Slot _renew(self, uint32_t index)
    cdef int _enter(self) except -1
    cdef bint _is_lost(self, uint32_t index) noexcept


cdef inline void remember(SlotOwner owner, uint32_t n) noexcept:
    """The `n` slots behind the end of `given` are handed out now.  One of them may be in the list already, if another thread
    has ended it while we waited.  Each claim and acquire does this, so it is compiled into them."""
    cdef uint32_t k, index, first = owner.givens
    for k in range(first, first + n):
        index = owner.given[k]
        if not owner.listed[index]:
            owner.listed[index] = True
            owner.given[owner.givens] = index
            owner.givens += 1
    owner.recent = owner.givens - first
