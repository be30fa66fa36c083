"""What both sides of a service call use: the envelopes of requests and answers, and the end of their slots.

There is no state here, so anybody may use it.
"""

TEXT_NBYTES = 240
NEVER = 2**64 - 1

ENVELOPES = sizeof(Request), sizeof(Response)
"""The sizes of the two envelopes, with which a frame's metadata begins (gpuring/service/wire.py)."""

cdef tuple NOTHING = ()
cdef double FOREVER = float("inf")


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
