"""The tracer's end of a ring's events (core/trace.h), and slices of the user's own.

gpuring/tracing makes a picture of what is read here.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t

from gpuring.native.c cimport *
from gpuring.native.header import Damaged

KINDS = {
    <int>GR_DID_JOIN: "join", <int>GR_DID_LEAVE: "leave", <int>GR_DID_CLAIM: "claim",
    <int>GR_DID_PUBLISH: "publish", <int>GR_DID_ABANDON: "abandon", <int>GR_DID_ACQUIRE: "acquire",
    <int>GR_DID_RELEASE: "release", <int>GR_DID_RETURN: "return", <int>GR_DID_DROP: "drop",
    <int>GR_DID_TEAR: "tear", <int>GR_DID_WAIT: "wait", <int>GR_DID_STOP: "stop", <int>GR_DID_CALL: "call",
    <int>GR_DID_BEGIN: "begin", <int>GR_DID_END: "end",
}
"""What an event's kind is called."""
EVENT_NBYTES = sizeof(gr_trace_event)
TRACE_EVENTS = GR_TRACE_EVENTS  # that a peer's table holds
TRACE_NS = <int>GR_TRACE_NS
"""For how long verbs go on writing events when nobody calls Tracer.go_on()."""


cdef class Tracer:
    """Turns the tracing of one ring on, and reads what its peers write.  If it goes, or its process dies, tracing ends."""

    cdef gr_tracer *tracer
    cdef readonly uint32_t peers

    def __cinit__(self, int fd):
        """`fd`: the header's file, open to read and to write.  Raises Damaged, OSError; BlockingIOError: another one traces it."""
        cdef const char *why = NULL
        cdef char text[256]
        self.tracer = gr_trace_begin(fd, &why, text, sizeof(text))
        if self.tracer == NULL:
            if why != NULL:
                raise Damaged(why.decode())
            PyErr_SetFromErrno(OSError)
        self.peers = self.tracer.peers

    def __dealloc__(self):
        if self.tracer != NULL:
            gr_trace_off(self.tracer)
            gr_trace_end(self.tracer)

    def go_on(self):
        """To be called more often than every TRACE_NS.  False: it was off meanwhile, so events are missing."""
        return gr_trace_on(self.tracer)

    def off(self):
        """No verb that begins from now on writes an event.  What was written can still be read."""
        gr_trace_off(self.tracer)

    def read(self, uint32_t number):
        """The new events of a peer number, as the bytes of whole gr_trace_event structs.  Those whose `turn` is 0 were not got."""
        cdef bytes events
        cdef gr_trace_event *to
        cdef int n
        if number >= self.tracer.peers:
            raise IndexError(number)
        parts = []
        while True:
            events = PyBytes_FromStringAndSize(NULL, GR_TRACE_EVENTS * sizeof(gr_trace_event))
            to = <gr_trace_event *>PyBytes_AS_STRING(events)
            with nogil:
                n = gr_trace_read(self.tracer, number, to, GR_TRACE_EVENTS)
            if n < 0:
                PyErr_SetFromErrno(OSError)
            parts.append(events[:n * sizeof(gr_trace_event)])
            if n == 0 or len(parts) == 4:  # it stays behind one that writes faster than this reads
                return b"".join(parts)

    def fences(self):
        """What the fence of each peer number has reached on each slot, slot by slot, as the bytes of whole words."""
        cdef bytes fences = PyBytes_FromStringAndSize(NULL, self.tracer.fences_nbytes)
        if gr_trace_fences(self.tracer, <uint64_t *>PyBytes_AS_STRING(fences)) != 0:
            PyErr_SetFromErrno(OSError)
        return fences

    def missed(self, uint32_t number):
        """How many events of a peer number are gone."""
        if number >= self.tracer.peers:
            raise IndexError(number)
        return self.tracer.missed[number]


cdef class annotate:
    """A slice of your own in the trace that `gpuring trace` makes, on the thread that runs it.

        with gpuring.annotate("resize"):
            …

    It appears in traces of the rings that this process is in.  Of `name` at most 32 bytes in UTF-8
    are kept.  It costs a few hundred nanoseconds while a trace is made, and else no more than a
    Python object.  Blocks on one thread have to be nested, as `with` does it.
    """

    cdef char name[32]

    def __init__(self, str name not None):
        cdef bytes encoded = name.encode(errors="replace")[:32].ljust(32, b"\0")
        for k in range(32):
            self.name[k] = encoded[k]

    def __enter__(self):
        gr_annotate(GR_DID_BEGIN, self.name)
        return self

    def __exit__(self, *_):
        gr_annotate(GR_DID_END, self.name)
