"""The consumer, which acquires a frame, reads it and releases it.  frames.pyx has the loop over its frames."""
from libc.stdint cimport int64_t, uint32_t

from gpuring.native.c cimport *
from gpuring.native.clock cimport deadline_of
from gpuring.native.peer cimport *
from gpuring.ring.endpoint cimport Endpoint, stream_of
from gpuring.ring.read_slot cimport ReadSlot
from gpuring.ring.slot_owner cimport remember

from gpuring import native
from gpuring.errors import FrameTorn, RingTimeout, raise_first
from gpuring.registry import diagnosis
from gpuring.registry.subscriptions import text_of
from gpuring.ring import waiting
from gpuring.ring.async_frames import AsyncFrames
from gpuring.ring.batch import ReadBatch
from gpuring.ring.frames import Frames


cdef class Consumer(Endpoint):
    """Reads frames from a ring.  `Ring.consumer()` makes it.  One thread at a time uses it."""

    _slot_type = ReadSlot
    _role = "consumer"
    _batch = ReadBatch
    _takes = ("acquire", "latest", "acquire_many")
    _ends = (native.ENDED, native.PEER_LOST)

    def __init__(self, ring, Peer peer not None, lossless, again=None, deaths=False):
        self._lossless = lossless
        self._untold = []
        self._deaths = deaths
        Endpoint.__init__(self, ring, peer, again)
        self._mark(peer)

    cdef int _mark(self, Peer peer) except -1:
        """What the C library has to know of this consumer."""
        peer.follow(self._again is not None)
        peer.tell_deaths(self._deaths)
        return 0

    @property
    def subscription(self):
        """The name of the subscription.  Consumers that share it share its frames."""
        return text_of(self._peer.header.subscription_name(self._peer.subscription))

    @property
    def lossless(self):
        """Whether producers wait for the subscription.  Otherwise they may pass it."""
        return self._lossless

    def _described(self):
        return f" of {self.subscription!r}, {'lossless' if self._lossless else 'lossy'}"

    def _not_lossy(self):
        return TypeError(
            f"ring {self._ring.name!r}: latest() skips frames, so it needs a lossy consumer: "
            "ring.consumer(lossless=False)"
        )

    def _tell(self):
        """Raises FrameTorn for the torn frames that no call has raised yet."""
        seqs, self._untold = sorted(self._untold), []
        if seqs:
            raise diagnosis.torn(self._ring.name, seqs, released=True)

    cdef int _tell_first(self) except -1:
        if self._untold:
            self._tell()
        return 0

    cdef ReadSlot _one(self, verb which, str name, timeout, stream):
        """The frame.  If none comes in time, it raises RingTimeout, or returns None if `name` is None, unless fileno() was given out.
        An error says who is in the way, and that takes longer than the verb."""
        cdef ReadSlot slot
        cdef gd_call call
        cdef uint32_t index
        cdef int64_t deadline_ns = deadline_of(timeout)
        cdef int result
        while True:
            gd_begin(&call, stream_of(self, stream), deadline_ns, 1, &index)
            self._enter()
            self._tell_first()
            result = self._peer.take(&call, which)
            if not result:
                break
            if name is None and result == -<int>GR_BLOCKED and not self._polled:
                return None
            if not self._goes_on(result, deadline_ns):
                raise self._refused(result, "acquire" if name is None else name, timeout)
        self.given[self.givens] = index
        remember(self, 1)
        slot = <ReadSlot>self._slot(&call, index)
        slot._begin()
        if self._restarted or self._late >= 0:
            self._first(slot)
        return slot

    def acquire(self, timeout=None, *, stream=None):
        """Acquires the next frame of the subscription, in order of sequences.  Returns a ReadSlot.

        Waits until there is a frame.  Ctrl-C interrupts the wait.

        * `timeout`: how long it may wait, in seconds.  0 does not wait, None waits for ever.
        * `stream`: on a GPU, the stream that will read.  It is made to wait until the frame is written.
          None is the current stream.

        Several frames may be held at once.

        With reattach=True this does not end with the stream: it waits for another producer, or
        moves to the next ring of that name (`Ring.consumer`).

        Raises RingTimeout, a TimeoutError, when the time is up, EndOfStream when everything was
        read and the producers are gone or the ring is closed, PeerLost when the last producer died,
        ProducerDied for each other producer that died, if this consumer asked for that
        (`deaths=True`), FrameTorn if frames that were released before turned out torn since,
        RingClosed if this consumer was closed, DeviceError.  A call that raises leaves no frame
        held.
        """
        return self._one(ACQUIRE, "acquire", timeout, stream)

    def latest(self, timeout=None, *, stream=None):
        """Acquires the newest frame that this consumer has not had yet.  Older ones count as lost.

        It is for lossy consumers, and raises TypeError for others.  `timeout` and `stream` are those of
        `acquire`, and otherwise it waits, returns and raises as `acquire` does.
        """
        if self._lossless:
            raise self._not_lossy()
        return self._one(LATEST, "latest", timeout, stream)

    def acquire_many(self, n, timeout=None, *, stream=None):
        """Acquires up to `n` frames at once, and at least one.  Returns a ReadBatch, a tuple of ReadSlots in
        order of their sequences.

        Waits as `acquire` does until there is a frame, and then takes as many as are published, up to
        `n`.  One call into the driver orders `stream` after all of them, and one records the reads when
        the batch is released.  Raises as `acquire` does, and holds no frame then.
        """
        return self._many(ACQUIRE, n, timeout, stream, self._batch)

    acquire_async = waiting.acquire_async

    def _answers_at_once(self):
        return self._answers_nothing() or bool(self._untold)

    # ---- loops

    def __iter__(self):
        """Every frame until the end of the stream.  Each is released when the loop moves on.

        With reattach=True the loop does not end with the stream: it waits for a new producer or a
        new ring.  A FrameTorn (see `acquire`) ends the loop, but you can iterate again.
        """
        return Frames(self)

    def __aiter__(self):
        """Every frame until the end of the stream, as in the synchronous loop."""
        return AsyncFrames(self)

    def _count_from(self, peer, successor):
        peer.count_before()
        self._mark(peer)
        self._count_on(peer, successor)

    def _count_on(self, peer, successor):
        """What was lost on the way into another ring counts from our last frame, for its `peer`."""
        begun = successor.spec.lost_before or 0
        counts_on = begun >= self._ring._header.link()[2]
        peer.count_on_from(self._peer, None if counts_on else begun)

    def _begin_left(self, left):
        cdef Consumer consumer = left
        consumer._lossless, consumer._untold = self._lossless, []

    def _look_back(self):
        cdef Consumer heir = self if self._heir is None else self._heir
        torn = self._peer.take_torn() if not self._ring._header.forked and self._peer.look_at_released() else []
        if heir is not self:  # which tells of ours
            torn += self._untold
            self._untold = []
        heir._untold += torn

    def close(self):
        """Leaves the ring cleanly, as a producer does (`Producer.close`).

        Also raises FrameTorn, when it has left, if frames that were released before turned out torn
        since.
        """
        errors = []
        if not self._closed:
            try:
                Endpoint.close(self)
            except Exception as error:
                if not self._closed:
                    raise
                errors.append(error)
        try:
            self._tell()
        except FrameTorn as torn:
            errors.append(torn)
        if errors:
            raise_first(errors)

    def __exit__(self, *error):
        """Leaves the ring.  If the end of the program leaves the block, frames in hand may come again first."""
        cdef ReadSlot slot
        kind = error[0] if error else None
        try:
            if kind is not None and not self._closed and not self._ring._header.forked:
                in_hand = [each for each in self._slots if each._open]
                for slot in sorted(in_hand, key=lambda each: each._seq, reverse=True):  # step by step
                    slot._goes_back(kind)
        finally:
            self.close()

    def _put_back(self, index):
        Endpoint._put_back(self, index)
        self._restarted = self._restarted or self._slots[index]._restarted

    def _give_back(self, index):
        if self._slots[index]._seen:  # so work on it may be enqueued
            try:
                self._slots[index]._end()
            except FrameTorn as torn:  # the caller may be another endpoint; raised later
                self._untold += torn.seqs
        else:
            self._put_back(index)
            self._slots[index]._owner = None  # nobody but the slot may have us

    def _finish(self):
        errors = Endpoint._finish(self)
        for error in errors:
            if isinstance(error, FrameTorn):
                self._untold += error.seqs
        return [error for error in errors if not isinstance(error, FrameTorn)]
