"""inner.py for compiled code: what that of services may ask of an endpoint or a slot, beyond what users may.

The verbs here wait as those of Producer and Consumer do, but a wait that ends without a slot costs no error that nobody reads.
On the host they look without a clock first: mostly there is a slot.  In debug mode, and in some tests, an endpoint has verbs of
its own in Python.  Then these are called.
"""
from gpuring.native.header cimport Header
from gpuring.native.peer cimport ACQUIRE
from gpuring.ring.consumer cimport Consumer, RingTimeout
from gpuring.ring.endpoint cimport Endpoint, stream_of
from gpuring.ring.producer cimport Producer
from gpuring.ring.read_slot cimport ReadSlot
from gpuring.ring.slot cimport Slot
from gpuring.ring.write_slot cimport WriteSlot


cdef inline Header header(ring):
    """The mapped header, of an open or a closed handle."""
    return ring._header


# ---- a producer, a consumer ---------------------------------------------------------------------------------------------------


cdef inline bint has_own_verbs(Endpoint endpoint) noexcept:
    """Whether its slots have to be ended by name, in Python, too."""
    return endpoint._replaced


cdef inline notifier(Endpoint endpoint):
    """What fileno() tells of.  Unlike fileno(), this leaves to the caller when it is armed."""
    return endpoint._notify()


cdef inline give_back_lost(Endpoint endpoint):
    """Gives back the slots that nobody has, as each verb does with those that it looks at."""
    endpoint._give_back_lost()


cdef inline WriteSlot claim(Producer producer, double timeout, stream, shape):
    """producer.claim."""
    cdef WriteSlot slot = None
    cdef tuple extents
    if producer._replaced:
        return producer.claim(timeout, stream=stream, shape=shape)
    extents = None if shape is None else producer._smaller(shape)
    if producer._device is None and timeout > 0:
        slot = producer._claim(0, stream, extents, True)
    return producer._claim(timeout, stream, extents) if slot is None else slot


cdef inline ReadSlot acquire(Consumer consumer, double timeout, stream):
    """consumer.acquire, but None if no frame comes in time."""
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


cdef inline acquire_many(Consumer consumer, Py_ssize_t n, double timeout, stream):
    """The slots of consumer.acquire_many, but none if no frame comes in time."""
    if n == 1:
        slot = acquire(consumer, timeout, stream)
        return () if slot is None else (slot,)
    try:
        if consumer._replaced:
            return consumer.acquire_many(n, timeout, stream=stream)
        if consumer._device is None:
            slots = consumer._many(ACQUIRE, n, 0, stream, None)
            if slots or timeout <= 0:
                return slots
        return consumer._many(ACQUIRE, n, timeout, stream, None)
    except RingTimeout:
        return ()


# ---- a slot -------------------------------------------------------------------------------------------------------------------


cdef inline owner(Slot slot):
    """The producer or consumer that it belongs to, while it is open."""
    return slot._owner


cdef inline bint is_cut(Slot slot) noexcept:
    """Whether the close of its producer or consumer has ended it, because its user had not."""
    return slot._cut
