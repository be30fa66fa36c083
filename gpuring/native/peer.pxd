from libc.stdint cimport int64_t, uint32_t

from gpuring.native.c cimport GR_SIGNAL, gd_call, gd_peer, gr_result
from gpuring.native.device cimport Device
from gpuring.native.header cimport Header


cdef enum verb:
    CLAIM, ACQUIRE, LATEST, PUBLISH, ABANDON, RELEASE


cdef class Peer:
    cdef gd_peer gd
    cdef readonly Header header
    cdef str called  # the ring
    cdef readonly Device device
    cdef long waiting_in  # the thread that waits in a verb, or in select; 0: none
    cdef bint is_busy(self) noexcept
    cdef bint is_forked(self) noexcept
    cdef int64_t behind(self) noexcept
    cdef bint has_news(self) noexcept
    cdef bint has_frame(self) noexcept
    cdef bint has_whole_frame(self) noexcept
    cpdef ask(self)
    cpdef count_drop(self)
    cdef bint has_nothing(self) noexcept
    cdef bint is_in_own_way(self) noexcept
    cdef int begin_wait(self) except -1
    cdef int take(self, gd_call *call, verb which) except? -1000
    cdef gr_result _wait(self, gd_call *call, verb which) except? GR_SIGNAL
    cdef void cancel(self, gd_call *call) noexcept
    cdef int end(self, gd_call *call, verb which) except? -1000
    cdef int use_on(self, uint32_t index, size_t stream) except -1
    cdef bint _paid(self, uint32_t index) noexcept


cdef int raise_busy(Peer peer) except -1


cdef inline int check_idle(Peer peer) except -1:
    """Raises RuntimeError while a verb is in progress, in another thread or in what a signal handler has interrupted."""
    return raise_busy(peer) if peer.waiting_in else 0
