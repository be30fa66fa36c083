"""How an engine takes calls.  Only the one thread that runs the engine uses a `Taker`.

Signal handlers run in the verbs of rings that wait, and in the Python functions that are called for what happens rarely.
Between two other lines of this module none runs.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from gpuring.native.c cimport *
from gpuring.native.clock cimport seconds
from gpuring.native.header cimport Header
from gpuring.ring cimport inner
from gpuring.ring.consumer cimport Consumer
from gpuring.ring.read_slot cimport ReadSlot
from gpuring.service._envelopes cimport *
from gpuring.service._patience cimport Patience
from gpuring.service._reach cimport Answering, Reach
from gpuring.service._taken cimport SendsAnswer, Taken, TakesCalls, send_answer
from gpuring.service._envelopes import TEXT_NBYTES
from gpuring.arguments import integer
from gpuring.errors import EndOfStream, FrameTorn, RingClosed, RingError, RingTimeout

cdef extern from "Python.h":
    int PyList_Append(object, object) except -1

TIDY_S = 1.0
"""An engine looks so often for what the dead left."""

cdef double TAKE_SLICE_S = 0.25  # a wait for calls looks for dead clients so often
cdef str ANSWERED = "answered", UNDELIVERED = "undelivered", SENT = "sent"  # of a part, which ends no call


cpdef double fill_seconds(max_wait_s) except? -1:
    """How long a batch may wait to be filled, if that is not learned.  Raises TypeError, ValueError."""
    try:
        return seconds(max_wait_s, "max_wait_s")
    except (TypeError, ValueError) as error:
        raise type(error)(f'max_wait_s must be a number of seconds >= 0, None or "learn", not {max_wait_s!r}') from None


cpdef Py_ssize_t batch_size(max_batch, Py_ssize_t slots) except 0:
    """How many calls a batch has at most: no more than there are slots for requests.  Raises TypeError, ValueError."""
    if type(max_batch) is not int:
        max_batch = integer(max_batch, "max_batch")
    if max_batch < 1:
        raise ValueError(f"max_batch must be at least 1, not {max_batch!r}")
    return slots if max_batch > slots else max_batch


cdef class Taker(TakesCalls):
    """An engine's end of the request ring."""

    cdef readonly object _ring
    cdef readonly Consumer _requests
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
        self.header, self._calls, self._patience = inner.header(ring), set(), Patience()

    def _open(self, requests):
        """Called once, with the consumer of the request ring."""
        self._requests = requests

    def take(self, max_batch=1, max_wait_s="learn", timeout=None, *, stream=None):
        """Takes at least one call and at most `max_batch`, in the order in which clients claimed
        them.

        It waits up to `timeout` seconds for the first call.  None waits for ever, and 0 does not
        wait.  Then it waits up to `max_wait_s` more for the batch to fill.  None waits until it is
        full or the service is closed.  With "learn" it waits if it expects more calls, for at most
        a quarter of the fixed time that a batch takes however few calls it has.  It learns both
        from its last batches, and `counts` says how long it waits.  On a GPU `stream` (default: the
        current one) waits for the requests.  It leaves out calls of dead clients and calls that
        have expired.

        With the first call of a client the engine joins the ring of that client's answers.  That
        takes up to 5 s, whatever `timeout` is, if a process that is stopped has the membership lock
        of that ring, or has to hand over its GPU memory (memory="vmm" or "pool").

        Raises RingTimeout, DeviceError, EndOfStream when the service was closed and no call is left
        to take, and RingClosed when this server was closed.  If it raises, it has taken nothing.
        """
        if not self._engine:
            raise RingError(
                f"service {self.name!r}: this server was made with engine=False, so it takes no calls"
            )
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
        cdef Py_ssize_t most = batch_size(max_batch, self.header.ring.slots), late = self.header.ring.slots
        cdef double now, until, patience_s = seconds(timeout, "timeout"), fill_s = 0
        cdef bint found, learn = type(max_wait_s) is str and max_wait_s == "learn"
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
                found = self._fill(batch, most, TAKE_SLICE_S if until == FOREVER else min(TAKE_SLICE_S, max(0.0, until - now)), stream)
                if not len(batch):
                    now = now_s()
                    # Behind what was left out there may be a call.  Of those that have come later none is waited for.
                    late -= now >= until
                    if now >= until and (not found or late < 0):
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
        """Adds up to n calls, or none if none comes within `timeout` seconds.  `batch` is a Batch, which is a list.  Returns
        whether there was any, also if it was left out."""
        cdef Request *envelope
        cdef Taken call
        cdef ReadSlot slot
        cdef uint64_t now
        try:
            slots = inner.acquire_many(self._requests, n, timeout, stream)
        except FrameTorn:  # requests of a dead client that were answered already, so nothing is lost
            return 1
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
        return 1

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
            if inner.has_own_verbs(self._requests):
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
            slot._ending = ending if (<Answering>inner.owner(slot)).delivers else UNDELIVERED
            envelope = <Response *>envelope_of(slot)
            envelope.call, envelope.status, envelope.part = call._number, status, <uint32_t>call.sent
            envelope.request = call._slot._seq
            clear_meta(slot, sizeof(Response))
            trace_call(slot, call._client, call._number)
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
