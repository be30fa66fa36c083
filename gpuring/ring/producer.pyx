"""The producer, which claims a slot, writes it and publishes it."""
from libc.stdint cimport int64_t, uint32_t

from gpuring.native.c cimport *
from gpuring.native.clock cimport deadline_of
from gpuring.native.peer cimport *
from gpuring.ring.endpoint cimport Endpoint, stream_of
from gpuring.ring.slot_owner cimport remember
from gpuring.ring.write_slot cimport WriteSlot

from gpuring import native
from gpuring.errors import RingFull
from gpuring.ring import waiting
from gpuring.ring.batch import WriteBatch
from gpuring.slot_layout import ARRAY


cdef class Producer(Endpoint):
    """Writes frames into a ring.  `Ring.producer()` makes it.  One thread at a time uses it."""

    _slot_type = WriteSlot
    _role = "producer"
    _batch = WriteBatch
    _takes = ("claim", "try_claim", "claim_many")
    _ends = (native.CLOSED,)

    def claim(self, timeout=None, *, stream=None, shape=None):
        """Claims the next slot, to be written and published (or abandoned).  Returns a WriteSlot.

        Waits while a lossless subscription still needs the slot.  Ctrl-C interrupts the wait.

        * `timeout`: how long it may wait, in seconds.  0 does not wait, None waits for ever.  A
          RuntimeWarning says so if only this thread could end that wait, as when it has all slots itself.
        * `stream`: on a GPU, the stream that will write.  It is made to wait for all unfinished work on
          the slot.  None is the current stream.
        * `shape`: the shape of a frame that is smaller than the slot.  None is the slot's own shape.

        You may claim several slots before you publish one.  Readers get the frames in order of
        their sequences.

        With reattach=True, if the ring was closed, this waits for the next ring of that name and
        moves there (`Ring.producer`).

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
        cdef int64_t deadline_ns = deadline_of(timeout)
        cdef int result
        while True:
            gd_begin(&call, stream_of(self, stream), deadline_ns, 1, &index)
            self._enter()
            result = self._peer.take(&call, CLAIM)
            if not result:
                break
            if quiet and result == -<int>GR_BLOCKED and not self._polled:
                return None
            if not self._goes_on(result, deadline_ns):
                raise self._refused(result, "claim", timeout)
            if extents is not None:
                extents = self._smaller(extents)  # perhaps in another ring
        self.given[self.givens] = index
        remember(self, 1)
        slot = <WriteSlot>self._slot(&call, index)
        slot._begin()
        if self._restarted:
            self._first(slot)
        if extents is not None:
            WriteSlot._reshape(slot, extents)  # not one of Python's: that takes longer to find
        return slot

    def try_claim(self, *, stream=None, shape=None):
        """Claims the next slot if one is free, and otherwise counts the frame as dropped and returns None.

        It is for a producer that must not wait, such as a camera.  The ring's statistics count
        dropped frames, for each producer and in all, and `slot.lost` of the next frame counts them
        for readers.  `stream` and `shape` are those of `claim`.  Does not wait.  Raises what
        `claim` raises, except RingFull.
        """
        try:
            slot = self._claim(0, stream, None if shape is None else self._smaller(shape), True)
        except RingFull:  # fileno() was given out, so the refusal has armed that
            slot = None
        if slot is None:
            self._peer.count_drop()
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

    claim_async = waiting.claim_async

    def _smaller(self, shape):
        """The shape of a frame that is smaller than the slot."""
        extents = self._ring.spec.fields[0].smaller(shape)
        if self._ring.spec.fields[0].name != ARRAY:
            raise TypeError(f"ring {self._ring.name!r} has several fields: shape= is for one")
        return extents

    def _give_back(self, index):
        self._slots[index]._end()
