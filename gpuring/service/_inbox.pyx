"""A client's end of its own ring: how answers are received, by a thread for all threads and by each event loop for its tasks.

Only the thread that has the turn to receive (`Calls.turn`) uses an `Inbox`, except for `pump`, `wait`, `fileno` and what only
reads.

Signal handlers run in the verbs of rings that wait, and in the Python functions that are called for what happens rarely.
Between two other lines of this module none runs.  So a turn that was taken is given back, and an answer that was received is
given to its call, without any repair.
"""
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from gpuring.native.c cimport *
from gpuring.native.clock cimport seconds
from gpuring.ring cimport inner
from gpuring.service._books cimport Calls, Entry, HoldsAnswer, discard
from gpuring.service._envelopes cimport *
from gpuring.service._sleepers cimport AsleepTask, Thread, asleep_task, running_loop
from gpuring.service._envelopes import TEXT_NBYTES
from gpuring.service._sleepers import nothing
from gpuring.errors import CallFailed

cdef extern from "string.h":
    size_t strnlen(const char *, size_t)

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(object)

SLICE_S = 0.05
"""A wait looks so often what happened to the calls."""


cdef class Inbox:
    """A client's end of its own ring, where its answers arrive.  One thread at a time receives for all threads."""

    def __init__(self, str service not None, limit, parts=0):
        self.service, self.calls, self.parts = service, Calls(service, limit, parts), parts
        self._loops, self.untold = {}, {}
        self._looked = now_s()

    def _open(self, answers):
        """Called once, with the consumer of the client's ring."""
        self._answers, self.peer = answers, answers._peer
        self.on_device = self.peer.device is not None

    cpdef tasks(self):
        """The tasks of the running loop."""
        loop = running_loop()
        cdef PyObject *tasks = PyDict_GetItem(self._loops, loop)
        return self._tasks_of(loop) if tasks == NULL else <object>tasks

    cpdef bint wait(self, Entry call, timeout, stream=None) except -1:
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
        cdef Entry call = ready if isinstance(ready, Entry) else None
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

    cpdef bint receive(self, double timeout, stream, Entry only=None, bint one=False) except -1:
        """Receives what is there, and returns whether that was anything.  Called with the turn to receive.

        With `only` it stops when that call is done, and with `one` before the second answer that is not written yet.  On a GPU the
        stream waits for each of these, so it would wait for answers that nobody has asked for, and the next request would come
        after them."""
        cdef double now
        cdef HoldsAnswer answer
        cdef bint any = False
        self.dispatched = self.peer.gd.core.cursor.pos
        if timeout > 0 or self.calls.owed or self.peer.has_news():  # a slot that is owed may be before one that is being written
            answer = inner.acquire(self._answers, timeout, stream)
            while answer is not None:
                self._dispatch(answer)
                any = True
                if (only is not None and only.done()) or not (self.peer.has_whole_frame() if one else self.peer.has_frame()):
                    break
                self.dispatched = self.peer.gd.core.cursor.pos
                answer = inner.acquire(self._answers, 0, stream)
            self.dispatched = self.peer.gd.core.cursor.pos
        if self.calls.owed:
            self.calls.pay(self.peer.gd.core.cursor.pos)
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
            self.polled = True  # only now: before the descriptor is armed, nobody may find a call that was not reported
        return notifier.fileno()

    cdef bint is_owed(self, Entry call, uint64_t seq) except -1:
        """Called when the slot of an answer or a part in this sequence was released.  If an engine has left the slot out meanwhile,
        and the position is not beyond that sequence yet, the slot is owed until it is (decision 6).  If it counted twice, answers
        that were not received would be overwritten."""
        cdef uint64_t slots = self.peer.gd.core.ring.slots, frontier, left_out
        if self.peer.is_forked():  # its parent has the slot
            return True
        frontier = gr_frontier(self.peer.gd.core.ring)
        if frontier <= seq + slots:
            return False
        left_out = frontier - 1 - (frontier - 1 - seq) % slots
        if left_out < self.peer.gd.core.cursor.pos:
            return False
        self.calls.owed.append((call, left_out))
        return True

    cdef int part_released(self) except -1:
        """A part was released.  If something is owed, what is there is received, because engines may wait for it."""
        if self.calls.owed and not self.peer.is_forked() and self.peer.has_frame():
            self.pump(nothing, 0)
        return 0

    cdef arm(self):
        """Called with the turn to receive.  The descriptor is readable now if somebody has a call in `untold`.  It is at no time
        unreadable then, because another thread may look at it at any time."""
        cdef Entry call
        notifier = inner.notifier(self._answers)
        for number in list(self.untold):
            call = self.untold_call(number)
            if call is not None and Py_REFCNT(call) > 1 + (number in self.calls.live):  # more than ours
                notifier.set()
                return
        notifier.arm(self.peer)

    cdef Entry untold_call(self, number):
        """The call of that number in `untold`, if it is still there and exists."""
        cdef PyObject *of = PyDict_GetItem(self.untold, number)
        if of == NULL:
            return None
        call = <object>PyWeakref_GetObject(<object>of)
        if call is None:
            self.untold.pop(number, None)
        return call

    cdef tell(self, Entry call):
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
        cdef Entry call = None if found == NULL else <Entry>found
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

    cdef bint _take_part(self, Entry call, HoldsAnswer answer, Response *envelope) except -1:
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


cdef class LoopTasks:
    """The tasks of one event loop that wait for something of one client.  service/tasks.py has the rest of it."""

    def __init__(self, Inbox mailbox not None, loop, dict queue not None, kind):
        self._mailbox, self._loop, self._queue, self.kind, self._asleep = mailbox, loop, queue, kind, {}

    async def until(self, ready, deadline, dict sleepers=None, stream=None):
        """Waits as Inbox.pump does.

        It looks first if nobody sleeps.  Else the loop does so in its next turn, once for all tasks that fall asleep in this one.
        On a GPU only the loop receives, for one task after the other."""
        cdef Entry call = ready if isinstance(ready, Entry) else None
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
