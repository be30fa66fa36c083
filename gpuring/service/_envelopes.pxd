"""What both sides of a service call use (_envelopes.pyx), and what a client writes for its engine and an engine for its client."""
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from gpuring.native.c cimport GR_DID_CALL, gr_load_acquire, gr_ring, gr_trace, gr_traced, gr_word
from gpuring.native.header cimport Header
from gpuring.ring.slot cimport Slot

cdef extern from "time.h":
    enum: CLOCK_MONOTONIC_COARSE

cdef extern from "Python.h":
    object PyWeakref_NewRef(object, object)
    PyObject *PyWeakref_GetObject(object)

cdef extern from *:
    """
    #define to_read(address) __builtin_prefetch(address)
    #define to_write(address) __builtin_prefetch(address, 1)
    static inline PyObject *made(PyObject *kind, PyObject *nothing) {
        return ((PyTypeObject *)kind)->tp_new((PyTypeObject *)kind, nothing, NULL);
    }
    """
    object made(object kind, object nothing)  # an object whose __init__ does not run
    void to_read(const void *) noexcept
    void to_write(const void *) noexcept

cpdef enum:
    OK = 0      # the answer
    FAILED = 1  # no answer, but a text
    PART = 2    # a part of the answer; others follow
    END = 3     # no answer, because all of it was in the parts

cdef struct Request:
    uint64_t client, call, until_ns
    uint64_t credit  # what the client says of the call until its end: seq, low half (32) | CANCELLED | parts released (31)
    uint64_t parts   # so many of them may be sent and not released

cdef packed struct Response:
    uint64_t call, request  # `request` is a sequence
    uint32_t part           # how many parts of this answer were sent before
    uint8_t status
    char text[240]

cdef enum:
    CANCELLED = 0x80000000
    RELEASED = 0x7fffffff


cdef inline int64_t now_ns() noexcept:
    """time.monotonic_ns()"""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * 1000000000 + now.tv_nsec


cdef inline double now_s() noexcept:
    """time.monotonic()"""
    return now_ns() / 1e9


cdef inline double coarse_s() noexcept:
    """now_s(), but up to some milliseconds older, and cheaper."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
    return now.tv_sec + now.tv_nsec / 1e9


cdef inline void trace_call(Slot slot, uint64_t client, uint64_t call) noexcept:
    """For who traces the ring: the claimed slot gets this call's request, or a part of its answer."""
    if gr_traced(slot._peer.gd.core.ring):
        gr_trace(&slot._peer.gd.core, 0, GR_DID_CALL, slot._seq, client, call)


cdef inline void *envelope_of(Slot slot) noexcept:
    cdef gr_ring *ring = slot._peer.gd.core.ring
    return ring.meta + slot.index * ring.layout.meta_stride


cdef inline void clear_meta(Slot slot, size_t envelope_nbytes) noexcept:
    """Sets the user's part of a claimed slot's metadata to zeros.  It has that of an earlier call, maybe of another client."""
    memset(<char *>envelope_of(slot) + envelope_nbytes, 0, slot._peer.gd.core.ring.layout.meta_stride - envelope_nbytes)


cdef inline const void *next_envelope(Slot slot) noexcept:
    """That of the slot that comes next, for a prefetch: the other side has used it since the last lap.  A wrong guess costs
    nothing."""
    cdef gr_ring *ring = slot._peer.gd.core.ring
    return ring.meta + (0 if slot.index + 1 == ring.slots else slot.index + 1) * ring.layout.meta_stride


cdef double FOREVER
cdef tuple NOTHING
cdef object target(reference)

ctypedef int (*ending)(Slot slot, bint well) except -1
cdef int leave(Slot slot, bint well, ending end) except -1
cdef void say(Header header, uint64_t seq, bint cancelled) noexcept
