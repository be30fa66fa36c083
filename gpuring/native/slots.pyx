# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
# cython: auto_pickle=False
"""Slot objects, which are used again, and how they end: one by one, and in batches.  No Python runs between the call and the C
library.

An object is used again only when nobody refers to it or to its arrays any more.  Otherwise another object takes its place.  So
an object belongs to one frame as long as somebody has it.  An object that is open and that nobody has is lost: a Ctrl-C came
when the verb was done and before its caller had the object, or the caller has dropped it.  Its slot is given back by the next
verb, by a wait of this process that it blocks, or at close (docs/decisions/0014-a-slot-that-nobody-has.md).

verbs.pyx hands them out.  gpuring/ring/slot.py derives from these classes.  It adds what is not on the path of every frame: arrays,
interchange, the wording of refusals.
"""
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MAX, uint32_t, uint64_t
from libc.string cimport memset

from gpuring.native.c cimport *
from gpuring.native.peer cimport *

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)
    PyObject *PyList_GET_ITEM(PyObject *, Py_ssize_t)

cdef gd_stream no_streams[1]
memset(&closed, 0, sizeof(closed))
closed.stream = no_streams


cdef bint is_free(PyObject *slot, Py_ssize_t known) except -1:
    """Whether nobody refers to a Slot, but for `known` references of ours, nor to its arrays."""
    cdef PyObject *meta
    if Py_REFCNT(slot) != known:
        return False
    meta = <PyObject *>(<Slot>slot)._meta
    if meta != <PyObject *>None and Py_REFCNT(meta) != 1:
        return False
    for view in (<Slot>slot)._views.values():
        if Py_REFCNT(<PyObject *>view) != 2 + (view is (<Slot>slot)._whole):  # the dict's, and this loop's
            return False
    return True


def references(list things not None, Py_ssize_t index):
    """How many references there are to an item of a list, with that of the list.

    It is not asked with the item as an argument.  How many references a call adds differs between versions of
    Python, and between places in one function."""
    return Py_REFCNT(PyList_GET_ITEM(<PyObject *>things, index))


def nobody_has(list slots not None, Py_ssize_t index, Py_ssize_t known=0):
    """Whether nobody refers to a slot of an endpoint, to its arrays or to its metadata.

    known: how many references are expected beside that of the endpoint's list."""
    return is_free(PyList_GET_ITEM(<PyObject *>slots, index), 1 + known)


cdef class Slot:
    """What both kinds of slot have: whose slot it is, which frame it has, and on which streams it was used."""

    def __cinit__(self):
        self.use = &closed  # until it is bound

    def _bind(self, uint32_t index, Peer peer not None, whole, meta):
        self.index, self._peer, self._device = index, peer, peer.device
        self.use = &peer.gd.use[index]
        self._whole, self._meta = whole, meta

    cdef size_t _current(self) except? 1:
        return 0 if self._device is None else self._device.current()

    @property
    def _open(self):
        return self.use.open

    @_open.setter
    def _open(self, bint value):
        if self.use != &closed:
            self.use.open = value

    @property
    def _streams(self):
        """The handles of the streams that it was used on.  The stream that it was claimed or acquired for comes first."""
        cdef uint32_t k
        self._peer.leave_thread(self.use)
        return tuple([<size_t>self.use.stream[k] for k in range(self.use.streams)])

    @_streams.setter
    def _streams(self, tuple streams):
        """Sets fewer of them, for tests.  The end of the slot does not wait for the others then."""
        cdef uint32_t k
        for k in range(len(streams)):
            self.use.stream[k] = streams[k]
        self.use.streams = len(streams)

    @property
    def _stream(self):
        self._peer.leave_thread(self.use)
        return <size_t>self.use.stream[0]

    @_stream.setter
    def _stream(self, size_t stream):
        """Puts one of _streams first."""
        cdef uint32_t k
        for k in range(self.use.streams):
            if self.use.stream[k] == stream:
                self.use.stream[k], self.use.stream[0] = self.use.stream[0], stream

    def _import_on(self, size_t stream):
        """Orders a stream behind all streams that were used so far, and remembers it.  Raises DeviceError."""
        self._peer.use_on(self.index, stream)

    @property
    def seq(self):
        """The frame's sequence.  A ring of N slots begins with N."""
        self._seen = True
        return self._seq

    @property
    def array(self):
        """The frame as an array over the slot: `cupy.ndarray` on a GPU, `numpy.ndarray` on the host.

        On the host the array of a reader is read-only.  On a GPU the stream of claim or acquire already
        waits for the work of those who used the slot before.  If you use the array on another stream,
        order that stream yourself, or say `slot.use_on(stream)`.

        Raises TypeError if the slot has several fields (use `slot[name]`), RingError if the slot is no
        longer yours.
        """
        self._seen = True
        if self.use.open and self._shape is None and self._whole is not None:
            return self._whole
        return self._array()

    @property
    def meta(self):
        """The frame's metadata: a `numpy.void` over the header, `slot.meta["pts"]`.

        It is a view: what is written here is in the ring at once.  Raises TypeError if the ring has no
        metadata (`ring.spec.meta` is None then), RingError if the slot is no longer yours.
        """
        self._seen = True
        if not self.use.open:
            self._check_open()
        if self._meta is None:
            raise self._has_no_meta()
        return self._meta

    cdef int _begin(self) except -1:
        """Called when the slot has been claimed or acquired."""
        self._seq = self.use.seq
        self._cut = False  # of an earlier frame, by a close that did not succeed
        self._shape = None
        return 0


cdef class WriteSlot(Slot):
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

        Never blocks.  Raises PeerLost if this peer was taken for dead,
        DeviceError if the work could not be recorded (the frame is abandoned then), RingError if the slot
        is no longer yours.
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
        gd_begin(&call, self._current(), INT64_MAX, 1, &self.index)  # if CuPy refuses to tell, the slot is still ours
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
        else:
            self.abandon()


cdef class ReadSlot(Slot):
    cdef int _begin(self) except -1:
        self._seq = self.use.seq
        self._seen = self._restarted = self._cut = False
        self._shape = self._peer.shape(self.index) if gr_load_acquire32(
            &self._peer.gd.core.ring.slot[self.index].ndim) else None
        return 0

    @property
    def lost(self):
        """How many frames this consumer has missed just before this one.  These are the sequences that it
        was made to skip, none if it is lossless, and, if a bridge brings the frames from another host,
        those that were lost on their way into this ring.  If a loop has gone over to a new ring
        (`restarted`), they are also those that it came too late for.  Of several members the one that
        came first counts these.

        Void sequences (abandoned claims) among them count too, because nobody can tell them apart then.
        The first frame that a consumer gets tells nothing of what was lost on the way before it.
        """
        return self.use.lost + self.use.upstream

    @property
    def redelivered(self):
        """Whether another member of the subscription held this frame when it died."""
        return self.use.redelivered

    @property
    def restarted(self):
        """Whether the stream began again with this frame (`consumer(reattach=True)`).

        The sequences may have started over, and frames before this one may be missing.  `lost` counts
        those that were in the same ring as this one.
        """
        return self._restarted

    def release(self):
        """Gives the slot back, in stream order: the next writer's stream waits for your work on the slot.

        Never blocks.  Raises FrameTorn if the frame is known to be torn (the
        slot is given back all the same), PeerLost if this peer was taken for dead, RingError if the slot
        is no longer yours.
        """
        self._finish()

    cdef int _finish(self) except -1:
        cdef gd_call call
        cdef int result
        if not self.use.open:
            self._check_open()
        gd_begin(&call, self._current(), INT64_MAX, 1, &self.index)
        result = self._peer.end(&call, RELEASE)
        if result:
            raise self._refused(result, "release")
        self._owner = None
        if call.torns:
            raise self._torn()
        return 0

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if not self.use.open:
            return
        if kind is not None and not self._seen and not issubclass(kind, Exception):
            self._peer.put_back(self.index)  # Ctrl-C, before the block had begun
        else:
            self._finish()


# ---- batches: ended together if one driver call can record them all, otherwise slot by slot --------------------------


def still_open(batch):
    """The slots of a batch that were not ended one by one."""
    cdef Slot slot
    return [slot for slot in batch if slot.use.open]


cdef list _end_all(list slots, verb which, str name):
    cdef uint32_t indices[MAX_BATCH]
    cdef gd_call call
    cdef Slot slot
    cdef Peer peer
    cdef uint32_t n = 0
    cdef int result
    if not slots:
        return []
    for slot in slots:
        indices[n] = slot.index
        n += 1
    peer = slot._peer
    gd_begin(&call, slot._current(), INT64_MAX, n, indices)
    result = peer.end(&call, which)
    if result:
        raise slot._refused(result, name)
    for slot in slots:
        slot._owner = None
    return [call.torn[n] for n in range(call.torns)]


def publish_all(batch):
    """Publishes those WriteSlots of one producer that are open.  If one cannot be published, those behind it are abandoned.
    Raises RingClosed if the producer's close has ended some of them."""
    cdef Slot slot
    _end_all(still_open(batch), PUBLISH, "publish")
    for slot in batch:
        if slot._cut:
            slot._check_open()


def abandon_all(batch):
    """Abandons those WriteSlots of one producer that are open."""
    _end_all(still_open(batch), ABANDON, "abandon")


def release_all(batch):
    """Releases those ReadSlots of one consumer that are open.  Returns the sequences of those that are known to be torn.

    If this raises, the next acquire, or close, raises the FrameTorn.
    """
    return _end_all(still_open(batch), RELEASE, "release")


# These become methods of the batches, for their `with` blocks.  No signal can come between the block and its end.


def enter_batch(batch):
    return batch


def exit_write_batch(batch, kind, error, traceback):
    """Publishes the slots that are open.  If the block raised, abandons them."""
    if kind is None:
        publish_all(batch)
    else:
        abandon_all(batch)


def exit_read_batch(batch, kind, error, traceback):
    """Releases the slots that are open.  Frames that were not seen because a Ctrl-C came first are given back.  Raises
    FrameTorn."""
    cdef ReadSlot slot
    if kind is not None and not issubclass(kind, Exception):
        for slot in reversed(batch):
            if slot.use.open and not slot._seen:
                slot._peer.put_back(slot.index)
    seqs = release_all(batch)
    if seqs:
        slot = batch[0]
        raise slot._torn_of(seqs)
