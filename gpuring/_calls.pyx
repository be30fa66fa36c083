# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
# cython: auto_pickle=False
"""The path of a service call: what a client does to send a request and to get its answer, and what an engine does to take a
request and to answer it.

What may be touched here, and by whom:

* `Calls` is what all threads and event loops of a process share of a client: which calls there are, how each has ended, who
  sleeps until one of these changes, and whose turn it is to receive.  Each of its methods is one step.  It runs under the GIL
  and calls no Python function before its last change, so no other thread and no signal handler finds it half done.  It needs no
  lock.  Where a list is made, Python's collector may run, and with it any destructor; the books are in order there.
* An `InFlight` is in the books of one `Calls` for ever, and only that changes how it has ended.  Any thread may read it.  Who
  sends the request writes `_sent_at`, and who receives writes `_answered_below`.  Who receives adds its parts, and one thread at
  a time takes and releases them.  Each of both is one step.
* `Inbox` is the client's end of its answer ring.  Only the thread that has the turn to receive (`Calls.turn`) uses it, except
  for `pump`, `wait`, `fileno` and what only reads.
* `Sender` is the client's end of the request ring.  Only the thread that has the turn to send uses it.  If the service is
  replaced, this thread gives it another ring and another `Inbox` in one step (`_settle_in`).  Whoever does not have the turn
  reads `_mailbox` once, and goes on with what it has read.  What waits there is told by its own `Calls`, also afterwards.
* `Taker` and `Reach` are an engine and its ends of its clients' rings.  Only the one thread that runs the engine uses them.
* `Request.credit` is the one word of a sent request that its client still writes.  The engine only reads it, whenever it likes.

A thread holds a turn for as long as it waits in a verb.  The turn to send is taken before the turn to receive, and whoever has
the turn to receive takes no other one.  An event loop waits for neither turn; it only tries to take them.  Turns are reentrant,
because a signal handler may close the client while its thread has the turn.

Signal handlers run in the verbs of rings that wait, and in the Python functions that are called for what happens rarely.
Between two other lines of this module none runs.  So a turn that was taken is given back, a slot that was claimed has its call,
and an answer that was received is given to its call, without any repair.

The classes of gpuring/service derive from these.  They add what is not on the path of every call.  They are found by their
attributes here, so this module imports nothing of them.
"""
import threading

from cpython.dict cimport PyDict_GetItem, PyDict_Values
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from gpuring._core cimport *
from gpuring._patience cimport Patience
from gpuring._slots cimport ConsumerVerbs, ProducerVerbs, ReadSlot, Slot, WriteSlot
from gpuring.errors import CallFailed, EndOfStream, FrameTorn, PeerLost, RingClosed, RingError, RingFull, RingTimeout
from gpuring.integers import integer

cdef extern from "core/ring.h" nogil:
    bint gr_cas(gr_word *, uint64_t, uint64_t)

cdef extern from "time.h":
    enum: CLOCK_MONOTONIC_COARSE

cdef extern from "string.h":
    size_t strnlen(const char *, size_t)

cdef extern from "Python.h":
    object PyWeakref_NewRef(object, object)
    PyObject *PyWeakref_GetObject(object)
    int PyList_Append(object, object) except -1
    Py_ssize_t Py_REFCNT(object)

cdef extern from *:
    """
    #define to_read(address) __builtin_prefetch(address)
    #define to_write(address) __builtin_prefetch(address, 1)
    static PyObject *made(PyObject *kind, PyObject *nothing) {
        return ((PyTypeObject *)kind)->tp_new((PyTypeObject *)kind, nothing, NULL);
    }
    """
    object made(object kind, object nothing)  # an object whose __init__ does not run
    void to_read(const void *) noexcept
    void to_write(const void *) noexcept

SLICE_S = 0.05
"""A wait looks so often what happened to the calls."""

TIDY_S = 1.0
"""An engine looks so often for what the dead left."""

Turn = threading.RLock

NEVER = 2**64 - 1
TEXT_NBYTES = 240

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

ENVELOPES = sizeof(Request), sizeof(Response)
"""The sizes of the two envelopes, with which a frame's metadata begins (gpuring/service/wire.py)."""

cdef double CLAIM_SLICE_S = 0.05  # a wait for a slot looks for engines and answers so often
cdef double TAKE_SLICE_S = 0.25  # a wait for calls looks for dead clients so often
cdef int64_t ALIVE_NS = 1000000  # for so long a client is not asked again whether it lives
cdef tuple NOTHING = ()
cdef double ROOM_S = 0.1  # how long to wait for the answer of a dead engine to be cleared
cdef double FOREVER = float("inf")
cdef str ANSWERED = "answered", UNDELIVERED = "undelivered", SENT = "sent"  # of a part, which ends no call


cdef inline int64_t now_ns() noexcept:
    """time.monotonic_ns()"""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * 1000000000 + now.tv_nsec


cdef inline double now_s() noexcept:
    """time.monotonic()"""
    return now_ns() / 1e9


cpdef double fill_seconds(max_wait_s) except? -1:
    """How long a batch may wait to be filled, if that is not learned.  Raises TypeError, ValueError."""
    try:
        return seconds(max_wait_s, "max_wait_s")
    except (TypeError, ValueError) as error:
        raise type(error)(f'max_wait_s is a number of seconds >= 0, None or "learn", not {max_wait_s!r}') from None


cdef inline double coarse_s() noexcept:
    """now_s(), but up to some milliseconds older, and cheaper."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
    return now.tv_sec + now.tv_nsec / 1e9


cdef inline uint64_t expiry_ns(double expires) noexcept:
    """When a call expires, for its envelope.  C does not say what becomes of a number that is out of range."""
    cdef double ns = expires * 1e9
    if ns >= 2.0**64:
        return <uint64_t>NEVER
    return <uint64_t>ns if ns > 0 else 0


cdef inline void *envelope_of(Slot slot) noexcept:
    cdef gr_ring *ring = slot._peer.gd.me.ring
    return ring.meta + slot.index * ring.layout.meta_stride


cdef inline const void *next_envelope(Slot slot) noexcept:
    """That of the slot that comes next, for a prefetch: the other side has used it since the last lap.  A wrong guess costs
    nothing."""
    cdef gr_ring *ring = slot._peer.gd.me.ring
    return ring.meta + (0 if slot.index + 1 == ring.slots else slot.index + 1) * ring.layout.meta_stride


cdef WriteSlot claimed(ProducerVerbs producer, double timeout, stream, shape):
    """producer.claim.  On the host it looks without a clock first: mostly there is a slot."""
    cdef WriteSlot slot = None
    cdef tuple extents
    if producer._replaced:
        return producer.claim(timeout, stream=stream, shape=shape)
    extents = None if shape is None else producer._smaller(shape)
    if producer._device is None and timeout > 0:
        slot = producer._claim(0, stream, extents, True)
    return producer._claim(timeout, stream, extents) if slot is None else slot


cdef ReadSlot acquired(ConsumerVerbs consumer, double timeout, stream):
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


cdef acquired_many(ConsumerVerbs consumer, Py_ssize_t n, double timeout, stream):
    """The slots of consumer.acquire_many, but none if no frame comes in time.  On the host it looks without a clock first."""
    if n == 1:
        slot = acquired(consumer, timeout, stream)
        return NOTHING if slot is None else (slot,)
    try:
        if consumer._replaced:
            return consumer.acquire_many(n, timeout, stream=stream)
        if consumer._device is None:
            slots = consumer._many(n, 0, stream, None)
            if slots or timeout <= 0:
                return slots
        return consumer._many(n, timeout, stream, None)
    except RingTimeout:
        return NOTHING


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


cpdef bint has_engines(Header header, bint kept) except -1:
    """Whether there is an engine in the request ring.  A keeper is a member of the engines' subscription, too, as long as it
    lives.  A dead engine counts until it is cleared."""
    cdef uint64_t word
    cdef uint32_t p, members = 0
    for p in range(header.ring.max_peers):
        word = gr_load_acquire(&header.ring.peer[p].word)
        if state_of(word) != GR_FREE and role_of(word) == GR_CONSUMER and sub_of(word) == 0:
            members += 1
            if not kept or members > 1:
                return True
    return members != 0 and not header.has_creator()


cpdef bint is_closed(Header header) noexcept:
    """Whether the ring was closed, by its creator or by who has replaced it."""
    return gr_load_acquire(&header.ring.head.closed) != 0


# ---- what threads and event loops share --------------------------------------------------------------------------------------


cdef class Attempt:
    """`with Attempt(turn) as mine:` tries to take a turn, says whether it did, and gives it back at the end of the block."""

    cdef object turn
    cdef bint mine

    def __init__(self, turn):
        self.turn = turn

    def __enter__(self):
        self.mine = self.turn.acquire(False)
        return self.mine

    def __exit__(self, *_):
        if self.mine:
            self.mine = False
            self.turn.release()


cdef class Thread:
    """A thread that sleeps."""

    cdef object asleep

    def __init__(self):
        self.asleep = threading.Lock()
        self.asleep.acquire()

    def wake(self):
        try:
            self.asleep.release()
        except RuntimeError:  # it was woken already
            pass

    def sleep(self, timeout):
        self.asleep.acquire(timeout=timeout)


def nothing():
    return False


cdef object imported = None


cpdef asyncio():
    """The module, which a program without event loops need not import."""
    global imported
    if imported is None:
        import asyncio as module
        imported = module
    return imported


cdef class AsleepTask:
    """A task of an event loop that sleeps once.  `asleep` are the tasks for which the loop listens, if it is one of them."""

    cdef readonly object loop, key, ready, stream, woken
    cdef dict asleep
    cdef unsigned long thread

    def __init__(self, loop, dict asleep=None, ready=nothing, stream=None):
        self.loop, self.asleep, self.ready, self.stream = loop, asleep, ready, stream
        self.thread = PyThread_get_thread_ident()
        task = asyncio().current_task(loop)
        # The same key for the same task each time, so it replaces what an interrupt has left.  The reference is weak, because a
        # task keeps its calls.
        self.key = self if task is None else PyWeakref_NewRef(task, None)
        self.woken = loop.create_future()

    @property
    def gone(self):
        """Whether the task has ended without having been removed."""
        if self.key is self:
            return False
        task = <object>PyWeakref_GetObject(self.key)
        return task is None or task.done()

    def wake(self):
        """Called by any thread."""
        if PyThread_get_thread_ident() == self.thread:
            self.ring()
            return
        try:
            self.loop.call_soon_threadsafe(self.ring)
        except RuntimeError:  # that loop has ended, with its tasks
            pass

    cpdef ring(self, error=None):
        """Called by the thread of the loop."""
        if self.asleep is not None and PyDict_GetItem(self.asleep, self.key) == <PyObject *>self:
            del self.asleep[self.key]
        if self.woken.done():
            return
        try:
            if error is None:
                self.woken.set_result(None)
            else:
                self.woken.set_exception(error)
        except RuntimeError:  # that loop has ended, with its tasks
            pass


cdef wake(list sleepers):
    """Called after the last change.  A sleeper that is not woken, because a signal handler raises here, looks again by itself."""
    for each in sleepers:
        each.wake()


cdef class InFlight:
    """A call of a client: what its books say of it.  service/pending.py has its verbs."""

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

    def __init__(self, Inbox mailbox not None, uint64_t number, uint64_t seq, expires):
        self.begin(mailbox, number, seq, expires)

    cdef void begin(self, Inbox mailbox, uint64_t number, uint64_t seq, expires) noexcept:
        self._mailbox, self._number, self._seq, self._expires = mailbox, number, seq, expires
        self._sent_at = -1
        self._thread = PyThread_get_thread_ident()

    @property
    def _sleepers(self):
        """Who waits for this call, in the order in which they came."""
        if self.sleepers is None:
            sleepers = {}
            if self.sleepers is None:
                self.sleepers = sleepers
        return self.sleepers

    cdef inline bint over(self) noexcept:
        """Whether nothing more of it is wanted."""
        return self._answer_seq != 0 or self._error is not None

    cdef inline bint done(self) noexcept:
        """Whether there is something for whoever waits for the answer.  That is also a part that nobody takes."""
        return self._answer_seq != 0 or self._error is not None or (self._come != 0 and not self._streams)

    def _label(self):
        return f"call {self._number} to service {self._mailbox.quoted}"

    def _is_done(self):
        return self.done()

    def _is_over(self):
        return self.over()

    def _asked(self):
        """Somebody has looked what has come."""
        if self._mailbox.polled:
            self._mailbox.tell(self)

    cpdef bint _has_answer(self) except -1:
        """Whether the answer is here and not released."""
        cdef HoldsAnswer answer = self._answer
        return answer is not None and answer.use.open and answer._seq == self._answer_seq

    def result(self, timeout=None, *, stream=None):
        """Waits for the answer: `with call.result() as slot: slot.array`.  Its release makes room
        for another call.

        On a GPU `stream` (default: CuPy's current one) waits until the answer is written.  It
        raises one of these, and the call is over then:

        * CallFailed: the engine failed the call.
        * PeerLost: the engine died with the call and there is no other engine.  Or an engine died
          before its GPU had written the answer.  Or the service was closed or replaced, and nobody
          took the call before.
        * RingClosed: this client was closed.
        * RingTimeout: `timeout` seconds have passed.  An answer that comes later is discarded.  Or
          the call had expired when an engine came to it.
        * RingError: the answer comes in parts, which only `parts` can take.

        It raises FrameTorn, as Consumer.acquire does, if answers that were released earlier are
        torn.  After a FrameTorn or a Ctrl-C the call is still in flight.
        """
        return self._outcome_of(self._mailbox.wait(self, timeout, stream), timeout, stream)

    def _give_up(self, error):
        """Ends the call with that error.  Its answer is discarded, now or when it comes."""
        self._mailbox.calls.end(self, error, False)
        if self._error is None and self._streams and self._left_over():
            self._error = error  # else the loop would seem to have had all parts
        self._withdraw()
        if self._mailbox.polled:
            self._mailbox.tell(self)
        answer = self._answer
        if not self.releasing and (self.parts or (answer is not None and self._has_answer())):
            self.releasing = True  # several threads may cancel it, and one releases
            try:
                self.drop_parts()
                if answer is not None and self._has_answer():
                    answer._done(True)
            finally:
                self.releasing = False

    def _withdraw(self):
        """Says to its engine that it was given up."""
        if self._sent_at >= 0 and not self._mailbox.peer.is_forked():
            say(self.header, self._seq, True)

    async def _result_by(self, deadline, timeout, stream):
        """The answer when it has come.  `deadline` is a time.monotonic(), or None, and `timeout` is for the message."""
        cdef bint done = self.done()
        if not done:
            try:
                done = await self._mailbox.tasks().until(self, deadline, None, stream)
            except asyncio().CancelledError:
                self.cancel()
                raise
        return self._outcome_of(done, timeout, stream)

    def __await__(self):
        return self._result_by(None, None, None).__await__()

    cpdef _outcome_of(self, bint done, timeout, stream):
        """The answer, or what result() raises."""
        cdef Calls calls = self._mailbox.calls
        if not done:
            if calls.closed:  # just when the request was sent, so close has not ended this call
                error = RingClosed(f"{self._label()}: this client was closed")
            else:
                error = RingTimeout(f"{self._label()}: no answer within {seconds(timeout, "timeout"):g} s; given up")
            calls.end(self, error, False)
            self._withdraw()
        elif self._mailbox.polled:
            self._mailbox.tell(self)
        if self._error is not None:
            raise self._error
        if self.in_parts:
            error = RingError(f"{self._label()} is answered in parts: take them with call.parts()")
            self._give_up(error)
            raise error
        answer = self._answer
        if answer is None or not self._has_answer():
            raise RingError(f"{self._label()}: its answer was released")
        if self._mailbox.on_device:
            self._mailbox.order(answer, stream)
        return answer

    # ---- its parts

    def _has_part(self):
        """Whether the next part or the end is here.  The part that is out was released."""
        return self.over() or (self.parts is not None and len(self.parts) > 0)

    def _next_part(self):
        """What is handed out next: a part, or the answer behind them; None at the end."""
        if self.parts:
            return self.parts[0]
        return self._answer if not self.last and self._has_answer() else None

    cdef bint _left_over(self) except -1:
        """Whether there is something that was not handed out."""
        if self.parts is not None and len(self.parts) > self.out:
            return True
        return not self.last and self._has_answer()

    def _part_out(self):
        """What was handed out last, if it was not released."""
        if self.out:
            return self.parts[0]
        return self._answer if self.last and self._has_answer() else None

    cdef hand_out(self):
        """The next part belongs to the caller.  None: there is none any more."""
        part = self._next_part()
        if self._error is not None and (part is None or self._mailbox.calls.closed):
            raise self._error
        if part is None:
            return None
        if self.parts:
            self.out = True
            self._handed += 1
        else:
            self.last = True
        return part

    def _is_left(self):
        """Whether the engine that has sent the parts is dead or has left, before the end of the answer."""
        return self._come != 0 and not self.over() and not self._mailbox.is_here(self.engine_number, self.engine)

    def _was_left(self):
        """Whether that is so, and no more of what it has sent will come."""
        if not self._is_left():
            return False
        if self.left_at == 0:
            self.left_at = self._mailbox.peer.header.frontier
        return self._mailbox.dispatched >= self.left_at

    cdef bint part_over(self, part) except -1:
        """The slot of a part was released.  False: it is no part of this call."""
        cdef Py_ssize_t k
        for k in range(len(self.parts)):
            if self.parts[k] is part:
                del self.parts[k]
                if k == 0:
                    self.out = False
                if self.gone and not self.parts:
                    self._mailbox.calls.end(self)
                return True
        return False

    cdef int drop_parts(self) except -1:
        """Releases the parts that are here."""
        cdef HoldsAnswer part
        if self.parts:
            for part in list(self.parts):
                if part.use.open:
                    discard(part)
                self.part_over(part)
        return 0

    def _forget_if_left(self):
        """If its engine is gone and nobody has seen a part, the next engine gives the answer from its beginning.  What is here
        would take up room that this engine waits for.  One step: another thread may hand a part out."""
        if not self._handed and self._was_left():
            self._begin_again()

    def _begin_again(self):
        """Another engine gives the answer from its beginning, and nobody has seen a part yet."""
        cdef list parts = self.parts or []
        cdef HoldsAnswer part
        self.parts, self._come, self.out, self.left_at = [], 0, False, 0
        for part in parts:
            if part.use.open:
                discard(part)

    def _lose(self):
        """Its engine is gone, and what it has sent was handed out.  Another engine shall not begin again."""
        error = f"{self._label()} is lost: its engine died, or left, after {self._come} parts of the answer"
        self._mailbox.calls.end(self, PeerLost(error), False)
        self._withdraw()


cdef class Calls:
    """The calls of one client."""

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

    def __init__(self, limit):
        self.limit = limit
        self.live, self.for_room, self._heirs = {}, {}, {}
        self.turn = Turn()

    def all(self):
        """The calls that are live now."""
        return PyDict_Values(self.live)

    def has_room(self):
        return len(self.live) < self.limit

    # ---- how a call goes

    cdef int begin(self, InFlight call) except -1:
        self.live[call._number] = call
        call.writing = True
        self.writing += 1
        return 0

    cdef void sent(self, InFlight call) noexcept:
        if call.writing:
            call.writing = False
            self.writing -= 1

    cdef bint arrive(self, InFlight call, HoldsAnswer answer) except -1:
        """Gives the answer to the call.  False: the call does not want it any more."""
        of = PyWeakref_NewRef(call, None)
        if call.over():
            return False
        answer._call = of
        call._answer, call._answer_seq = answer, answer._seq
        if call.sleepers:
            wake(list(call.sleepers))
        return True

    cdef int add(self, InFlight call, HoldsAnswer part) except -1:
        """Gives a part of the answer to the call."""
        of = PyWeakref_NewRef(call, None)
        if call.parts is None:
            call.parts = []
        part._call = of
        call.parts.append(part)
        call._come += 1
        call.in_parts = True
        if call.sleepers:
            wake(list(call.sleepers))
        return 0

    cdef int finish(self, InFlight call, uint64_t seq) except -1:
        """All parts of the answer have come, and nothing is behind them."""
        call._answer_seq, call.in_parts = seq, True
        if call.sleepers:
            wake(list(call.sleepers))
        self.end(call)
        return 0

    def end(self, InFlight call not None, error=None, bint gone=True):
        """Ends the call with the error, unless it has ended already.  `gone` says that no answer can come any more, or that it
        was released.  The call then needs no room."""
        cdef list for_it = None, for_room = None
        if error is not None and not call.over():
            call._error = error
            if call.sleepers:
                for_it = list(call.sleepers)
        if gone and call.parts:  # they need room
            call.gone = True
        elif gone and PyDict_GetItem(self.live, call._number) == <PyObject *>call:
            del self.live[call._number]
            self.sent(call)
            if self.for_room:
                for_room = list(self.for_room)
                self.for_room.clear()  # those that still have to wait enter again
        if for_it is not None:
            wake(for_it)
        if for_room is not None:
            wake(for_room)

    def close(self, error):
        """Ends every call.  `error` makes the error of each."""
        self.closed = True
        wake(list(self.for_room))
        for call in self.all():
            self.end(call, error(call), False)

    # ---- sleeping

    def enter(self, sleeper, dict sleepers not None, ready):
        """Adds a sleeper to `sleepers`.  Whoever makes `ready` true wakes them.  False: it need not sleep."""
        sleepers[sleeper] = None  # first: if `ready` becomes true now, it is woken
        if self.closed or ready():
            sleepers.pop(sleeper, None)
            return False
        return True

    def leave(self, sleeper, dict sleepers not None):
        sleepers.pop(sleeper, None)

    # ---- the turn to receive

    def inherit(self, heir):
        """Has `heir` woken when nobody receives.  Call it before you try to take the turn."""
        self._heirs[heir] = None

    cpdef pass_turn(self):
        """Called when the turn was given up.  Wakes the heirs."""
        cdef list heirs
        if self._heirs:
            heirs = list(self._heirs)
            self._heirs.clear()
            wake(heirs)


cdef class LoopTasks:
    """The tasks of one event loop that wait for something of one client.  service/tasks.py has the rest of it."""

    cdef readonly Inbox _mailbox
    cdef readonly object _loop
    cdef readonly dict _asleep
    """Those for which the loop listens."""
    cdef public bint _listening
    cdef public double _looks_at
    """The time.monotonic() at which the loop looks next without having been told."""
    cdef object kind

    def __init__(self, Inbox mailbox not None, loop, kind):
        self._mailbox, self._loop, self.kind, self._asleep = mailbox, loop, kind, {}

    async def until(self, ready, deadline, dict sleepers=None, stream=None):
        """Waits as Inbox.pump does.

        On a GPU it receives nothing, unless it may not wait.  The loop then receives for one task after the other."""
        cdef InFlight call = ready if isinstance(ready, InFlight) else None
        cdef Calls calls = self._mailbox.calls
        cdef double until = FOREVER if deadline is None else deadline, left
        is_ready = ready if call is None else call._is_done
        while True:
            left = FOREVER if until == FOREVER else max(0.0, until - now_s())
            if call is not None and self._mailbox.on_device and left > 0:
                if call.done():
                    return True
            elif self._mailbox.pump(ready, 0, stream):
                return True
            if calls.closed or left == 0:
                return False
            if call is not None:
                sleepers = call._sleepers
            task = self.kind(self._loop, self._asleep, is_ready, stream)
            try:
                if calls.enter(task, sleepers, is_ready):
                    self._asleep[task.key] = task
                    self.listen()
                    if left == FOREVER:
                        await task.woken
                    else:
                        await task.sleep(left)
            finally:
                calls.leave(task, sleepers)
                self._asleep.pop(task.key, None)
                if self._listening and not self._asleep:
                    self._hear()

    cdef int listen(self) except -1:
        """Begins to listen, unless it does already.  It begins again if it was interrupted."""
        if not self._listening or self._looks_at + SLICE_S < now_s():
            self._hear(False)  # pump has just received
        return 0


# ---- the client --------------------------------------------------------------------------------------------------------------


cdef class Inbox:
    """A client's end of its own ring, where its answers arrive.  One thread at a time receives for all threads."""

    cdef readonly str service
    """Its name."""
    cdef str quoted
    """It in quotes.  To make these Python would look for signals (see HandsOut)."""
    cdef readonly Calls calls
    cdef readonly ConsumerVerbs _answers
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

    def __init__(self, str service not None, limit, parts=0):
        self.service, self.quoted = service, repr(service)
        self.calls, self._loops, self.untold, self.parts = Calls(limit), {}, {}, parts
        self._looked = now_s()

    def _open(self, answers):
        """Called once, with the consumer of the client's ring."""
        self._answers, self.peer = answers, answers._peer
        self.on_device = self.peer.device is not None

    def tasks(self):
        """The tasks of the running loop."""
        loop = asyncio().get_running_loop()
        tasks = self._loops.get(loop)
        return self._tasks_of(loop) if tasks is None else tasks

    cpdef bint wait(self, InFlight call, timeout, stream=None) except -1:
        """Receives until the call is done, as `pump` does."""
        cdef double patience_s = seconds(timeout, "timeout")
        if call.done():
            if self.polled:
                self.tell(call)
            return True
        return self.pump(call, None if patience_s == FOREVER else now_s() + patience_s, stream)

    cpdef bint pump(self, ready, deadline, stream=None, dict sleepers=None) except -1:
        """Receives answers to all calls until `ready`, which is a call that shall be done, or a function.  Returns False if the
        deadline has passed or the client was closed.  It looks at least once.

        One of the threads that wait receives for all of them.  When it is done, another one does.  Whoever makes a function
        true wakes the `sleepers`."""
        cdef InFlight call = ready if isinstance(ready, InFlight) else None
        cdef double until = FOREVER if deadline is None else deadline, left, slice_s = SLICE_S
        cdef bint looked = False
        cdef Thread sleeper = None
        calls, turn = self.calls, self.calls.turn
        while not (ready() if call is None else call.done()):
            left = slice_s if until == FOREVER else max(0.0, until - now_s())
            if self.calls.closed or (looked and left == 0):
                return False
            looked = True
            if sleeper is not None:
                calls.inherit(sleeper)
            if turn.acquire(False):
                try:
                    self.receive(min(left, slice_s), stream, call if self.on_device else None)
                finally:
                    turn.release()
                    self.calls.pass_turn()
            elif sleeper is None:
                self._check_usable()  # in a forked child nobody receives
                sleeper = Thread()
                looked = left == 0
                if call is not None:
                    ready, sleepers = call._is_done, call._sleepers
                elif sleepers is None:
                    sleepers = {}
            else:
                try:
                    if calls.enter(sleeper, sleepers, ready):
                        sleeper.sleep(min(left, slice_s))
                finally:
                    calls.leave(sleeper, sleepers)
        if call is not None and self.polled:
            self.tell(call)
        return True

    cpdef bint receive(self, double timeout, stream, InFlight only=None, bint one=False) except -1:
        """Receives what is there, and returns whether that was anything.  Called with the turn to receive.

        With `only` it stops when that call is done, and with `one` after one answer.  On a GPU the stream waits for each answer
        that is received, so it would wait for answers that nobody has asked for, and the next request would come after them."""
        cdef double now
        cdef HoldsAnswer answer
        cdef bint any = False
        self.dispatched = self.peer.gd.me.pos
        if timeout > 0 or self.peer.has_news():
            answer = acquired(self._answers, timeout, stream)
            while answer is not None:
                self._dispatch(answer)
                any = True
                if one or (only is not None and only.done()) or not self.peer.has_frame():
                    break
                self.dispatched = self.peer.gd.me.pos
                answer = acquired(self._answers, 0, stream)
            self.dispatched = self.peer.gd.me.pos
        if self.polled:
            self.arm()
        now = coarse_s()
        if now - self._looked >= SLICE_S:
            self._looked = now
            if self.peer.behind() > 0 and not self.peer.has_news():  # perhaps answers that were given up: the verb passes over them
                answer = acquired(self._answers, 0, stream)
                if answer is not None:
                    self._dispatch(answer)
            self._look(now)
        return any

    cdef bint is_to_receive(self) noexcept:
        """Whether to receive before the next request, so that the spare slots are free again.  On a GPU that costs something (see
        `receive`), so it is done if there are more answers than calls."""
        if self.on_device:
            return self.peer.behind() > <int64_t>len(self.calls.live)
        return self.peer.has_frame()

    cpdef order(self, HoldsAnswer answer, stream):
        """Orders the stream behind the answer, which another thread may have received on another stream."""
        if self.on_device:
            self.peer.use_on(answer.index, self._answers._stream_of(stream))

    def fileno(self):
        """A descriptor that is readable when an answer may have come to any call."""
        self._check_usable()
        notifier = self._answers._notify()
        if not self.polled:
            notifier.arm(self.peer)
            self.polled = True  # only now: nobody may have found a call that was not told before the descriptor was armed
        return notifier.fileno()

    cdef int allow_part(self, InFlight call) except -1:
        """A part was released, so one more may be sent.  What is there is received before, so that parts never fill the ring from
        behind: a slot that was released is then not counted twice."""
        if not call.over():
            try:
                if self.peer.has_frame():
                    self.pump(nothing, 0)
            finally:
                say(call.header, call._seq, False)
        return 0

    cdef arm(self):
        """Called with the turn to receive.  The descriptor is readable now if somebody has a call in `untold`.  It is at no time
        unreadable then, because another thread may look at it at any time."""
        cdef InFlight call
        notifier = self._answers._notify()
        for number in list(self.untold):
            call = self.untold_call(number)
            if call is not None and Py_REFCNT(call) > 1 + (number in self.calls.live):  # more than ours
                notifier.set()
                return
        notifier.arm(self.peer)

    cdef InFlight untold_call(self, number):
        """The call of that number in `untold`, if it is still there and exists."""
        cdef PyObject *of = PyDict_GetItem(self.untold, number)
        if of == NULL:
            return None
        call = <object>PyWeakref_GetObject(<object>of)
        if call is None:
            self.untold.pop(number, None)
        return call

    cdef tell(self, InFlight call):
        """Somebody has asked a call that is done.  If another thread has the turn to receive, that arms the descriptor at the end
        of its slice."""
        if self.untold.pop(call._number, None) is None:
            return
        if not self.calls.closed and not self.peer.is_forked() and self.calls.turn.acquire(False):
            try:
                self.arm()
            finally:
                self.calls.turn.release()
                self.calls.pass_turn()

    cpdef _dispatch(self, HoldsAnswer answer):
        """Gives an answer to its call."""
        cdef Response *envelope = <Response *>envelope_of(answer)
        cdef PyObject *found = PyDict_GetItem(self.calls.live, envelope.call)
        cdef InFlight call = None if found == NULL else <InFlight>found
        self._orphaned = None
        to_read(next_envelope(answer))
        if call is not None and not call.over() and self.polled:
            self.untold[call._number] = PyWeakref_NewRef(call, None)
        if (envelope.part or envelope.status >= PART or (call is not None and call._come)) and self._take_part(call, answer, envelope):
            return
        if call is not None and envelope.status == FAILED and not call.over():
            text = envelope.text[:strnlen(envelope.text, TEXT_NBYTES)].decode(errors="replace")
            self.calls.end(call, CallFailed(f"{call._label()} failed: {text}"))
            discard(answer)
        elif call is None or not self.calls.arrive(call, answer):
            self.late += 1
            discard(answer)
            if call is not None and call._error is not None:
                self.calls.end(call)

    cdef bint _take_part(self, InFlight call, HoldsAnswer answer, Response *envelope) except -1:
        """Something has come for a call that is answered in parts.  False: it is an answer or a failure, which ends the call as it
        ends any other."""
        cdef gd_use *use = answer.use
        cdef int status = envelope.status
        cdef uint64_t request = envelope.request
        cdef bint open = call is not None and not call.over(), next = open
        if open and (envelope.part != call._come or (call._come and use.producer_id != call.engine)):
            if envelope.part == 0 and not call._handed:
                call._begin_again()  # another engine has it now
            elif call._handed or self.is_here(use.producer, use.producer_id):
                call._lose()
                open = next = False
            else:  # of a dead engine, without its first parts, which were torn
                call._begin_again()
                next = False
        if next and status == PART:
            call.engine, call.engine_number = use.producer_id, use.producer
            self.calls.add(call, answer)
            return True
        if status < PART and (next or not open):
            return False
        discard(answer)
        if next:
            self.calls.finish(call, request)
            return True
        self.late += 1
        if status == PART and not open:  # its engine would wait for the release of parts
            say(self.requests if call is None else call.header, request, True)
        elif call is not None and call._error is not None:
            self.calls.end(call)
        return True

    cdef bint is_here(self, uint32_t number, uint64_t id) noexcept:
        """Whether an engine has neither left this client's ring nor been cleared."""
        cdef gr_peer_entry *entry = &self.peer.gd.me.ring.peer[number]
        return gr_load_acquire(&entry.id) == id and state_of(gr_load_acquire(&entry.word)) != GR_FREE


cdef discard(HoldsAnswer answer):
    try:
        answer._finish()  # not Answer.release: its call is over, or has another answer
    except FrameTorn:
        pass


cdef class Sender:
    """A client's end of the request ring."""

    cdef readonly object _ring
    cdef readonly ProducerVerbs _requests
    cdef readonly object _sending
    """The turn to send.  Its owner claims, and waits for a slot, for room or for an engine."""
    cdef readonly Inbox _mailbox
    cdef readonly Calls _calls
    cdef readonly list _former
    """The inboxes in services that were replaced, which this client has not left yet."""
    cdef readonly uint64_t id
    """The number by which engines know this client, `call.client` there.  It is another one in each service."""
    cdef Peer peer
    cdef Header header
    cdef bint kept
    cdef object kind
    cdef uint64_t last

    def __init__(self, ring, requests, Inbox mailbox not None, turn, uint64_t id, bint kept, kind):
        self._sending, self.kind, self._former = turn, kind, []
        self._settle_in(ring, requests, mailbox, id, kept)

    def _settle_in(self, ring, requests, Inbox mailbox not None, uint64_t id, bint kept):
        """Sends to this service from now on.  Called with the turn to send, and one step.  False: this client was closed
        meanwhile, and stays where it is."""
        if self._mailbox is not None:
            if self._calls.closed:
                return False
            self._former.append(self._mailbox)
        self._ring, self._requests, self._mailbox = ring, requests, mailbox
        self._calls, self.id, self.kept = mailbox.calls, id, kept
        self.peer, self.header = requests._peer, ring._header
        mailbox.requests = self.header
        return True

    def request(self, timeout=None, *, expires_s=None, stream=None, shape=None):
        """Returns a slot for a request.  As a context manager it sends the request at the end.

            with client.request() as slot:
                slot.array[...] = image
                call = slot.call
            with call.result() as answer: …

        It waits while the request ring is full, and while other threads use this client's room for
        calls.  While there is no engine, it waits for up to `engine_s` seconds.  So it does while a
        service that was closed is started again, or another one takes its place.

        * `timeout`: in seconds.  None waits for ever, 0 does not wait.
        * `expires_s`: engines leave the call out if none has taken it after so many seconds.
          result() raises when an engine comes to the call, so give result() a time-out as well.
        * `stream`, `shape`: as for Producer.claim.

        Raises:

        * RingFull: the request ring is full.  Or so many calls are in flight that the caller has to
          take or release one first; this is raised at once, with any `timeout`.
        * PeerLost: there is no engine, or the service was closed and no other one has come.
        * RingClosed: this client was closed.
        * RingIncompatible: the service was replaced by one with other shapes, dtypes or memory, or
          by a ring that is no service.  Connect again.
        """
        return self._send(timeout, expires_s, stream, shape)

    cpdef _send(self, timeout, expires_s, stream, shape, waited=None):
        """A slot for a request that has its call.  `waited` is the time-out of a caller that has waited by itself."""
        cdef double begun = 0 if timeout is None and expires_s is None else now_s(), until = begun + seconds(timeout, "timeout")
        patience_s = -1 if until == FOREVER else min(until - begun, threading.TIMEOUT_MAX)
        expires = None if expires_s is None else begun + seconds(expires_s, "expires_s")
        cdef SendsRequest slot = None
        if self.peer.is_forked():  # a thread that the child does not have may have the turn
            self._mailbox._check_usable()
        if not self._sending.acquire(True, patience_s):
            raise RingFull(f"service {self.name!r}: another thread is waiting to send a request")
        try:
            while slot is None:
                if self._calls.closed:
                    self._check_open()
                if is_closed(self.header):
                    self._await_engine(None if until == FOREVER else until)
                if self._former:
                    self._leave_former()
                if self._calls.writing:
                    self._settle()
                if self._mailbox.is_to_receive():
                    self._mailbox.pump(nothing, 0)
                if len(self._calls.live) >= self._calls.limit:
                    self._make_room(None if until == FOREVER else until)
                if not has_engines(self.header, self.kept):
                    self._await_engine(None if until == FOREVER else until)
                try:
                    slot = self._claim(until, timeout if waited is None else waited, stream, shape)
                except RingClosed:
                    if self._calls.closed or not is_closed(self.header):
                        raise
            self._begin(slot, expires)
            return slot
        except BaseException:
            if slot is not None:
                slot._end()
            raise
        finally:
            self._sending.release()

    cdef SendsRequest _claim(self, double until, timeout, stream, shape):
        cdef double slice_s = CLAIM_SLICE_S, left = FOREVER
        while True:
            if until != FOREVER:
                left = max(0.0, until - now_s())
                slice_s = min(left, CLAIM_SLICE_S)
            try:
                return claimed(self._requests, slice_s, stream, shape)
            except RingFull:
                if left <= slice_s:
                    raise self._full(timeout) from None
            self._check_open()
            self._await_engine(None if until == FOREVER else until)
            self._mailbox.pump(nothing, 0)  # the engine that has the slot may wait for room in the client's ring

    cdef int _begin(self, SendsRequest slot, expires) except -1:
        """Gives a claimed slot its call."""
        cdef InFlight call = made(self.kind, NOTHING)
        cdef Request *envelope = <Request *>envelope_of(slot)
        self.last += 1
        call.begin(self._mailbox, self.last, slot._seq, expires)
        call.header = self.header
        envelope.client, envelope.call = self.id, self.last
        envelope.until_ns = expiry_ns(FOREVER if expires is None else expires)
        envelope.credit, envelope.parts = call._seq << 32, self._mailbox.parts
        to_write(next_envelope(slot))
        slot._call = PyWeakref_NewRef(call, None)
        self._calls.begin(call)
        return 0


# ---- slots -------------------------------------------------------------------------------------------------------------------
#
# The reference of a slot to its call is weak, because the slot is used again.  Others decide whether the call is still needed.


cdef object target(reference):
    """What a weak reference leads to; None if it is None, or if nobody has that any more."""
    return None if reference is None else <object>PyWeakref_GetObject(reference)


ctypedef int (*ending)(Slot slot, bint well) except -1


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


cdef class SendsRequest(WriteSlot):
    """The verbs of a slot for a request."""

    cdef public object _call

    def __exit__(self, kind, error, traceback):
        if self.use.open:
            leave(self, kind is None, send_request)
        elif kind is None and self._cut:  # nobody gets what was written
            self._check_open()

    @property
    def call(self):
        """The call that this request makes.  Take it before the request is sent.  Nothing else
        keeps the call, and a call that nobody has is given up."""
        call = target(self._call)
        if call is None:
            raise RingError(f"ring {self._ring!r}: the call of slot {self.index} is over")
        return call

    def _done(self, bint well):
        send_request(self, well)

    def _end(self):
        self._finish(ABANDON, "abandon")
        not_sent(self)


cdef int send_request(Slot slot, bint well) except -1:
    """Sends the request, or ends its call."""
    cdef SendsRequest request = <SendsRequest>slot
    cdef InFlight call
    if not request.use.open:
        request._check_open()
    if not well:
        try:
            return request._finish(ABANDON, "abandon")
        finally:
            if not request.use.open:
                not_sent(request)
    call = target(request._call)
    if call is None:
        raise RingError(f"ring {request._ring!r}: the call of slot {request.index} is over")
    call._sent_at = coarse_s()
    try:
        request._finish(PUBLISH, "publish")
    except BaseException:
        if not request.use.open:  # an open slot can still be sent when its stream can be used again
            not_sent(request)
        raise
    call._mailbox.calls.sent(call)
    return 0


cdef int not_sent(SendsRequest request) except -1:
    """Ends the call, because its request was not sent."""
    cdef InFlight call = target(request._call)
    if call is not None and call._seq == request._seq:  # a Ctrl-C may have left none
        call._mailbox.calls.end(call, RingError(f"{call._label()}: its request was not sent"))
    return 0


cdef class HoldsAnswer(ReadSlot):
    """The verbs of an answer."""

    cdef public object _call

    def __exit__(self, kind, error, traceback):
        if self.use.open:
            leave(self, True, release_answer)

    def _done(self, bint well):
        if not self.use.open:
            self._check_open()
        self._end()

    def _end(self):
        release_answer(self, True)


cdef int release_answer(Slot slot, bint well) except -1:
    """Releases the slot, and ends the call."""
    cdef HoldsAnswer answer = <HoldsAnswer>slot
    cdef InFlight call = target(answer._call)
    try:
        return answer._finish()
    finally:
        if call is not None and not answer.use.open:
            if call.parts is not None and call.part_over(answer):
                call._mailbox.allow_part(call)
            else:
                call._mailbox.calls.end(call)
                call._answer = None


cdef class HandsOut:
    """The iterator over the parts of an answer.  A part is handed out when nothing of Python runs any more before the body of the
    loop has it."""

    cdef readonly InFlight _call

    def __init__(self, InFlight call not None):
        self._call = call

    def __del__(self):
        """As `_leave`.  No Python runs here unless somebody sleeps for the call, so no signal handler does, whose exception
        Python would only print."""
        if self._call is not None and not self._call._mailbox.calls.closed:
            try:
                self._leave()
            except RingError:  # in a forked child it is not ours
                pass

    def _leave(self):
        """Cancels the call, unless all parts were taken.  Releases what has come and was not taken."""
        cdef InFlight call = self._call
        call._give_up(RingError(f"{call._label()} {'is over' if call.over() else 'was cancelled'}"))

    def _hand_out(self):
        return self._call.hand_out()

    def __next__(self):
        while True:
            self._move_on()
            part = self._call.hand_out()
            if part is not None:
                return part
            if self._call.over():  # else another thread has just found that its engine is gone
                raise StopIteration


# ---- the engine --------------------------------------------------------------------------------------------------------------


cdef class Taken:
    """A call that an engine has taken.  service/call.py has its verbs."""

    cdef object __weakref__
    cdef readonly Taker _server
    cdef readonly ReadSlot _slot
    """Of the request."""
    cdef readonly uint64_t _client, _number
    cdef readonly bint _redelivered, _answered
    cdef uint64_t sent, base, first_seq, part_seq, open_seq
    """How many parts were sent; how many had been released before; the sequences, in the client's ring, of the first and the last
    of them, and of one that is being written."""
    cdef bint alone
    """Whether no parts of an engine that had the call before are in the client's ring."""

    def _request(self):
        """The slot of the request.  Raises RingError if the call was answered."""
        if self._answered:
            raise RingError(
                f"service {self._server.name!r}: call {self._number} of client {self._client:x} "
                "was answered; its request is no longer yours"
            )
        return self._slot

    @property
    def array(self):
        """The request, as an array over its slot.  If it has several fields, use `call[name]`."""
        if self._answered:
            self._request()
        return self._slot.array

    def answer(self, *, stream=None, shape=None):
        """Returns a slot for the answer.  As a context manager it sends the answer at the end of
        the block.  `stream` and `shape` are as for Producer.claim.

        It does not wait for the client, which has room for the answers to all its calls.  If the
        client has left meanwhile, the answer goes nowhere.  A client gets its answers in the order
        in which they were claimed, so claim the slot when you have something to write.

        Raises RingError if the call is answered already, and DeviceError.
        """
        if self._answered:
            self._request()
        return self._server._claim_answer(self, stream, shape)

    # ---- its parts

    cdef inline Request *envelope(self) except NULL:
        return <Request *>envelope_of(self._slot)

    @property
    def _window(self):
        """So many parts may be sent and not released."""
        return self.envelope().parts

    def _is_withdrawn(self):
        """Whether its client has given it up."""
        return (gr_load_acquire(<gr_word *>&self.envelope().credit) & CANCELLED) != 0

    def _may_send(self, Answering writer not None):
        """Whether the client has room for another part."""
        cdef Request *envelope = self.envelope()
        cdef uint64_t released = gr_load_acquire(<gr_word *>&envelope.credit) & RELEASED
        cdef uint64_t others = 0
        if self.sent == 0:
            self.base = released
        if not self.alone:
            others = former_of(writer._peer, self._number, self.first_seq if self.sent else NEVER)
            self.alone = others == 0
            if others:
                writer.void_begun()  # else this part could come before those
        return ((self.sent - (released - self.base)) & RELEASED) + others < envelope.parts

    def _is_writing(self, writer):
        """Whether a part is being written."""
        if self.open_seq and all([seq != self.open_seq for _, seq in writer._peer.holding()]):
            self.open_seq = 0  # it was dropped
        return self.open_seq != 0


cdef uint64_t former_of(Peer peer, uint64_t number, uint64_t below) noexcept:
    """How many parts of a call, in sequences below that one, are in its client's ring and not released.  An engine that is dead
    or has left has sent them."""
    cdef gr_ring *ring = peer.gd.me.ring
    cdef Response *envelope
    cdef uint64_t word, take, n = 0
    cdef uint32_t i
    for i in range(ring.slots):
        word = gr_load_acquire(&ring.slot[i].word)
        take = gr_load_acquire(&take_of(ring, i, 0).word)
        if phase_of(word) == GR_READY and (seq_of(take) < seq_of(word)
                                           or (seq_of(take) == seq_of(word) and phase_of(take) == GR_HELD)):
            envelope = <Response *>(ring.meta + i * ring.layout.meta_stride)
            if envelope.call == number and seq_of(word) < below:
                n += 1
    return n


def unanswered(batch):
    """The calls of a batch that were not answered."""
    cdef Taken call
    return [call for call in batch if not call._answered]


def exit_calls(batch, kind, error, traceback):
    """Becomes a method of Batch, for its `with` blocks."""
    if batch._measures is not None or not all_answered(batch):
        batch._leave(error)


cdef bint all_answered(batch) except -1:
    cdef Taken call
    for call in batch:
        if not call._answered:
            return False
    return True


cdef class SendsAnswer(WriteSlot):
    """The verbs of a slot for an answer."""

    cdef public object _call
    cdef public str _ending
    """Which of Counts it adds to.  "undelivered" means that nobody can read it: it goes nowhere."""

    def __exit__(self, kind, error, traceback):
        if self.use.open:
            leave(self, kind is None, send_answer)
        elif kind is None and self._cut:  # nobody gets what was written
            self._check_open()

    def _of(self):
        """The call that it answers; None if nobody has that call any more."""
        return target(self._call)

    def _done(self, bint well):
        send_answer(self, well)

    def _end(self):
        self._finish(ABANDON, "abandon")


cdef int send_answer(Slot slot, bint well) except -1:
    """Sends the answer, and gives the request's slot back.  Or keeps the slot for the next answer."""
    cdef SendsAnswer answer = <SendsAnswer>slot
    cdef Taken call
    cdef bint nowhere = answer._ending == UNDELIVERED
    if not answer.use.open:
        answer._check_open()
    if not well and not nowhere:
        answer.use.open = False
        (<Answering>answer._owner).unlisted = True
        (<Answering>answer._owner).begun.append(answer)
        call = target(answer._call) if answer._ending == SENT else None
        if call is not None:
            call.open_seq = 0
        return 0
    call = target(answer._call)
    if nowhere:
        answer._finish(ABANDON, "abandon")
    else:
        answer._finish(PUBLISH, "publish")
    if answer._ending == SENT:
        if call is not None:
            call.part_seq, call.open_seq = answer._seq, 0
            if call.sent == 0:
                call.first_seq = answer._seq
            call.sent += 1
            call._server._begun()
        return 0
    # Only now: if an engine is killed before this line, another one gets the request.
    if well and call is not None and not call._answered:
        call._answered = True
        call._server._end(call, answer._ending)
    return 0


cdef class Answering(ProducerVerbs):
    """An engine's producer in the ring of one client.  service/call.py has the rest of it."""

    cdef public bint delivers
    """Whether a client gets what is written."""
    cdef public list begun
    """Slots that were claimed for answers that were not sent.  They are not open.  The next answers use them, or the next batch
    makes them void.  A client has room for one answer to each call; if there were more, it could lose one."""
    cdef int64_t alive_ns
    """When its client was last known to live: a time.monotonic_ns()."""
    cdef public bint unlisted
    """Whether it may have claimed slots that its verb has not listed as handed out: those in `begun`, and those that were."""

    cdef bint has_nothing(self) except -1:
        """Whether it has claimed nothing, according to the header's words.  It need not look at all of them, because the list of
        what was handed out has few entries."""
        cdef gr_ring *ring = self._peer.gd.me.ring
        cdef uint64_t word
        cdef uint32_t k
        if self.unlisted:
            if not self._peer.has_nothing():
                return False
            self.unlisted = False
        else:
            for k in range(self.givens):
                word = gr_load_acquire(&ring.slot[self.given[k]].word)
                if phase_of(word) == GR_WRITING and owner_of(word) == self._peer.gd.me.number:
                    return False
        return True


cdef class Reach:
    """An engine's producers in the rings of its clients."""

    cdef readonly dict writers
    """By client; None: it cannot be reached."""
    cdef readonly dict _used
    """The writers that may have claimed slots."""
    cdef public double _tidied

    def __init__(self):
        self.writers, self._used = {}, {}
        self._tidied = now_s()

    cpdef reach(self, uint64_t client, int64_t now=0):
        """Returns this engine's producer in a client's ring; None if the client is dead or has left.  Raises OSError if this
        process has too few descriptors or too little memory to open the ring.  `now` is now_ns(), if the caller knows it."""
        cdef PyObject *found = PyDict_GetItem(self.writers, client)
        cdef Answering writer
        if found == NULL:
            self.writers[client] = writer = self._meet(client)
        else:
            writer = <object>found
        return None if writer is None or is_gone(writer, ALIVE_NS, now) else writer

    cdef SendsAnswer _claim(self, uint64_t client, stream, shape):
        """A slot for an answer: in the client's ring, or one that goes nowhere."""
        cdef Answering writer = self.reach(client)
        if writer is not None:
            self._used[writer] = None
            if stream is not None or shape is not None or writer.begun or writer._peer.gd.gate_host:
                return self.begin(writer, stream, shape)
            try:
                return claimed(writer, ROOM_S, None, None)
            except (RingClosed, RingFull):
                pass
        return self.begin(None, stream, shape)

    cdef int give_up(self) except -1:
        """Gives up what was begun and not sent."""
        cdef Answering writer
        for writer in list(self._used):
            if writer.has_nothing():
                self._used.pop(writer, None)
        if self._used:
            self.void()
        return 0


cpdef bint is_gone(Answering writer, int64_t trust_ns=0, int64_t now=0) except -1:
    """Whether the client of that ring is dead or has left.  Whether it lives is asked again after `trust_ns`, because that is a
    call to the system.  `now` is now_ns(), if the caller knows it."""
    cdef Peer peer = writer._peer
    if gr_load_acquire(&peer.header.ring.head.closed):
        return True
    if now == 0:
        now = now_ns()
    if now - writer.alive_ns >= trust_ns:
        if not peer.header.has_creator():
            return True
        writer.alive_ns = now
    return False


cdef class Taker:
    """An engine's end of the request ring."""

    cdef readonly object _ring
    cdef readonly ConsumerVerbs _requests
    cdef readonly Reach _delivery
    cdef readonly set _calls
    """The calls that it has taken and not answered."""
    cdef readonly object counts
    """What this engine has done so far."""
    cdef readonly Patience _patience
    """How long a batch waits to be filled if nobody says so."""
    cdef Header header
    cdef object kind, kind_of_batch
    cdef readonly bint _engine
    """Whether it takes calls."""
    cdef public object _measures
    """Measures, or None if nobody has asked for figures."""
    cdef bint learns
    """Whether the first answer to the last batch is still to come, and its time is wanted."""
    cdef double told_s
    """The max_wait_s of `counts`."""

    def __init__(self, ring, Reach delivery not None, counts, kind, kind_of_batch, bint engine):
        self._ring, self._delivery, self.counts, self._engine = ring, delivery, counts, engine
        self.kind, self.kind_of_batch = kind, kind_of_batch
        self.header, self._calls, self._patience = ring._header, set(), Patience()

    def _open(self, requests):
        """Called once, with the consumer of the request ring."""
        self._requests = requests

    def take(self, max_batch=1, max_wait_s="learn", timeout=None, *, stream=None):
        """Takes at least one call and at most `max_batch`, in the order in which clients claimed
        them.

        It waits up to `timeout` seconds for the first call.  None waits for ever, and 0 does not
        wait.  Then it waits up to `max_wait_s` more for the batch to fill.  None waits until it is
        full or the service is closed.  With "learn" it waits if it expects more calls, for at most
        a quarter of the time that a batch takes however few calls it has.  It learns both from its
        last batches, and `counts` says how long it waits.  On a GPU `stream` (default: CuPy's
        current one) waits for the requests.  It leaves out calls of dead clients and calls that
        have expired.

        Raises RingTimeout, DeviceError, EndOfStream when the service was closed and no call is left
        to take, and RingClosed when this server was closed.  If it raises, it has taken nothing.
        """
        if not self._engine:
            raise RingError(f"service {self.name!r}: this handle only holds it open (engine=False)")
        self._requests._peer.ask()
        try:
            batch = self._take(max_batch, max_wait_s, timeout, stream)
        except (RingClosed, EndOfStream) as error:
            told = self._ended(error)
            if told is error:
                raise
            raise told from None
        if self._measures is not None:
            self._measure(batch, self._measures)
        return batch

    cdef _take(self, max_batch, max_wait_s, timeout, stream):
        """The calls of a batch."""
        batch = made(self.kind_of_batch, NOTHING)
        cdef Patience patience = self._patience
        cdef Py_ssize_t most = max_batch if type(max_batch) is int else integer(max_batch, "max_batch")
        cdef double now, until, patience_s = seconds(timeout, "timeout"), fill_s = 0
        cdef bint learn = type(max_wait_s) is str and max_wait_s == "learn"
        if most < 1:
            raise ValueError(f"max_batch is at least 1, not {max_batch!r}")
        if not learn:
            fill_s = fill_seconds(max_wait_s)
        now = now_s()
        until = now + patience_s
        self.learns = learn and most > 1
        if self.learns:
            patience.begin(now_ns())
        else:
            patience.handed_out = 0  # this batch is none of its
        if self._delivery._used:
            self._delivery.give_up()
        if self._calls:
            self._settle()
        try:
            while not len(batch):
                if now - self._delivery._tidied >= TIDY_S:
                    self._delivery.tidy()
                self._fill(batch, most, TAKE_SLICE_S if until == FOREVER else min(TAKE_SLICE_S, max(0.0, until - now)), stream)
                if not len(batch):
                    now = now_s()
                    if now >= until:
                        raise RingTimeout(f"service {self.name!r}: no call within {patience_s:g} s")
            if self.learns:
                now = self._learn(batch, most)
                if patience.expects(len(batch)):
                    self._wait(batch, most, now, patience.until / 1e9, stream)
                patience.close(now_ns(), len(batch))
            elif fill_s > 0 and len(batch) < most:
                now = now_s()
                self._wait(batch, most, now, now + fill_s, stream)
        except BaseException:
            self._calls.difference_update(batch)
            self._give_back()
            raise
        self._count(batch)
        return batch

    cdef double _learn(self, batch, Py_ssize_t most) except -1:
        """The first calls of a batch are there.  Returns the time."""
        cdef int64_t now = now_ns()
        cdef Patience patience = self._patience
        cdef Taken call
        cdef gr_slot *slots = self.header.ring.slot
        for call in batch:
            patience.came(gr_load_acquire(&slots[call._slot.index].time_ns))
        patience.open(now, most)
        if self.told_s != patience.max_wait_s:
            self.counts.max_wait_s = self.told_s = patience.max_wait_s
        return now / 1e9

    cdef int _wait(self, batch, Py_ssize_t most, double begun, double until, stream) except -1:
        """Waits for the batch to fill: until it has `most` calls, or as many as are expected if that is learned."""
        cdef double now = begun
        try:
            while len(batch) < most and now < until and not gr_load_acquire(&self.header.ring.head.closed):
                self._fill(batch, most - len(batch), min(TAKE_SLICE_S, until - now), stream)
                now = now_s()
                if self.learns and not self._patience.expects(len(batch)):
                    break
        except EndOfStream:  # closed just now: the next take says so
            pass
        self.counts.waited_s += now_s() - begun
        return 0

    cdef int _count(self, batch) except -1:
        """Called when nothing can keep the calls from the caller any more."""
        cdef Taken call
        cdef Py_ssize_t again = 0
        for call in batch:
            again += call._redelivered
        self.counts.taken += len(batch)
        if again:
            self.counts.redelivered += again
        return 0

    cdef int _fill(self, batch, Py_ssize_t n, double timeout, stream) except -1:
        """Adds up to n calls, or none if none comes within `timeout` seconds.  `batch` is a Batch, which is a list."""
        cdef Request *envelope
        cdef Taken call
        cdef ReadSlot slot
        cdef uint64_t now
        try:
            slots = acquired_many(self._requests, n, timeout, stream)
        except FrameTorn:  # requests of a dead client that were answered already, so nothing is lost
            return 0
        if not slots:
            return 0
        now = now_ns()
        for slot in slots:
            envelope = <Request *>envelope_of(slot)
            to_read(next_envelope(slot))
            if envelope.until_ns < now:
                self._release(slot)
                self.counts.expired += 1
            elif self._delivery.reach(envelope.client, now) is None:
                self._release(slot)
                self.counts.dropped += 1
            else:
                call = made(self.kind, NOTHING)
                call._server, call._slot, call._client, call._number = self, slot, envelope.client, envelope.call
                if slot.use.redelivered:
                    call._redelivered = True
                self._calls.add(call)
                if gr_load_acquire(<gr_word *>&envelope.credit) & CANCELLED:
                    self._end_cancelled(call)
                else:
                    PyList_Append(batch, call)
        return 0

    cdef int _end(self, Taken call, str ending) except -1:
        """Called when the answer was sent, or nobody is there to get it."""
        counts = self.counts
        self._begun()
        if ending == ANSWERED:
            counts.answered += 1
        else:
            setattr(counts, ending, getattr(counts, ending) + 1)
        self._let_go(call)
        return 0

    cdef int _begun(self) except -1:
        """An answer to the last batch was sent, or a part of one."""
        if self.learns:
            self.learns = False
            self._patience.answered(now_ns())
        return 0

    cpdef _let_go(self, Taken call):
        if call._slot.use.open:
            self._release(call._slot)
        self._calls.discard(call)

    cdef int _release(self, ReadSlot slot) except -1:
        """Gives the slot of a request back."""
        try:
            if self._requests._replaced:
                slot.release()
            else:
                slot._finish()
        except FrameTorn:  # the client died
            pass
        return 0

    cpdef _claim_answer(self, Taken call, stream, shape, int status=0, text=""):
        """A slot in the client's ring, or one that goes nowhere."""
        if call.sent or call.open_seq:
            self.in_order(call)
        return self.address(self._delivery._claim(call._client, stream, shape), call,
                            "failed" if status == FAILED else ANSWERED, status, text)

    def _end_cancelled(self, Taken call not None):
        """Ends a call that its client has given up, so that the client has its room again."""
        cdef SendsAnswer slot = self._claim_answer(call, None, None, END)
        cdef bint learns = self.learns
        if slot._ending is ANSWERED:
            slot._ending = "cancelled"
        self.learns = False  # this is no answer
        try:
            send_answer(slot, True)
        finally:
            self.learns = learns

    cdef int in_order(self, Taken call) except -1:
        """Called before a slot is claimed for what follows a part.  The client gets what was claimed first first."""
        cdef Answering writer = self._delivery.reach(call._client)
        if writer is None:
            return 0
        if call._is_writing(writer):
            raise RingError(f"service {self.name!r}: a part of call {call._number} is being written; send it first")
        if writer.begun:
            writer.void_until(call.part_seq)
        return 0

    def _claim_part(self, Taken call not None, Answering writer not None, double timeout, stream, shape):
        """A slot in the client's ring."""
        self.in_order(call)
        self._delivery._used[writer] = None
        cdef SendsAnswer slot = self.address(writer.begin(timeout, stream, shape), call, SENT, PART, "")
        call.open_seq = slot._seq
        return slot

    cdef SendsAnswer address(self, SendsAnswer slot, Taken call, str ending, int status, text):
        """Writes the envelope of an answer.  Returns the slot."""
        cdef bytes encoded
        cdef Response *envelope
        try:
            slot._call = PyWeakref_NewRef(call, None)
            slot._ending = ending if (<Answering>slot._owner).delivers else UNDELIVERED
            envelope = <Response *>envelope_of(slot)
            envelope.call, envelope.status, envelope.part = call._number, status, <uint32_t>call.sent
            envelope.request = call._slot._seq
            envelope.text[0] = 0
            to_write(next_envelope(slot))
            if text:
                encoded = text.encode(errors="replace")[:TEXT_NBYTES]
                memset(envelope.text, 0, TEXT_NBYTES)
                memcpy(envelope.text, <const char *>encoded, len(encoded))
        except BaseException:  # nobody has seen the slot
            slot._end()
            raise
        return slot
