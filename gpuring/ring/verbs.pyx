# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
# cython: auto_pickle=False
"""The verbs that hand slots out, as users call them: claim, acquire and latest, for one slot or for a batch.  No Python runs
between the call and the C library, unless a slot needs another object.

slots.pyx says when an object is used again, and which slots are lost.  Those are given back here.  gpuring/ring/endpoint.py,
producer.py and consumer.py derive from these classes.
"""
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, uint32_t

from gpuring.native.c cimport *
from gpuring.native.clock cimport deadline_of
from gpuring.native.peer cimport *
from gpuring.ring.slot cimport MAX_BATCH, ReadSlot, Slot, WriteSlot, closed
from gpuring.ring.whose cimport is_free
from gpuring.arguments import integer

cdef extern from "Python.h":
    PyObject *PyList_GET_ITEM(PyObject *, Py_ssize_t)
    Py_ssize_t PyList_GET_SIZE(PyObject *)

cdef enum:
    LOOKS = 4  # at slots of earlier verbs


cdef class Verbs:
    """A peer of a ring with its slots."""

    cdef Slot _slot(self, gd_call *call, uint32_t index):
        """The object for a slot that `call` has claimed or acquired just now.  Nobody else has it.  If this raises, nothing is
        claimed or held.

        The slot is open from here on, and not from when the C library had it, which was without the GIL.  Until here another
        thread may run that has just ended the slot's last frame and still has its object.  To that thread it is not open."""
        cdef PyObject *slot
        if index < PyList_GET_SIZE(<PyObject *>self._slots):  # else closed, while the one before was made
            slot = PyList_GET_ITEM(<PyObject *>self._slots, index)
            if is_free(slot, 1):
                (<Slot>slot)._owner = self
                (<Slot>slot).use.open = True
                return <Slot>slot
        return self._another(call, index)

    cdef Slot _another(self, gd_call *call, uint32_t index):
        """Another object for a slot whose own somebody still has.

        Python code runs here: signal handlers, which may raise or close us, and other threads, which may close us or look for
        lost slots.  To them the verb is still in progress, and nothing is changed before its end."""
        cdef long busy = self._peer.waiting_in
        cdef Slot slot
        self._peer.waiting_in = PyThread_get_thread_ident()
        try:
            slot = self._renew(index)
            slot.use.open = True
            return slot
        except BaseException:
            self._peer.cancel(call)
            raise
        finally:
            self._peer.waiting_in = busy

    cpdef Slot _renew(self, uint32_t index):
        """Puts another object in the place of one that somebody still has.  The slot is claimed or acquired."""
        cdef Slot before, slot, spare
        if index < PyList_GET_SIZE(<PyObject *>self._slots):
            before, spare = self._slots[index], self._spares.get(index)
            slot = spare if spare is not None and is_free(<PyObject *>spare, 2) else self._make_slot(index)
            slot._succeed(before)
            self._spares[index] = before
        if index >= PyList_GET_SIZE(<PyObject *>self._slots):
            raise self._refused(-<int>GR_REAPED, "claim", None)  # a signal handler has closed us
        slot.use, before.use = before.use, &closed
        self._slots[index] = slot
        slot._owner, before._owner = self, None
        return slot

    cdef int _enter(self) except -1:
        """Before a verb: gives back the slots that were handed out and that nobody has any more.  It looks at those of the last
        verb and at a few of the others, so that a user with many slots does not pay for all of them each time.

        Raises RuntimeError, and has touched nothing, while another verb of this peer is in progress.  The list is that verb's."""
        cdef uint32_t k, at, index, last = self.givens
        cdef bint lost = False
        self._peer.check_idle()
        if not last:
            return 0
        for k in range(self.recent + LOOKS):
            if k < self.recent:
                at = last - 1 - k
            elif self.givens:
                self.turn += 1
                at = self.turn % self.givens
            else:
                break
            index = self.given[at]
            if index < PyList_GET_SIZE(<PyObject *>self._slots) and (
                    <Slot>PyList_GET_ITEM(<PyObject *>self._slots, index)).use.open:
                lost = lost or self._is_lost(index)
            else:  # it was ended
                self.listed[index] = False
                self.givens -= 1
                self.given[at] = self.given[self.givens]
        self.recent = 0
        if lost:
            self._give_back_lost()
        return 0

    def _recover(self):
        """What a verb begins with, for a wait that begins with a look."""
        self._enter()

    cdef int _tell_first(self) except -1:
        """What a verb raises before it looks at the ring."""
        return 0

    cdef void _remember(self, uint32_t n) noexcept:
        """The `n` slots behind the end of `given` are handed out now.  One of them may be in the list already, if another
        thread has ended it while we waited."""
        cdef uint32_t k, index, first = self.givens
        for k in range(first, first + n):
            index = self.given[k]
            if not self.listed[index]:
                self.listed[index] = True
                self.given[self.givens] = index
                self.givens += 1
        self.recent = self.givens - first

    cdef bint _is_lost(self, uint32_t index) except -1:
        cdef PyObject *slot
        if index >= PyList_GET_SIZE(<PyObject *>self._slots):
            return False  # closed
        slot = PyList_GET_ITEM(<PyObject *>self._slots, index)
        return (<Slot>slot).use.open and is_free(slot, 1) and not self._peer.is_forked()

    def _lost(self):
        """The indices of the slots that are open and that nobody has."""
        cdef uint32_t index
        return [index for index in range(len(self._slots)) if self._is_lost(index)]

    def _give_back_if_lost(self, uint32_t index):
        """Whether a slot was lost and has been given back.  Meanwhile a verb is in progress: a signal handler or another thread
        would find the slot lost as well, give it back, and claim or acquire the next frame in it."""
        if self._peer.is_busy() or not self._is_lost(index):
            return False
        self._peer.begin_wait()
        try:
            self._give_back(index)
        finally:
            self._peer.waiting_in = 0
        return True

    cdef size_t _stream_of(self, stream) except? 1:
        if stream is None:
            return 0 if self._device is None else self._device.current()
        return self._handle(stream)

    cdef uint32_t _at_most(self, n) except 0:
        n = integer(n, "n")
        if n < 1:
            raise ValueError(f"at least one slot can be asked for, not {n!r}")
        return min(n, self._peer.header.ring.slots)

    cdef _many(self, verb which, n, timeout, stream, kind):
        """A batch, made by `kind` from the list of its slots.  The list itself if that is None, and then it is empty if nothing
        comes in time, unless fileno() was given out."""
        cdef Slot slot
        cdef gd_call call
        cdef uint32_t k
        cdef uint32_t *indices
        cdef list batch = []
        cdef int result
        cdef size_t handle = self._stream_of(stream)
        cdef int64_t deadline_ns = deadline_of(timeout)
        cdef uint32_t most = self._at_most(n)
        self._enter()
        self._tell_first()
        indices = &self.given[self.givens]
        gd_begin(&call, handle, deadline_ns, most, indices)
        result = self._peer.take(&call, which)
        if result:
            if kind is None and result == -<int>GR_BLOCKED and not self._polled:
                return batch
            raise self._refused(result, "claim" if which == CLAIM else "acquire", timeout)
        self._peer.begin_wait()  # until somebody has them: see _another
        try:
            for k in range(call.got):
                slot = self._slot(&call, indices[k])
                slot._begin()
                batch.append(slot)
            self._remember(call.got)
            return batch if kind is None else kind(batch)
        except BaseException:  # Ctrl-C, no memory
            self._peer.cancel(&call)
            raise
        finally:
            self._peer.waiting_in = 0


cdef class ProducerVerbs(Verbs):
    def claim(self, timeout=None, *, stream=None, shape=None):
        """Claims the next slot, to be written and published (or abandoned).  Returns a WriteSlot.

        Waits while a lossless subscription still needs the slot.  Ctrl-C interrupts the wait.

        * `timeout`: how long it may wait, in seconds.  0 does not wait, None waits for ever.
        * `stream`: on a GPU, the stream that will write.  It is made to wait for all unfinished work on
          the slot.  None is CuPy's current stream.
        * `shape`: the shape of a frame that is smaller than the slot.  None is the slot's own shape.

        Several slots may be claimed at once.  Readers get them in order of their sequences.

        Raises RingFull, a TimeoutError that says who is in the way, RingClosed, PeerLost if this peer was
        taken for dead, DeviceError, ValueError for a shape that does not fit.  A call that raises leaves
        no claim behind.
        """
        return self._claim(timeout, stream, None if shape is None else self._smaller(shape))

    cdef WriteSlot _claim(self, timeout, stream, tuple extents, bint quiet=False):
        """The slot.  If none is free in time, it raises RingFull, or returns None if it shall be `quiet`."""
        cdef WriteSlot slot
        cdef gd_call call
        cdef uint32_t index
        cdef int result
        gd_begin(&call, self._stream_of(stream), deadline_of(timeout), 1, &index)
        self._enter()
        result = self._peer.take(&call, CLAIM)
        if result:
            if quiet and result == -<int>GR_BLOCKED and not self._polled:
                return None
            raise self._refused(result, "claim", timeout)
        self.given[self.givens] = index
        self._remember(1)
        slot = <WriteSlot>self._slot(&call, index)
        slot._begin()
        if extents is not None:
            WriteSlot._reshape(slot, extents)  # not one of Python's: that takes longer to find
        return slot

    def claim_many(self, n, timeout=None, *, stream=None):
        """Claims up to `n` slots at once, and at least one.  Returns a WriteBatch, a tuple of WriteSlots in
        order of their sequences.

        Waits as `claim` does until one slot is free, and then takes as many as are free, up to `n`.  One
        call into the driver orders `stream` for all of them, and one records them all when the batch is
        published.  More slots in a batch also mean more work between two switches of the GPU from one
        process to another.  Raises as `claim` does, and leaves no claim behind then.
        """
        return self._many(CLAIM, n, timeout, stream, self._batch)


cdef class ConsumerVerbs(Verbs):
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
        cdef int result
        gd_begin(&call, self._stream_of(stream), deadline_of(timeout), 1, &index)
        self._enter()
        self._tell_first()
        result = self._peer.take(&call, which)
        if result:
            if name is None and result == -<int>GR_BLOCKED and not self._polled:
                return None
            raise self._refused(result, "acquire" if name is None else name, timeout)
        self.given[self.givens] = index
        self._remember(1)
        slot = <ReadSlot>self._slot(&call, index)
        slot._begin()
        return slot

    def acquire(self, timeout=None, *, stream=None):
        """Acquires the next frame of the subscription, in order of sequences.  Returns a ReadSlot.

        Waits until there is a frame.  Ctrl-C interrupts the wait.

        * `timeout`: how long it may wait, in seconds.  0 does not wait, None waits for ever.
        * `stream`: on a GPU, the stream that will read.  It is made to wait until the frame is written.
          None is CuPy's current stream.

        Several frames may be held at once.

        Raises RingTimeout, a TimeoutError, when the time is up, EndOfStream when everything was read and
        the producers are gone or the ring is closed, PeerLost when the last producer died, FrameTorn if
        frames that were released before turned out torn since, RingClosed if this consumer was closed,
        DeviceError.  A call that raises leaves no frame held.
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
