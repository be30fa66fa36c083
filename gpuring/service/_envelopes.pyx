"""What both sides of a service call use: the envelopes of requests and answers, and the end of their slots.

There is no state here, so anybody may use it.
"""
cdef extern from "core/atomics.h" nogil:
    bint gr_cas(gr_word *, uint64_t, uint64_t)

TEXT_NBYTES = 240
NEVER = 2**64 - 1
"""`until_ns` of a call that does not expire."""

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


# ---- the credit of a request: the one word of it that its client writes after it was sent.  An engine only reads it, at any time.


cdef inline gr_word *credit_of(Header header, uint64_t seq) noexcept:
    """The word of the request with that sequence, as long as an engine has it.  Then it belongs to another request.  The client
    of a request is the only one that writes it, and only by compare-and-swap from a value with its own sequence."""
    cdef gr_ring *ring = header.ring
    return <gr_word *>&(<Request *>(ring.meta + seq % ring.slots * ring.layout.meta_stride)).credit


cdef void say(Header header, uint64_t seq, bint cancelled) noexcept:
    """Says to the engine that has the request that it was given up, or else that one more part was released."""
    cdef gr_word *word
    cdef uint64_t seen, next
    word = credit_of(header, seq)
    while True:
        seen = gr_load_acquire(word)
        if seen >> 32 != seq & 0xffffffff:  # no engine has it any more
            return
        next = seen | CANCELLED if cancelled else (seen & ~<uint64_t>RELEASED) | ((seen + 1) & RELEASED)
        if next == seen or gr_cas(word, seen, next):
            return


def call_of(Header header, uint64_t seq):
    """Which call has the request of that sequence: (the client's number, the call's number, whether it was given up).  None: the
    slot has another one now."""
    cdef gr_ring *ring = header.ring
    cdef Request *envelope = <Request *>(ring.meta + seq % ring.slots * ring.layout.meta_stride)
    cdef uint64_t client = envelope.client, call = envelope.call, credit = gr_load_acquire(<gr_word *>&envelope.credit)
    return (client, call, (credit & CANCELLED) != 0) if credit >> 32 == seq & 0xffffffff else None
