# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
# cython: auto_pickle=False
"""What both sides of a service call use: the envelopes of requests and answers, and the verbs of their rings.

There is no state here, so anybody may use it.
"""
from gpuring.native.c cimport *
from gpuring.native.peer cimport *
from gpuring.errors import RingTimeout

TEXT_NBYTES = 240
NEVER = 2**64 - 1

ENVELOPES = sizeof(Request), sizeof(Response)
"""The sizes of the two envelopes, with which a frame's metadata begins (gpuring/service/wire.py)."""

cdef tuple NOTHING = ()
cdef double FOREVER = float("inf")


cdef WriteSlot claimed(Producer producer, double timeout, stream, shape):
    """producer.claim.  On the host it looks without a clock first: mostly there is a slot."""
    cdef WriteSlot slot = None
    cdef tuple extents
    if producer._replaced:
        return producer.claim(timeout, stream=stream, shape=shape)
    extents = None if shape is None else producer._smaller(shape)
    if producer._device is None and timeout > 0:
        slot = producer._claim(0, stream, extents, True)
    return producer._claim(timeout, stream, extents) if slot is None else slot


cdef ReadSlot acquired(Consumer consumer, double timeout, stream):
    """consumer.acquire, but None if no frame comes in time.  On the host it looks without a clock first."""
    cdef ReadSlot slot = None
    try:
        if consumer._replaced:
            return consumer.acquire(timeout, stream=stream)
        if consumer._device is None:
            slot = consumer._one(ACQUIRE, None, 0, stream)
            if slot is not None or timeout <= 0:
                return slot
        return consumer._one(ACQUIRE, None, timeout, stream)
    except RingTimeout:
        return None


cdef acquired_many(Consumer consumer, Py_ssize_t n, double timeout, stream):
    """The slots of consumer.acquire_many, but none if no frame comes in time.  On the host it looks without a clock first."""
    if n == 1:
        slot = acquired(consumer, timeout, stream)
        return NOTHING if slot is None else (slot,)
    try:
        if consumer._replaced:
            return consumer.acquire_many(n, timeout, stream=stream)
        if consumer._device is None:
            slots = consumer._many(ACQUIRE, n, 0, stream, None)
            if slots or timeout <= 0:
                return slots
        return consumer._many(ACQUIRE, n, timeout, stream, None)
    except RingTimeout:
        return NOTHING


# The reference of a slot to its call is weak, because the slot is used again.  Others decide whether the call is still needed.


cdef object target(reference):
    """What a weak reference leads to; None if it is None, or if nobody has that any more."""
    return None if reference is None else <object>PyWeakref_GetObject(reference)


cdef int leave(Slot slot, bint well, ending end) except -1:
    """Ends the open slot of a `with` block by `end`, which may wait for a GPU.  If a signal handler cuts that short, the slot is
    given back.  Otherwise it would be somebody's for as long as the exception is kept, which keeps the frame of the block."""
    try:
        return end(slot, well)
    except Exception:  # a refusal: what it says of the slot holds
        raise
    except BaseException:
        if slot.use.open:
            slot._end()
        raise
