"""A slot that a producer has claimed, which it writes and publishes."""
from libc.stdint cimport INT64_MAX, uint32_t, uint64_t

from gpuring.native.c cimport *
from gpuring.native.peer cimport *
from gpuring.ring.slot cimport Slot, current_stream

from gpuring.arrays.allocation import within
from gpuring.arrays.copying import copy_into


cdef class WriteSlot(Slot):
    """A claimed slot.  As a context manager it publishes the frame.  If the block raises, it
    abandons the claim."""

    _writable = True

    cpdef _reshape(self, tuple shape):
        """The frame will have this shape; None: the slot's."""
        cdef uint32_t k
        self._shape = shape
        self.use.ndim = 0 if shape is None else len(shape)
        for k in range(self.use.ndim):
            self.use.shape[k] = shape[k]

    def _set_origin(self, uint64_t seq, uint64_t time_ns, lost):
        """Of a bridge: the frame was `seq` of another ring, and was first published at `time_ns` of CLOCK_REALTIME.

        `lost` is how many frames were lost upstream before this one, in all.  It only rises, also when the near ring is another
        one.  Say it between claim and publish.  An abandoned claim takes it along.  Raises ValueError, RingError if the slot is
        no longer yours, PeerLost."""
        cdef int result
        if not seq:
            raise ValueError("a sequence of another ring is 1 or more")
        if not self.use.open:
            self._check_open()
        result = self._peer.set_origin(self.index, self._seq, seq, time_ns, lost & 0xffffffff)
        if result:
            raise self._refused(result, "publish")

    def publish(self):
        """Hands the frame to the readers, in stream order: their streams wait for your work on the slot.

        Never blocks.  Raises PeerLost if this peer was taken for dead, DeviceError if the work
        could not be recorded (the frame is abandoned then), RingError if the slot is no longer
        yours.
        """
        self._finish(PUBLISH, "publish")

    def abandon(self):
        """Gives the slot back without a frame.  Readers pass over its sequence.

        Never blocks.  Raises as `publish` does.
        """
        self._finish(ABANDON, "abandon")

    cdef int _finish(self, verb which, str name) except -1:
        cdef gd_call call
        cdef int result
        if not self.use.open:
            self._check_open()
        gd_begin(&call, current_stream(self), INT64_MAX, 1, &self.index)  # if the framework refuses to tell, the slot is still ours
        result = self._peer.end(&call, which)
        if result:
            raise self._refused(result, name)
        self._owner = None
        return 0

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if not self.use.open:
            if kind is None and self._cut:  # nobody gets the frame
                self._check_open()
            return
        if kind is None:
            self._finish(PUBLISH, "publish")
        elif not self._peer.is_forked():  # a forked child ends by its own error
            self.abandon()

    def copy_from(self, source, *, field=None, stream=None):
        """Copies an array of any library into the slot, in stream order.  Returns whether it was copied: an
        array that lies in the slot already (`allocate`) is not.

        * `source`: an object that has DLPack or an array interface of NumPy or CUDA, of exactly the
          frame's shape and dtype.  If it is in GPU memory, the copy waits for the stream that its
          library works on, and you may drop it or use it again right away.  If it is in pinned host
          memory, the copy is asynchronous: do not change it before it is copied.  If it is in other
          host memory, you may change it when the call has returned.
        * `field`: the name of the field, if the slot has several.
        * `stream`: where to copy.  None is the slot's own stream.  See `use_on`.

        Where the CPU uses the ring, the call waits for the copy, and takes no stream.  Raises
        TypeError for what is not an array or has another dtype, ValueError for another shape or a
        layout that is neither C-contiguous nor rows at a pitch, RingError if the slot is no longer
        yours, DeviceError.
        """
        self._check_open()
        name = self._field_name(field)
        target, on = self._over(name), self._copies_on(stream)
        return copy_into(target, self._fields[name], source, ring=self._ring, stream=on, order=self._order)

    def allocate(self, field=None):
        """A context manager: CuPy puts what it computes inside into the slot, so it is not copied
        there.

            with slot.allocate():
                y = model(x)
            slot.copy_from(y)  # copies nothing if y lies in the slot

        An array that CuPy allocates inside the block, in this thread, comes from the slot if it is exactly
        as large as the frame (or as its field `field`), and while no other array has that memory.  All
        others come from CuPy's ordinary allocator.  `y` is a view of the slot from then on: copy what you
        keep beyond publish.

        Raises DeviceError without CuPy, TypeError if the CPU uses the slot, KeyError, RingError if the slot
        is no longer yours.
        """
        array = self._over(self._field_name(field))
        if self._device is None:
            raise TypeError(
                f"ring {self._ring!r}: allocate() is for slots that a GPU uses, and here the CPU does. "
                "Compute with out=slot.array"
            )
        return within(array, self.use_on)

    def _end(self):
        self.abandon()
