"""A call that an engine has taken: its request, and the slots for its answer and for parts of it."""
from libc.stdint cimport uint32_t, uint64_t

from gpuring.native.c cimport *
from gpuring.native.peer cimport *
from gpuring.ring cimport inner
from gpuring.ring.slot cimport Slot
from gpuring.ring.write_slot cimport WriteSlot
from gpuring.service._envelopes cimport *
from gpuring.service._reach cimport Answering
from gpuring.service._envelopes import NEVER
from gpuring.errors import RingError

cdef str UNDELIVERED = "undelivered", SENT = "sent"  # of a part, which ends no call


cdef class TakesCalls:
    """What a call needs of its engine (_engine.Taker)."""

    cdef int _begun(self) except -1:
        raise NotImplementedError

    cdef int _end(self, Taken call, str ending) except -1:
        raise NotImplementedError

    cpdef _claim_answer(self, Taken call, stream, shape, int status=0, text=""):
        raise NotImplementedError


cdef class Taken:
    """A call that an engine has taken.  service/call.py has its verbs."""

    def _request(self):
        """The slot of the request.  Raises RingError if the call was answered."""
        if self._answered:
            raise RingError(
                f"service {self._server.name!r}: call {self._number} of client {self._client:016x} "
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
