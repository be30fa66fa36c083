"""A client's books (_books.pyx), for compiled code that builds on them."""
from libc.stdint cimport uint32_t, uint64_t

from gpuring.native.header cimport Header
from gpuring.ring.read_slot cimport ReadSlot


cdef class HoldsAnswer(ReadSlot)
cdef class Calls


cdef class Entry:
    cdef object __weakref__
    cdef readonly Calls calls
    """Whose books it is in."""
    cdef readonly uint64_t _number
    cdef public uint64_t _seq
    """Of the request."""
    cdef readonly object _expires
    """A time.monotonic(), or None."""
    cdef public double _sent_at
    """A time.monotonic().  -1: it was not sent."""
    cdef readonly HoldsAnswer _answer
    cdef readonly uint64_t _answer_seq
    """Of the answer that has come.  0: none has."""
    cdef public object _answered_below
    """Set when no engine has the request any more: where an answer would be."""
    cdef readonly object _error
    cdef bint writing, releasing
    cdef readonly unsigned long _thread
    cdef unsigned long in_block
    """The thread that is in the block of its request, or 0."""
    cdef dict sleepers
    cdef Header header
    """Of the ring that has its request."""
    cdef list parts
    """The parts of its answer that have come and were not released, in order.  None: none has come."""
    cdef readonly uint64_t _come, _handed
    """How many parts have come, and how many of them were handed out."""
    cdef public bint _streams
    """Whether somebody takes the parts."""
    cdef bint in_parts, out, last, gone
    """Whether a part or the end of parts has come; whether the first of `parts` was handed out; whether the answer behind the
    parts was; whether the call needs room for its parts only."""
    cdef uint64_t engine, left_at
    cdef uint32_t engine_number
    """The peer that has sent the parts; when it was gone, what it has sent was below `left_at`."""
    cdef bint over(self) noexcept
    cdef bint done(self) noexcept
    cpdef bint _has_answer(self) except -1
    cdef bint _left_over(self) except -1
    cdef bint part_over(self, HoldsAnswer part) except -1
    cdef int drop_parts(self) except -1
    cdef bint is_owed(self, uint64_t seq) except -1
    cdef int part_released(self) except -1


cdef class Calls:
    cdef str quoted
    """The name of the service in quotes.  To make these Python would look for signals (see HandsOut)."""
    cdef readonly Py_ssize_t limit
    cdef Py_ssize_t parts
    """How many parts of its answer each call has room for."""
    cdef readonly dict live
    """Calls that are claimed, and neither released, failed nor known to be gone, by number.  A call in it that has an error was
    given up.  Its answer may still come, and needs its room."""
    cdef readonly Py_ssize_t writing
    """How many of them have a request that was not sent yet."""
    cdef list owed
    """(call, sequence): this slot of the call was released, and an engine has left it out in a sequence that was not passed yet.
    Until then the call needs it, though it may be over."""
    cdef readonly bint closed
    cdef readonly object turn
    """The turn to receive."""
    cdef readonly dict for_room
    """Who sleeps until there is room for another call."""
    cdef readonly dict _heirs
    """Who is woken when nobody receives: all of them, so that none relies on another."""
    cpdef bint has_room(self) except -1
    cdef int pay(self, uint64_t passed) except -1
    cdef list waiting_for_room(self)
    cdef bint begin(self, Entry call) except -1
    cdef void sent(self, Entry call) noexcept
    cdef bint arrive(self, Entry call, HoldsAnswer answer) except -1
    cdef int add(self, Entry call, HoldsAnswer part) except -1
    cdef int finish(self, Entry call, uint64_t seq) except -1
    cpdef bint enter(self, sleeper, dict sleepers, ready) except -1
    cpdef leave(self, sleeper, dict sleepers)
    cpdef pass_turn(self)


cdef class HoldsAnswer(ReadSlot):
    cdef public object _call


cdef discard(HoldsAnswer answer)
