"""The classes of _calls.pyx, for compiled code that builds on them."""
from libc.stdint cimport uint32_t, uint64_t

from gpuring.native.c cimport gd_use
from gpuring.native.header cimport Header
from gpuring.native.peer cimport Peer
from gpuring.service._envelopes cimport Response
from gpuring.ring.slot cimport ReadSlot
from gpuring.ring.consumer cimport Consumer


cdef class HoldsAnswer(ReadSlot)
cdef class Inbox
cdef class Calls
cdef class InFlight
cdef class LoopTasks


cdef class Calls:
    cdef readonly Py_ssize_t limit
    cdef readonly dict live
    """Calls that are claimed, and neither released, failed nor known to be gone, by number.  A call in it that has an error was
    given up.  Its answer may still come, and needs its room."""
    cdef readonly Py_ssize_t writing
    """How many of them have a request that was not sent yet."""
    cdef readonly bint closed
    cdef readonly object turn
    """The turn to receive."""
    cdef readonly dict for_room
    """Who sleeps until there is room for another call."""
    cdef readonly dict _heirs
    """Who is woken when nobody receives: all of them, so that none relies on another."""
    cdef int begin(self, InFlight call) except -1
    cdef void sent(self, InFlight call) noexcept
    cdef bint arrive(self, InFlight call, HoldsAnswer answer) except -1
    cdef int add(self, InFlight call, HoldsAnswer part) except -1
    cdef int finish(self, InFlight call, uint64_t seq) except -1
    cpdef bint enter(self, sleeper, dict sleepers, ready) except -1
    cpdef leave(self, sleeper, dict sleepers)
    cpdef pass_turn(self)


cdef class Inbox:
    cdef readonly str service
    """Its name."""
    cdef str quoted
    """It in quotes.  To make these Python would look for signals (see HandsOut)."""
    cdef readonly Calls calls
    cdef readonly Consumer _answers
    cdef readonly Peer peer
    cdef readonly bint on_device
    cdef public uint64_t late
    cdef public object _orphaned
    """A time.monotonic() since when there has been no engine, or None."""
    cdef public double _looked
    cdef readonly dict _loops
    """The tasks of each event loop.  Each loop adds its own."""
    cdef bint polled
    """Whether fileno() was given out.  The consumer does not know it: only `arm` may make the descriptor unreadable."""
    cdef dict untold
    """If fileno() was given out: weak references, by number, to the calls whose answers have come, and that nobody has asked since.  Whoever listens to the
    descriptor has to be told of them, though another thread has received the answers."""

    cdef uint64_t dispatched
    """Answers below this sequence were given to their calls.  The consumer's position may be beyond it: a thread that has
    received an answer without the GIL may still wait for the GIL."""
    cdef Header requests
    """Of the request ring."""
    cdef readonly uint64_t parts
    """How many parts of each answer may have come and not be released."""
    cpdef LoopTasks tasks(self)
    cpdef bint wait(self, InFlight call, timeout, stream=*) except -1
    cpdef bint pump(self, ready, deadline, stream=*, dict sleepers=*) except -1
    cpdef bint receive(self, double timeout, stream, InFlight only=*, bint one=*) except -1
    cdef bint is_to_receive(self) noexcept
    cpdef order(self, HoldsAnswer answer, stream)
    cdef int allow_part(self, InFlight call) except -1
    cdef arm(self)
    cdef InFlight untold_call(self, number)
    cdef tell(self, InFlight call)
    cpdef _dispatch(self, HoldsAnswer answer)
    cdef bint _take_part(self, InFlight call, HoldsAnswer answer, Response *envelope) except -1
    cdef bint is_here(self, uint32_t number, uint64_t id) noexcept


cdef class LoopTasks:
    cdef readonly Inbox _mailbox
    cdef readonly object _loop
    cdef readonly dict _asleep
    """Those for which the loop listens."""
    cdef readonly dict _queue
    """Those that want to send, in turn.  It is that of the loop in every mailbox of the client."""
    cdef public bint _listening
    cdef public double _looks_at
    """The time.monotonic() at which the loop looks next without having been told."""
    cdef object kind


cdef class HoldsAnswer(ReadSlot):
    cdef public object _call


cdef class InFlight:
    cdef object __weakref__
    cdef readonly Inbox _mailbox
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
    cdef void begin(self, Inbox mailbox, uint64_t number, uint64_t seq, expires) noexcept
    cdef bint over(self) noexcept
    cdef bint done(self) noexcept
    cpdef bint _has_answer(self) except -1
    cpdef _outcome_of(self, bint done, timeout, stream)
    cdef bint _left_over(self) except -1
    cdef hand_out(self)
    cdef bint part_over(self, part) except -1
    cdef int drop_parts(self) except -1
