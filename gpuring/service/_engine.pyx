"""An engine's side of a service call: it takes requests and answers them.

What may be touched here, and by whom:

* `Taker` and `Reach` are an engine and its ends of its clients' rings.  Only the one thread that runs the engine uses them.
* `Request.credit` is the one word of a sent request that its client still writes.  The engine only reads it, whenever it likes.

Signal handlers run in the verbs of rings that wait, and in the Python functions that are called for what happens rarely.
Between two other lines of this module none runs.

The classes of gpuring/service derive from these.  They add what is not on the path of every call.
"""
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from gpuring.native.c cimport *
from gpuring.native.clock cimport seconds
from gpuring.native.header cimport Header
from gpuring.native.peer cimport *
from gpuring.service._envelopes cimport *
from gpuring.service._patience cimport Patience
from gpuring.ring cimport inner
from gpuring.ring.slot cimport ReadSlot, Slot, WriteSlot
from gpuring.ring.consumer cimport Consumer
from gpuring.ring.producer cimport Producer
from gpuring.service._envelopes import NEVER, TEXT_NBYTES
from gpuring.errors import EndOfStream, FrameTorn, RingClosed, RingError, RingFull, RingTimeout
from gpuring.arguments import integer

cdef extern from "Python.h":
    int PyList_Append(object, object) except -1

TIDY_S = 1.0
"""An engine looks so often for what the dead left."""

cdef double TAKE_SLICE_S = 0.25  # a wait for calls looks for dead clients so often
cdef int64_t ALIVE_NS = 1000000  # for so long a client is not asked again whether it lives
cdef double ROOM_S = 0.1  # how long to wait for the answer of a dead engine to be cleared
cdef str ANSWERED = "answered", UNDELIVERED = "undelivered", SENT = "sent"  # of a part, which ends no call


cpdef double fill_seconds(max_wait_s) except? -1:
    """How long a batch may wait to be filled, if that is not learned.  Raises TypeError, ValueError."""
    try:
        return seconds(max_wait_s, "max_wait_s")
    except (TypeError, ValueError) as error:
        raise type(error)(f'max_wait_s is a number of seconds >= 0, None or "learn", not {max_wait_s!r}') from None


cpdef Py_ssize_t batch_size(max_batch, Py_ssize_t slots) except 0:
    """How many calls a batch has at most: no more than there are slots for requests.  Raises TypeError, ValueError."""
    if type(max_batch) is not int:
        max_batch = integer(max_batch, "max_batch")
    if max_batch < 1:
        raise ValueError(f"max_batch is at least 1, not {max_batch!r}")
    return slots if max_batch > slots else max_batch


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

    def _is_writing(self, Answering writer not None):
        """Whether a part is being written.  One that was dropped is not, and its slot goes back."""
        if self.open_seq:
            inner.give_back_lost(writer)
            if all([seq != self.open_seq for _, seq in writer._peer.holding()]):
                self.open_seq = 0
        return self.open_seq != 0


cdef uint64_t former_of(Peer peer, uint64_t number, uint64_t below) noexcept:
    """How many parts of a call, in sequences below that one, are in its client's ring and not released.  An engine that is dead
    or has left has sent them."""
    cdef gr_ring *ring = peer.gd.core.ring
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
        elif kind is None and inner.is_cut(self):  # nobody gets what was written
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
        (<Answering>inner.owner(answer)).unlisted = True
        (<Answering>inner.owner(answer)).begun.append(answer)
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


cdef class Answering(Producer):
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
        cdef gr_ring *ring = self._peer.gd.core.ring
        cdef uint64_t word
        cdef uint32_t k
        if self.unlisted:
            if not self._peer.has_nothing():
                return False
            self.unlisted = False
        else:
            for k in range(self.givens):
                word = gr_load_acquire(&ring.slot[self.given[k]].word)
                if phase_of(word) == GR_WRITING and owner_of(word) == self._peer.gd.core.self.number:
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
                return inner.claim(writer, ROOM_S, None, None)
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
            return not peer.is_forked()  # a forked child does not see the locks of its parent's own
        writer.alive_ns = now
    return False


cdef class Taker:
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
        cdef Py_ssize_t most = batch_size(max_batch, self.header.ring.slots)
        cdef double now, until, patience_s = seconds(timeout, "timeout"), fill_s = 0
        cdef bint learn = type(max_wait_s) is str and max_wait_s == "learn"
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
            slots = inner.acquire_many(self._requests, n, timeout, stream)
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
