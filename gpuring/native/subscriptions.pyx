"""Durable subscriptions, which stay when their last member leaves or dies.  One Python call is one whole transition of the C library."""
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

from gpuring.native.c cimport *
from gpuring.native.header cimport Header


def subscribe(Header header not None, bytes name not None, *, bint lossless, bint redeliver, start, uint64_t patience_ns):
    """Makes a durable subscription, or makes one durable that is there.

    `start` is "next", "oldest" or a sequence.  `patience_ns`: how long producers wait for it while it has no member, 0 for
    ever.  Returns 0 or a negative result.  Raises OSError."""
    cdef gr_terms terms
    cdef gr_result result
    cdef char padded[64]
    header.to_write()
    pad(padded, name)
    memset(&terms, 0, sizeof(terms))
    terms.mode = GR_LOSSLESS if lossless else GR_LOSSY
    terms.policy = GR_REDELIVER if redeliver else GR_DROP
    set_start(&terms, start)
    terms.patience_ns = patience_ns
    with nogil:
        result = gr_subscribe(header.ring, padded, &terms)
    if result == GR_SYSTEM:
        PyErr_SetFromErrno(OSError)
    return -<int>result


def unsubscribe(Header header not None, bytes name not None):
    """The subscription goes with its last member, so at once if it has none.  Returns 0 or a negative result, and whether there
    is one of this name.  Raises OSError."""
    cdef gr_bool found = False
    cdef gr_result result
    cdef char padded[64]
    header.to_write()
    pad(padded, name)
    with nogil:
        result = gr_unsubscribe(header.ring, padded, &found)
    if result == GR_SYSTEM:
        PyErr_SetFromErrno(OSError)
    return -<int>result, found


cdef int pad(char *padded, bytes name) except -1:
    if len(name) > 64:
        raise ValueError("a subscription's name has at most 64 bytes")
    memset(padded, 0, 64)
    memcpy(padded, <const char *>name, len(name))
    return 0


cdef int set_start(gr_terms *terms, start) except -1:
    """`start` is "next", "oldest" or a sequence."""
    if start == "next":
        terms.start_from = GR_START_NEXT
    elif start == "oldest":
        terms.start_from = GR_START_OLDEST
    else:
        terms.start_from = GR_START_AT
        terms.start = start
    return 0
