"""The compiled part of pending.py: how a call waits for its answer, takes its parts, and is given up.

_books.pyx says who may touch what, _inbox.pyx how answers arrive, and _sender.pyx sends the requests.  _taken.pyx has the other
side.  The classes of gpuring/service derive from these.  They add what is not on the path of every call.
"""
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint64_t

from gpuring.native.clock cimport seconds
from gpuring.service._books cimport Entry
from gpuring.service._inbox cimport Inbox
from gpuring.service._sleepers cimport asyncio
from gpuring.errors import RingClosed, RingError, RingTimeout
from gpuring.registry import diagnosis
from gpuring.ring import caller


cdef class InFlight(Entry):
    """A call of a client.  service/pending.py has the rest of its verbs."""

    def __init__(self, Inbox mailbox not None, uint64_t number, uint64_t seq, expires):
        self.begin(mailbox, number, seq, expires)

    cdef void begin(self, Inbox mailbox, uint64_t number, uint64_t seq, expires) noexcept:
        self._mailbox, self.calls = mailbox, mailbox.calls
        self._number, self._seq, self._expires = number, seq, expires
        self._sent_at = -1
        self._thread = PyThread_get_thread_ident()

    def _asked(self):
        """Somebody has looked what has come."""
        if self._mailbox.polled:
            self._mailbox.tell(self)

    def result(self, timeout=None, *, stream=None):
        """Waits for the answer: `with call.result() as slot: slot.array`.  Its release makes room
        for another call.

        On a GPU `stream` (default: the current one) waits until the answer is written.  It
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
        torn.  After a FrameTorn or a Ctrl-C the call is still in flight, and after a RingTimeout
        its request may still be sent if it was not.  In the block of its request it raises
        RingError.
        """
        self._check_sent(timeout)
        return self._outcome_of(self._mailbox.wait(self, timeout, stream), timeout, stream)

    cpdef int _check_sent(self, timeout) except -1:
        """Raises RingError if this thread would wait for the answer in the block of the request.  Without a block, another thread
        may send it.  If there is none, and no `timeout`, this warns."""
        if self._sent_at >= 0 or self._error is not None:
            return 0
        if self.in_block == PyThread_get_thread_ident():
            raise RingError(f"{self._label()} has not been sent yet: its request is sent at the end of its block, or by publish()")
        if timeout is None and diagnosis.is_alone():
            caller.warn(
                f"{self._label()}: this wait may never end: its request has not been sent, and this process has no other thread "
                "of Python that could send it. Call publish() first, or write the request in a with block", RuntimeWarning)
        return 0

    def _give_up(self, error):
        """Ends the call with that error.  Its answer is discarded, now or when it comes."""
        self.calls.end(self, error, False)
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

    def _was_closed(self):
        return RingClosed(f"{self._label()}: this client was closed")

    cpdef _outcome_of(self, bint done, timeout, stream):
        """The answer, or what result() raises."""
        if not done:
            if self.calls.closed:  # just now, and close has not come to this call yet
                error = self._was_closed()
            elif self._sent_at < 0:  # the call would keep the error, its traceback the slot, and engines would wait for that
                raise RingTimeout(f"{self._label()}: its request was not sent within {seconds(timeout, "timeout"):g} s")
            else:
                error = self._late("answer", timeout)
            self.calls.end(self, error, False)
            self._withdraw()
        elif self._mailbox.polled:
            self._mailbox.tell(self)
        if self._error is not None:
            raise self._error.with_traceback(None)  # that of an earlier call would grow
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

    cdef hand_out(self):
        """The next part belongs to the caller.  None: there is none any more."""
        part = self._next_part()
        if self._error is not None and (part is None or self.calls.closed):
            raise self._error.with_traceback(None)
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

    def _forget_if_left(self):
        """If its engine is gone and nobody has seen a part, the next engine gives the answer from its beginning.  What is here
        would take up room that this engine waits for.  One step: another thread may hand a part out."""
        if not self._handed and self._was_left():
            self._begin_again()

    cdef bint is_owed(self, uint64_t seq) except -1:
        return self._mailbox.is_owed(self, seq)

    cdef int part_released(self) except -1:
        return self._mailbox.part_released()


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
        if self._call is not None and not self._call.calls.closed:
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
