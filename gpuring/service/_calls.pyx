"""A client's calls: their books, how their answers arrive, and the parts of answers.  _sender.pyx sends the requests, and
_engine.pyx has the other side.

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
from cpython.dict cimport PyDict_GetItem, PyDict_Values
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint32_t, uint64_t

from gpuring.native.c cimport *
from gpuring.native.clock cimport seconds
from gpuring.native.header cimport Header
from gpuring.service._envelopes cimport *
from gpuring.service._sleepers cimport AsleepTask, Thread, asleep_task, asyncio, running_loop, wake
from gpuring.ring cimport inner
from gpuring.ring.slot cimport ReadSlot, Slot
from gpuring.ring.consumer cimport Consumer
from gpuring.service._envelopes import TEXT_NBYTES
from gpuring.service._sleepers import Turn, nothing
from gpuring.errors import CallFailed, FrameTorn, PeerLost, RingClosed, RingError, RingTimeout

cdef extern from "core/atomics.h" nogil:
    bint gr_cas(gr_word *, uint64_t, uint64_t)

cdef extern from "string.h":
    size_t strnlen(const char *, size_t)

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(object)

SLICE_S = 0.05
"""A wait looks so often what happened to the calls."""


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


cdef class InFlight:
    """A call of a client: what its books say of it.  service/pending.py has its verbs."""

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

    cpdef bint enter(self, sleeper, dict sleepers, ready) except -1:
        """Adds a sleeper to `sleepers`.  Whoever makes `ready` true wakes them.  False: it need not sleep."""
        sleepers[sleeper] = None  # first: if `ready` becomes true now, it is woken
        if self.closed or ready():
            sleepers.pop(sleeper, None)
            return False
        return True

    cpdef leave(self, sleeper, dict sleepers):
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

    def __init__(self, Inbox mailbox not None, loop, dict queue not None, kind):
        self._mailbox, self._loop, self._queue, self.kind, self._asleep = mailbox, loop, queue, kind, {}

    async def until(self, ready, deadline, dict sleepers=None, stream=None):
        """Waits as Inbox.pump does.

        It looks first if nobody sleeps.  Else the loop does so in its next turn, once for all tasks that fall asleep in this one.
        On a GPU only the loop receives, for one task after the other."""
        cdef InFlight call = ready if isinstance(ready, InFlight) else None
        cdef Calls calls = self._mailbox.calls
        cdef double until = FOREVER if deadline is None else deadline, left
        cdef AsleepTask task
        is_ready = ready if call is None else call._is_done
        while True:
            left = FOREVER if until == FOREVER else max(0.0, until - now_s())
            if call is not None and left > 0 and (self._asleep or self._mailbox.on_device):
                if call.done():
                    return True
            elif self._mailbox.pump(ready, 0, stream):
                return True
            if calls.closed or left == 0:
                return False
            if call is not None:
                sleepers = call._sleepers
            task = asleep_task(self.kind, self._loop, self._asleep, is_ready, stream)
            try:
                if calls.enter(task, sleepers, is_ready):
                    self._asleep[task.key] = task
                    if not self._listening or self._looks_at + SLICE_S < now_s():  # again, if it was interrupted
                        self._listen()
                    if left == FOREVER:
                        await task.woken
                    else:
                        await task.sleep(left)
            finally:
                calls.leave(task, sleepers)
                self._asleep.pop(task.key, None)
                if self._listening and not self._asleep:
                    self._hear()


# ---- the client's ring --------------------------------------------------------------------------------------------------------


cdef class Inbox:
    """A client's end of its own ring, where its answers arrive.  One thread at a time receives for all threads."""

    def __init__(self, str service not None, limit, parts=0):
        self.service, self.quoted = service, repr(service)
        self.calls, self._loops, self.untold, self.parts = Calls(limit), {}, {}, parts
        self._looked = now_s()

    def _open(self, answers):
        """Called once, with the consumer of the client's ring."""
        self._answers, self.peer = answers, answers._peer
        self.on_device = self.peer.device is not None

    cpdef LoopTasks tasks(self):
        """The tasks of the running loop."""
        loop = running_loop()
        cdef PyObject *tasks = PyDict_GetItem(self._loops, loop)
        return self._tasks_of(loop) if tasks == NULL else <LoopTasks>tasks

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

        With `only` it stops when that call is done, and with `one` before the second answer that is not written yet.  On a GPU the
        stream waits for each of these, so it would wait for answers that nobody has asked for, and the next request would come
        after them."""
        cdef double now
        cdef HoldsAnswer answer
        cdef bint any = False
        self.dispatched = self.peer.gd.core.cursor.pos
        if timeout > 0 or self.peer.has_news():
            answer = inner.acquire(self._answers, timeout, stream)
            while answer is not None:
                self._dispatch(answer)
                any = True
                if (only is not None and only.done()) or not (self.peer.has_whole_frame() if one else self.peer.has_frame()):
                    break
                self.dispatched = self.peer.gd.core.cursor.pos
                answer = inner.acquire(self._answers, 0, stream)
            self.dispatched = self.peer.gd.core.cursor.pos
        if self.polled:
            self.arm()
        now = coarse_s()
        if now - self._looked >= SLICE_S:
            self._looked = now
            if self.peer.behind() > 0 and not self.peer.has_news():  # perhaps answers that were given up: the verb passes over them
                answer = inner.acquire(self._answers, 0, stream)
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
            self.peer.use_on(answer.index, inner.stream_of(self._answers, stream))

    def fileno(self):
        """A descriptor that is readable when an answer may have come to any call."""
        self._check_usable()
        notifier = inner.notifier(self._answers)
        if not self.polled:
            notifier.arm(self.peer)
            self.polled = True  # only now: nobody may have found a call that was not told before the descriptor was armed
        return notifier.fileno()

    cdef int allow_part(self, InFlight call) except -1:
        """A part was released, so one more may be sent.  What is there is received before, so that parts never fill the ring from
        behind: a slot that was released is then not counted twice."""
        if not call.over() and not self.peer.is_forked():  # else its parent has the part
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
        notifier = inner.notifier(self._answers)
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
        cdef gr_peer_entry *entry = &self.peer.gd.core.ring.peer[number]
        return gr_load_acquire(&entry.id) == id and state_of(gr_load_acquire(&entry.word)) != GR_FREE


cdef discard(HoldsAnswer answer):
    try:
        answer._finish()  # not Answer.release: its call is over, or has another answer
    except FrameTorn:
        pass


cdef class HoldsAnswer(ReadSlot):
    """The verbs of an answer."""

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

    def __iter__(self):
        return self

    def __aiter__(self):
        return self

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
