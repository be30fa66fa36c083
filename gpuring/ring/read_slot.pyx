"""A frame that a consumer has acquired, which it reads and releases."""
from libc.stdint cimport INT64_MAX

from gpuring.native.c cimport *
from gpuring.native.peer cimport *
from gpuring.ring.slot cimport Slot, current_stream

from gpuring.arrays.copying import copy_out
from gpuring.arrays.tensors import empty
from gpuring.native.clock import now_ns
from gpuring.registry import diagnosis
from gpuring.ring import program
from gpuring.ring.origin import Origin


cdef class ReadSlot(Slot):
    """A frame that this consumer holds.  As a context manager it releases the frame."""

    _writable = False  # others read it, too

    cdef int _begin(self) except -1:
        self._seq = self.use.seq
        self._seen = self._restarted = self._cut = False
        self._shape = self._peer.shape(self.index) if gr_load_acquire32(
            &self._peer.gd.core.ring.slot[self.index].ndim) else None
        return 0

    @property
    def lost(self):
        """How many sequences this consumer has missed just before this one.

        It counts sequences that were overwritten before this consumer could read them (none if it
        is lossless), and frames that producers had no slot for (`Producer.try_claim`).  If a bridge
        brings the frames from another host, it also counts those that were lost on their way into
        this ring.  If this consumer has moved to a new ring (`restarted`), it counts those that it
        came too late for.  If the subscription has several members, the first one of them that
        comes counts these.

        If this consumer is lossy, void sequences (abandoned claims, slots that a lossy consumer still
        held) may be among them, because they cannot be distinguished from lost frames any more.
        For the first frame that a consumer gets, losses on the way into this ring are not known.
        """
        return self.use.lost + self.use.upstream

    @property
    def redelivered(self):
        """Whether another member of the subscription held this frame when it died, or, of a durable
        subscription, when its program was ended.  It may have worked on the frame."""
        return self.use.redelivered

    def release(self):
        """Gives the slot back, in stream order: the next writer's stream waits for your work on the slot.

        Never blocks.  Raises FrameTorn if the frame is known to be torn (the slot is still given
        back), PeerLost if this peer was taken for dead, RingError if the slot is no longer yours.
        """
        self._finish()

    cdef int _finish(self) except -1:
        cdef gd_call call
        cdef int result
        if not self.use.open:
            self._check_open()
        gd_begin(&call, current_stream(self), INT64_MAX, 1, &self.index)
        result = self._peer.end(&call, RELEASE)
        if result:
            raise self._refused(result, "release")
        self._owner = None
        if call.torns:
            raise self._torn_of((self._seq,))
        return 0

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if not self.use.open or (kind is not None and self._peer.is_forked()):
            return
        if kind is None or not self._goes_back(kind):
            self._finish()

    cpdef bint _goes_back(self, kind) except -1:
        """Gives the frame back, if `kind` leaves its block or loop, and it is to come again: before its user has looked at
        it, or, of a durable subscription, because the program is being ended.  Returns whether it has."""
        if issubclass(kind, Exception):
            return False
        if self._seen:
            # A cancelled task, or a generator that is dropped, does not say why.
            ends = issubclass(kind, (KeyboardInterrupt, SystemExit)) or program.ending
            if not ends or not self._peer.keeps_place():
                return False
            self._peer.settle(self.index)  # else somebody could write while this GPU reads
        self._peer.put_back(self.index, self._seen)
        self._owner = None
        return True

    def copy_to(self, out, *, field=None, stream=None):
        """Copies the frame into an array of any library, in stream order.

        * `out`: an object that has DLPack or an array interface of NumPy or CUDA, of exactly the
          frame's shape and dtype, in host memory or on any GPU.  A GPU needs no peer access to that
          of the ring for this.  The copy waits for the stream that its library works on.
        * `field`: the name of the field, if the slot has several.
        * `stream`: where to copy.  None is the slot's own stream.  See `use_on`.

        On a GPU ring the call returns before the copy is done, except if `out` is in host memory
        that is not pinned.  `out` is complete when the stream has done the copy.  If `out` is on
        another GPU than the slot, the current stream of that GPU waits for the copy as well.
        You may release the slot right away, because the release comes after the copy.  Where the CPU
        uses the ring, the call waits for the copy, and takes no stream.

        Raises TypeError for what is not an array or has another dtype, ValueError for another
        shape, a read-only array, or a layout that is neither C-contiguous nor rows at a pitch,
        RingError if the slot is no longer yours, DeviceError.
        """
        self._check_open()
        name = self._field_name(field)
        self._copy_to(out, name, self._copies_on(stream))

    def _copy_to(self, out, name, on):
        copy_out(self._over(name), self._fields[name], out, ring=self._ring, stream=on, order=self._order)

    def upload(self, out=None, *, field=None, stream=None):
        """Copies the frame into memory of the GPU, in stream order, and returns the array that has it.

        * `out`: as for `copy_to`, on a GPU.  None makes a `cupy.ndarray`, or without CuPy a tensor
          of torch, on the GPU for which the ring was attached.
        * `field`, `stream`: as for `copy_to`.

        It is for a pinned ring that was attached with a device, and works on GPU rings, too.  The
        call returns before the copy is done.  You may release the slot right away: the next writer
        waits until it has been read.  Where the slots are not registered with CUDA (`gpuring
        inspect` says so), the call waits for the copy.  Raises TypeError where the CPU uses the
        ring (a pinned ring: attach with `device=`), and what `copy_to` raises.
        """
        self._check_open()
        if self._memory.device is None:
            raise TypeError(
                f"ring {self._ring!r} is used by the CPU here: copy_to an array on a GPU, or attach with device= if it is pinned"
            )
        name, on = self._field_name(field), self._copies_on(stream)
        if out is None:
            out = empty(self._over(name).shape, self._fields[name], self._memory.device, on)
        self._copy_to(out, name, on)
        return out

    @property
    def time_ns(self):
        """When the frame was published, in nanoseconds of CLOCK_MONOTONIC, as
        `time.monotonic_ns()`."""
        self._check_open()
        return self._peer.time_ns(self.index)

    @property
    def age(self):
        """Seconds since the frame was published."""
        return (now_ns() - self.time_ns) / 1e9

    @property
    def origin(self):
        """Where the frame comes from, if a bridge has brought it from a ring of another host.  None
        for all other frames.

        Raises RingError if the slot is no longer yours.
        """
        self._check_open()
        found = self._peer.origin(self.index)
        if found is None:
            return None
        near = self._owner._ring.spec.origin or {"host": "", "ring": ""}
        return Origin(found[0], near["host"], near["ring"], found[1])

    def check(self):
        """Raises FrameTorn if the frame's producer died before its GPU work on it was finished.

        The answer is final once your own work on the frame is complete, so synchronise your stream
        first.  Before that the frame may still turn out torn.
        """
        self._check_open()
        if self._peer.is_torn(self.index):
            raise self._torn_of((self._seq,))

    def _end(self):
        if not (program.ending and self._goes_back(SystemExit)):
            self.release()

    def _torn_of(self, seqs):
        return diagnosis.torn(self._ring, seqs)
