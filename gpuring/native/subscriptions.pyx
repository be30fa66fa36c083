"""Durable subscriptions, which stay when their last member leaves or dies.  One Python call is one whole transition of the C library."""
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from gpuring.native.c cimport *
from gpuring.native.header cimport Header


def subscribe(Header header not None, bytes name not None, *, bint lossless, bint redeliver, start, uint64_t patience_ns,
              uint64_t owed=0, uint64_t earlier=0):
    """Makes a durable subscription, or makes one durable that is there.

    `start` is "next", "oldest" or a sequence.  `patience_ns`: how long producers wait for it while it has no member, 0 for
    ever.  `owed`: what `owed` says of the ring before.  `earlier`: 1 if rings that had this name may still owe it something, and
    the number of the ring before (registry/earlier.py) if that owes it nothing more.  Returns 0 or a negative result.  Raises
    OSError."""
    cdef gr_terms terms
    cdef gr_result result
    cdef char padded[64]
    header.to_write()
    pad(padded, name)
    memset(&terms, 0, sizeof(terms))
    terms.mode = GR_LOSSLESS if lossless else GR_LOSSY
    terms.policy = GR_REDELIVER if redeliver else GR_DROP
    set_start(&terms, start)
    terms.patience_ns, terms.owed, terms.earlier = patience_ns, owed, earlier
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


def owed(Header header not None, uint32_t subscription):
    """How many frames a subscription has lost that nobody was told of, if another ring takes the name of this one.  A member
    that lives may still read what is left, so that counts only if there is none."""
    return gr_owed(header.ring, subscription)


def is_read(Header header not None, uint32_t subscription):
    """Whether a member of a subscription lives."""
    return gr_is_read(header.ring, subscription)


# ---- what rings owe that had the name earlier (registry/earlier.py) --------------------------------------------------------------


def earlier(Header header not None, uint32_t subscription):
    """0 if no ring that had this name earlier owes the subscription anything."""
    return gr_load_acquire(&header.ring.sub[subscription].earlier)


def settle(Header header not None, uint32_t subscription, uint64_t number, uint64_t owed):
    """An earlier ring owes it so many frames.  The caller has that one forget the subscription, and then calls `settled`.  Returns
    0, or a negative result.  Raises OSError."""
    header.to_write()
    return done(gr_settle(header.ring, subscription, number, owed))


def being_settled(Header header not None, uint32_t subscription):
    """The number of the earlier ring for which `settle` was called, and `settled` was not yet.  0: none."""
    return gr_being_settled(header.ring, subscription)


def settled(Header header not None, uint32_t subscription):
    header.to_write()
    return done(gr_settled(header.ring, subscription))


def all_settled(Header header not None, uint32_t subscription):
    """No earlier ring owes it anything any more.  Returns and raises as `settle`."""
    header.to_write()
    return done(gr_all_settled(header.ring, subscription))


cdef int done(gr_result result) except 1:
    if result == GR_SYSTEM:
        PyErr_SetFromErrno(OSError)
    return -<int>result


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
