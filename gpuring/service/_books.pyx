"""A client's books: its calls, how each has ended, who sleeps until that changes, and whose turn it is to receive.

What may be touched here, and by whom:

* `Calls` is what all threads and event loops of a process share of a client.  Each of its methods is one step.  It runs under the
  GIL and calls no Python function before its last change, so no other thread and no signal handler finds it half done.  It needs
  no lock.  Where a list is made, Python's collector may run, and with it any destructor; the books are in order there.
* An `Entry` is in the books of one `Calls` for ever, and only that changes how it has ended.  Any thread may read it.  The
  thread that sends the request writes `_sent_at`.  The thread that receives writes `_answered_below`, and adds parts of the
  answer.  One thread at a time takes and releases parts.  To add parts is one step, and so is to take or release them.

A thread holds a turn for as long as it waits in a verb.  The turn to send is taken before the turn to receive, and whoever has
the turn to receive takes no other one.  An event loop waits for neither turn; it only tries to take them.  Turns are reentrant,
because a signal handler may close the client while its thread has the turn.
"""
from cpython.dict cimport PyDict_GetItem, PyDict_Values
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

from gpuring.printable import counted
from gpuring.native.c cimport gr_forked
from gpuring.ring.read_slot cimport ReadSlot
from gpuring.ring.slot cimport Slot
from gpuring.service._envelopes cimport PyWeakref_NewRef, leave, say, target
from gpuring.service._sleepers cimport wake
from gpuring.service._sleepers import Turn
from gpuring.errors import FrameTorn, PeerLost


cdef class Entry:
    """A call of a client: what its books say of it.  _calls.pyx and service/pending.py have its verbs."""

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
        return f"call {self._number} to service {self.calls.quoted}"

    def _is_done(self):
        return self.done()

    def _is_over(self):
        return self.over()

    cpdef bint _has_answer(self) except -1:
        """Whether the answer is here and not released."""
        cdef HoldsAnswer answer = self._answer
        return answer is not None and answer.use.open and answer._seq == self._answer_seq

    def _withdraw(self):
        """Says to its engine that it was given up."""
        if self._sent_at >= 0 and not gr_forked(self.header.ring):
            say(self.header, self._seq, True)

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

    cdef bint part_over(self, HoldsAnswer part) except -1:
        """The slot of a part was released.  False: it is no part of this call."""
        cdef Py_ssize_t k
        for k in range(len(self.parts)):
            if self.parts[k] is part:
                if not self.is_owed(part._seq) and not self.over():
                    say(self.header, self._seq, False)
                del self.parts[k]
                if k == 0:
                    self.out = False
                if self.gone and not self.parts:
                    self.calls.end(self)
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
        error = f"{self._label()} is lost: its engine died, or left, after {counted(self._come, 'part')} of the answer"
        self.calls.end(self, PeerLost(error), False)
        self._withdraw()

    cdef bint is_owed(self, uint64_t seq) except -1:
        """Called once when the slot of an answer or a part in this sequence was released, before its room is given back.  Whether
        the slot is of no use yet."""
        raise NotImplementedError

    cdef int part_released(self) except -1:
        """A part was released."""
        raise NotImplementedError


cdef class Calls:
    """The calls of one client."""

    def __init__(self, str service not None, limit, parts=0):
        self.quoted, self.limit, self.parts = repr(service), limit, parts
        self.live, self.for_room, self._heirs, self.owed = {}, {}, {}, []
        self.turn = Turn()

    def all(self):
        """The calls that are live now."""
        return PyDict_Values(self.live)

    cpdef bint has_room(self) except -1:
        """Whether there is room for another call, with all its parts."""
        cdef Py_ssize_t needed = len(self.live), slots = 0
        cdef Entry call
        if self.owed:
            for call, _ in self.owed:
                slots += call._number not in self.live
            needed += (slots + self.parts) // (1 + self.parts)
        return needed < self.limit

    cdef int pay(self, uint64_t passed) except -1:
        """The client has received what was below this sequence.  So slots that were left out there are free now: a part may be
        sent, or there is room for a call."""
        cdef Entry call
        cdef uint64_t left_out
        owed, self.owed = self.owed, []
        for call, left_out in owed:
            if left_out >= passed:
                self.owed.append((call, left_out))
            elif not call.over():
                say(call.header, call._seq, False)
        if len(self.owed) < len(owed):
            wake(self.waiting_for_room())
        return 0

    cdef list waiting_for_room(self):
        """Who is to be woken because there is more room.  Those that still have to wait enter again."""
        waiting = list(self.for_room)
        self.for_room.clear()
        return waiting

    # ---- how a call goes

    cdef bint begin(self, Entry call) except -1:
        """False: the client was closed, so nobody would end the call."""
        if self.closed:
            return False
        self.live[call._number] = call
        call.writing = True
        self.writing += 1
        return True

    cdef void sent(self, Entry call) noexcept:
        if call.writing:
            call.writing = False
            self.writing -= 1

    cdef bint arrive(self, Entry call, HoldsAnswer answer) except -1:
        """Gives the answer to the call.  False: the call does not want it any more."""
        of = PyWeakref_NewRef(call, None)
        if call.over():
            return False
        answer._call = of
        call._answer, call._answer_seq = answer, answer._seq
        if call.sleepers:
            wake(list(call.sleepers))
        return True

    cdef int add(self, Entry call, HoldsAnswer part) except -1:
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

    cdef int finish(self, Entry call, uint64_t seq) except -1:
        """All parts of the answer have come, and nothing is behind them."""
        call._answer_seq, call.in_parts = seq, True
        if call.sleepers:
            wake(list(call.sleepers))
        self.end(call)
        return 0

    def end(self, Entry call not None, error=None, bint gone=True):
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
                for_room = self.waiting_for_room()
        if for_it is not None:
            wake(for_it)
        if for_room is not None:
            wake(for_room)

    def close(self, error):
        """Ends every call.  `error` makes the error of each.  What has come and was not handed out goes with the client."""
        cdef Entry call
        self.closed = True
        wake(list(self.for_room))
        for call in self.all():
            lost = error(call)
            self.end(call, lost, False)
            if call._error is None and call._left_over():
                call._error = lost

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
    cdef Entry call = target(answer._call)
    try:
        return answer._finish()
    finally:
        if call is not None and not answer.use.open:
            if call.parts is not None and call.part_over(answer):
                call.part_released()
            else:
                call.is_owed(answer._seq)
                call.calls.end(call)
                call._answer = None
