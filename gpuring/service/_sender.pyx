"""How a client sends requests.

`Sender` is the client's end of the request ring.  Only the thread that has the turn to send uses it.  If the service is
replaced, this thread gives it another ring and another `Inbox` in one step (`_settle_in`).  A thread that does not have the
turn reads `_mailbox` once, and goes on with what it has read.  Threads and tasks that wait there are woken by the `Calls` of
that mailbox, also afterwards.

The turn to send is taken before the turn to receive (_books.pyx has more on both).
"""
import threading

from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint32_t, uint64_t

from gpuring.service._books cimport Calls
from gpuring.service._calls cimport InFlight
from gpuring.service._inbox cimport Inbox
from gpuring.native.c cimport *
from gpuring.native.clock cimport seconds
from gpuring.native.header cimport Header
from gpuring.native.peer cimport *
from gpuring.service._envelopes cimport *
from gpuring.ring cimport inner
from gpuring.ring.slot cimport Slot
from gpuring.ring.write_slot cimport WriteSlot
from gpuring.ring.producer cimport Producer
from gpuring.service._envelopes import NEVER
from gpuring.service._sleepers import nothing
from gpuring.native import REAPED, look
from gpuring.errors import PeerLost, RingClosed, RingError, RingFull, RingTimeout

cdef double CLAIM_SLICE_S = 0.05  # a wait for a slot looks for engines and answers so often


cdef inline uint64_t expiry_ns(double expires) noexcept:
    """When a call expires, for its envelope.  C does not say what becomes of a number that is out of range."""
    cdef double ns = expires * 1e9
    if ns >= 2.0**64:
        return <uint64_t>NEVER
    return <uint64_t>ns if ns > 0 else 0


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
    """Whether the ring was closed, by its creator or because it was replaced."""
    return gr_load_acquire(&header.ring.head.closed) != 0


cdef class Sender:
    """A client's end of the request ring."""

    cdef readonly object _ring
    cdef readonly Producer _requests
    cdef readonly object _sending
    """The turn to send.  Its owner claims, and waits for a slot, for room or for an engine."""
    cdef readonly Inbox _mailbox
    cdef readonly Calls _calls
    cdef readonly list _former
    """The inboxes in services that were replaced, which this client has not left yet."""
    cdef readonly uint64_t _id
    cdef Peer peer
    cdef Header header
    cdef bint kept
    cdef object kind
    cdef uint64_t last, drops

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
        self._calls, self._id, self.kept = mailbox.calls, id, kept
        self.peer, self.header = requests._peer, inner.header(ring)
        mailbox.requests = self.header
        return True

    def request(self, timeout=None, *, expires_s=None, stream=None, shape=None):
        """Returns a slot for a request.  As a context manager it sends the request at the end.

            with client.request() as slot:
                slot.array[...] = image
                call = slot.call
            with call.result() as answer: …

        It waits while the request ring is full, and while other threads use this client's room for
        calls.  It also waits, for up to `engine_s` seconds, while there is no engine, and while a
        service that was closed is started again or another one takes its place.

        * `timeout`: in seconds.  None waits for ever, 0 does not wait.
        * `expires_s`: engines leave the call out if none has taken it after so many seconds.
          result() raises when an engine comes to the call, so give result() a time-out as well.
        * `stream`, `shape`: as for Producer.claim.

        Raises:

        * RingFull: the request ring is full.  Or all `calls` of this client are in flight, and only
          the caller can take or release one; this is raised at once, with any `timeout`.
        * PeerLost: there is no engine, or the service was closed and no other one has come.
        * RingClosed: this client was closed.
        * RingTimeout: another service has taken the place of a closed one, and for 5 s another
          process, which may be stopped, has kept this client from joining it.
        * RingIncompatible: the service was replaced by one with other shapes, dtypes or memory, or
          by a ring that is not a service.  Connect again.
        """
        return self._send(timeout, expires_s, stream, shape)

    def try_request(self, *, expires_s=None, stream=None, shape=None):
        """Returns a slot for a request if there is room for it.  Otherwise it counts the request as
        dropped and returns None.

            slot = client.try_request(expires_s=0.1)
            if slot is not None:
                with slot:
                    slot.array[...] = image
                    call = slot.call

        It is for a client that must not wait, such as a camera that asks a detector.  It returns
        None wherever `request` would wait, or would raise RingFull: the request ring is full, all
        `calls` of this client are open, another thread is sending, or there is no engine, also
        while the service is started again.  So a client goes on over restarts of its engines, and
        does not notice them.  `gpuring.health` says whether there is an engine.

        `dropped` counts what was dropped.  So do the statistics of the request ring, for each
        client and in all.  `expires_s`, `stream` and `shape` are those of `request`.

        Does not wait.  If another service has taken the place of a closed one, it joins that, which
        takes some milliseconds.  On a GPU with memory="vmm" or "pool" it may then wait for up to 5 s
        until a process of that service has handed the memory on.  Raises what `request` raises,
        except RingFull and RingTimeout, and PeerLost only if this client itself was taken for dead.
        """
        try:
            return self._send(0, expires_s, stream, shape)
        except RingTimeout:  # such as RingFull
            pass
        except PeerLost:
            if look(self.peer)[0] == REAPED:
                raise
        self.drops += 1
        self.peer.count_drop()
        return None

    @property
    def dropped(self):
        """How many requests `try_request` has dropped, also in services that were replaced."""
        return self.drops

    def _sends_at_once(self):
        """Whether no other task of this event loop waits to send, and there is room for a call."""
        return not self._mailbox.tasks()._queue and self._calls.has_room()

    cpdef _send(self, timeout, expires_s, stream, shape, waited=None):
        """A slot for a request that has its call.  `waited` is the time-out of a caller that has waited by itself."""
        cdef double begun = 0 if timeout is None and expires_s is None else now_s(), until = begun + seconds(timeout, "timeout")
        patience_s = -1 if until == FOREVER else min(until - begun, threading.TIMEOUT_MAX)
        expires = None if expires_s is None else begun + seconds(expires_s, "expires_s")
        cdef SendsRequest slot = None
        if self.peer.is_forked():  # a thread that the child does not have may have the turn
            self._mailbox._check_usable()
        if not self._sending.acquire(True, patience_s):
            raise self._no_turn(timeout if waited is None else waited, "another thread is")
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
                if not self._calls.has_room():
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
                return inner.claim(self._requests, slice_s, stream, shape)
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
        envelope.client, envelope.call = self._id, self.last
        envelope.until_ns = expiry_ns(FOREVER if expires is None else expires)
        envelope.credit, envelope.parts = call._seq << 32, self._mailbox.parts
        clear_meta(slot, sizeof(Request))
        trace_call(slot, self._id, self.last)
        to_write(next_envelope(slot))
        slot._call = PyWeakref_NewRef(call, None)
        if not self._calls.begin(call):
            self._check_open()
        return 0


cdef class SendsRequest(WriteSlot):
    """The verbs of a slot for a request."""

    cdef public object _call

    def __enter__(self):
        cdef InFlight call = target(self._call)
        if call is not None:
            call.in_block = PyThread_get_thread_ident()
        return self

    def __exit__(self, kind, error, traceback):
        if self.use.open:
            leave(self, kind is None, send_request)
        elif kind is None and inner.is_cut(self):  # nobody gets what was written
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
    """Sends the request, or ends its call.  A call that was cancelled is not sent."""
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
    if call._error is not None and not call.calls.closed:  # it was given up meanwhile
        return send_request(request, False)
    call._sent_at = coarse_s()
    try:
        request._finish(PUBLISH, "publish")
    except BaseException:
        if not request.use.open:  # an open slot can still be sent when its stream can be used again
            not_sent(request)
        raise
    call.calls.sent(call)
    return 0


cdef int not_sent(SendsRequest request) except -1:
    """Ends the call, because its request was not sent."""
    cdef InFlight call = target(request._call)
    if call is not None and call._seq == request._seq:  # a Ctrl-C may have left none
        call.calls.end(call, RingError(f"{call._label()}: its request was not sent"))
    return 0
