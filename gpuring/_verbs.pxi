# The verbs as users call them.  gpuring/producer.py, consumer.py and slot.py derive from these classes and
# add what is not on the path of every frame: arrays, interchange, the wording of refusals.


cdef extern from "Python.h":
    ctypedef struct PyThreadState
    PyThreadState *PyThreadState_Get() noexcept
    uint64_t PyThreadState_GetID(PyThreadState *) noexcept


cdef inline uint64_t this_thread() noexcept:
    """Never 0, and not used again, as the identity of a thread is."""
    return PyThreadState_GetID(PyThreadState_Get()) + 1


cdef class Slot:
    """Whose slot it is, which frame, and on which streams it was used."""

    cdef readonly uint32_t index
    """Which slot of the ring this is, 0 … slots - 1."""
    cdef readonly Peer _peer
    cdef readonly DeviceOrder _sync
    cdef public bint _open
    cdef public uint64_t _seq
    cdef public tuple _shape    # of a frame that is smaller than the slot, else None
    cdef size_t stream   # the one that it was claimed or acquired for
    cdef tuple streams   # that one, and those that imported it since
    cdef uint64_t thread  # whose per-thread default stream is among them; 0: none
    cdef public object _whole   # the array over the whole slot; None if it has several fields
    cdef public object _meta
    cdef uint64_t _lost         # these three: of a frame that is read
    cdef bint _redelivered
    cdef public bint _restarted

    def _bind(self, uint32_t index, Peer peer not None, DeviceOrder sync, whole, meta):
        self.index, self._peer, self._sync = index, peer, sync
        self._whole, self._meta = whole, meta
        self.streams = () if sync is None else (0,)

    cdef int _begin(self, tuple shape, size_t stream) except -1:
        """The frame of the peer's last claim or acquire is in the user's hands."""
        self._seq = self._peer.me.seq
        self._shape = shape
        if self._sync is not None:
            if stream != self.stream or len(self.streams) != 1:
                self.stream, self.streams = stream, (stream,)
            self.thread = this_thread() if stream == PER_THREAD else 0
        self._open = True
        return 0

    cdef int _leave_thread(self) except -1:
        """In another thread the same handle is another stream.  The legacy default stream stands for those of
        all threads: it waits for their work, and they for its."""
        if self.thread != 0 and self.thread != this_thread():
            self.thread = 0
            if self.stream == PER_THREAD:
                self.stream = LEGACY
            self.streams = tuple([LEGACY if each == PER_THREAD else each for each in self.streams])
        return 0

    @property
    def _stream(self):
        self._leave_thread()
        return self.stream

    @_stream.setter
    def _stream(self, size_t stream):
        self.stream = stream

    @property
    def _streams(self):
        self._leave_thread()
        return self.streams

    @_streams.setter
    def _streams(self, tuple streams):
        self.streams = streams
        if PER_THREAD in streams:
            self.thread = this_thread()

    cdef tuple _used_streams(self):
        """Every stream whose work on the slot must be finished: the one it was given to, those that
        imported it, and the current one, on which work may have been done since."""
        cdef size_t current
        if self._sync is None:
            return ()
        if self.thread:
            self._leave_thread()
        current = self._sync.current()
        if current == self.stream or current in self.streams:
            return self.streams
        return self.streams + (current,)

    @property
    def seq(self):
        """The frame's sequence.  A ring of N slots begins with N."""
        return self._seq

    @property
    def array(self):
        """The frame as an array over the slot: `cupy.ndarray` on a GPU, `numpy.ndarray` on the host.

        Only for rings with one field (`shape=`, `dtype=`); see `slot[name]` for several.  On a GPU the
        stream of claim or acquire already waits for whoever used the slot before; work on another
        stream must be ordered by you.
        """
        if self._open and self._shape is None and self._whole is not None:
            return self._whole
        return self._array()

    @property
    def meta(self):
        """The frame's metadata: a `numpy.void` over the header, `slot.meta["pts"]`.

        A view: what is written here is in the ring at once.  None if the ring has no metadata.
        """
        if not self._open:
            self._check_open()
        return self._meta


cdef class WriteSlot(Slot):
    def publish(self):
        """Hands the frame to the readers, in stream order: their streams wait for yours.

        Never blocks.  Raises PeerLost if this peer was taken for dead, DeviceError if the work could not
        be recorded (the frame is abandoned then), RingError if the slot is not yours any more.
        """
        self._publish()

    cdef int _publish(self) except -1:
        cdef int result
        cdef tuple streams
        if not self._open:
            self._check_open()
        streams = self._used_streams()  # if CuPy refuses to tell, the slot is still ours
        try:
            result = self._peer.publish(self.index, self._seq, self._sync, streams, self._shape)
        finally:
            self._open = self._peer.recorded.is_unpaid(self.index)
        if result:
            raise self._refused(result, "publish")
        return 0

    def abandon(self):
        """Gives the slot back without a frame: readers pass over its sequence."""
        cdef int result
        cdef tuple streams
        if not self._open:
            self._check_open()
        streams = self._used_streams()
        try:
            result = self._peer.abandon(self.index, self._seq, self._sync, streams)
        finally:
            self._open = self._peer.recorded.is_unpaid(self.index)
        if result:
            raise self._refused(result, "abandon")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if not self._open:
            return
        if kind is None:
            self._publish()
        else:
            self.abandon()


cdef class ReadSlot(Slot):
    cdef int _begin_read(self, size_t stream) except -1:
        cdef Peer peer = self._peer
        cdef tuple shape = None
        if gr_load_acquire(&peer.me.ring.slot[self.index].ndim):
            try:
                shape = peer.shape(self.index)
            except BaseException:
                gr_give_back(&peer.me, self.index, peer.me.seq)
                raise
        self._lost, self._redelivered, self._restarted = peer.me.lost, peer.me.redelivered, False
        return self._begin(shape, stream)

    @property
    def lost(self):
        """Sequences that this consumer was made to skip just before this frame; 0 if lossless.

        Void sequences (abandoned claims) among them count too: nobody can tell afterwards."""
        return self._lost

    @property
    def redelivered(self):
        """Whether another member of the subscription had this frame and died with it."""
        return self._redelivered

    @property
    def restarted(self):
        """Whether the stream began again with this frame (`consumer(reattach=True)`): sequences may have
        started over, and frames between may be missing."""
        return self._restarted

    def release(self):
        """Gives the slot back, in stream order: the next writer's stream waits for your reads.

        Never blocks.  Raises FrameTorn (the slot is given back) if the frame is known to be torn,
        PeerLost if this peer was taken for dead, RingError if the slot is not yours any more.
        """
        self._release()

    cdef int _let_go(self) except? -1000:
        """0, TORN_ or why it was refused."""
        cdef tuple streams = self._used_streams()
        try:
            return self._peer.release(self.index, self._seq, self._sync, streams)
        finally:
            self._open = self._peer.recorded.is_unpaid(self.index)

    cdef int _release(self) except -1:
        cdef int result
        if not self._open:
            self._check_open()
        result = self._let_go()
        if result == TORN_:
            raise self._torn()
        if result:
            raise self._refused(result, "release")
        return 0

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if self._open:
            self._release()


cdef class Verbs:
    """A peer of a ring with its slots."""

    cdef public Peer _peer
    cdef public DeviceOrder _sync
    cdef public list _slots

    cdef size_t _stream_of(self, stream) except? 1:
        if stream is None:
            return 0 if self._sync is None else self._sync.current()
        return self._handle(stream)

    cdef unsigned _at_most(self, n) except 0:
        cdef unsigned wanted
        if n < 1:
            raise ValueError(f"at least one slot can be asked for, not {n!r}")
        return min(n, self._peer.header.ring.slots)


cdef class ProducerVerbs(Verbs):
    def claim(self, timeout=None, *, stream=None, shape=None):
        """The next slot, to be written and published (or abandoned).

        Blocks while a lossless subscription still needs the slot; `timeout` in seconds, 0 = do not block,
        None = for ever; Ctrl-C interrupts.  On a GPU, `stream` (default: CuPy's current one) is made to
        wait for everybody whose work on the slot is not finished.  `shape` writes a frame that is smaller
        than the slot.

        Several slots may be claimed at once; readers get them in order of their sequences.
        Raises RingFull (a TimeoutError) naming who is in the way, RingClosed, PeerLost if this peer was
        taken for dead, DeviceError.  No claim is left behind by a call that raises.
        """
        cdef tuple extents = None if shape is None else self._smaller(shape)
        cdef size_t handle = self._stream_of(stream)
        cdef WriteSlot slot
        cdef int index = self._peer.claim(timeout, self._sync, handle)
        if index < 0:
            raise self._refused(index, "claim", timeout)
        slot = self._slots[index]
        slot._begin(extents, handle)
        return slot

    def claim_many(self, n, timeout=None, *, stream=None):
        """Up to `n` slots at once, at least one: a WriteBatch, a tuple of slots in order of sequences.

        Blocks as `claim` does until there is one, then takes as many as are free.  One call into the
        driver orders `stream` for all of them, and one records them all when the batch is published.
        More slots in a batch also mean more work between two switches of the GPU from one process to
        another.  Raises as `claim` does; no claim is left behind by a call that raises.
        """
        cdef unsigned wanted = self._at_most(n)
        cdef size_t handle = self._stream_of(stream)
        cdef list batch = []
        cdef Peer peer = self._peer
        cdef WriteSlot slot
        cdef mem_ops ops
        cdef int index
        ops.n = 0
        peer._set_deadline(timeout)
        try:
            while True:
                index = peer._claim(self._sync, handle, &ops, False)
                if index < 0:
                    break
                slot = self._slots[index]
                slot._begin(None, handle)
                batch.append(slot)
                if <unsigned>len(batch) >= wanted:
                    break
                peer.me.deadline_ns = 0  # the others only if they are there
            if batch and not peer.me.left:  # else a signal handler has closed us, and given them back
                if ops.n:
                    peer._submit(self._sync, handle, &ops)
                return self._batch(batch)
        except BaseException:
            for slot in batch:
                slot._open = False
                gr_abandon(&peer.me, slot.index, slot._seq)
            raise
        raise self._refused(index, "claim", timeout)


cdef class ConsumerVerbs(Verbs):
    cdef public list _untold
    """Frames known to be torn, which nobody could be told of yet."""
    cdef public bint _lossless

    def acquire(self, timeout=None, *, stream=None):
        """The next frame of the subscription, in order of sequences.

        Blocks until there is one; `timeout` in seconds, 0 = do not block, None = for ever; Ctrl-C
        interrupts.  On a GPU, `stream` (default: CuPy's current one) is made to wait until the frame is
        written.  Several frames may be held at once.

        Raises RingTimeout (a TimeoutError), EndOfStream when everything was read and the producers are
        gone or the ring is closed, PeerLost when the last producer died, FrameTorn if frames that were
        released before turned out torn since, DeviceError.  No frame is held by a call that raises.
        """
        cdef size_t handle = self._stream_of(stream)
        cdef int index
        if self._untold:
            self._tell()
        index = self._peer.acquire(timeout, self._sync, handle)
        if index < 0:
            raise self._refused(index, "acquire", timeout)
        return self._begin(index, handle)

    def latest(self, timeout=None, *, stream=None):
        """The newest frame that this consumer has not had yet; older ones count as lost.

        Only for lossy consumers.  Blocks and raises as `acquire` does.
        """
        cdef size_t handle
        cdef int index
        if self._lossless:
            raise self._not_lossy()
        handle = self._stream_of(stream)
        if self._untold:
            self._tell()
        index = self._peer.latest(timeout, self._sync, handle)
        if index < 0:
            raise self._refused(index, "latest", timeout)
        return self._begin(index, handle)

    cdef ReadSlot _begin(self, int index, size_t handle):
        cdef ReadSlot slot = self._slots[index]
        slot._begin_read(handle)
        return slot

    def acquire_many(self, n, timeout=None, *, stream=None):
        """Up to `n` frames at once, at least one: a ReadBatch, a tuple of slots in order of sequences.

        Blocks as `acquire` does until there is one, then takes as many as are published.  One call into
        the driver orders `stream` after all of them, and one records the reads when the batch is
        released.  Raises as `acquire` does; no frame is held by a call that raises.
        """
        cdef unsigned wanted = self._at_most(n)
        cdef size_t handle = self._stream_of(stream)
        cdef list batch = []
        cdef Peer peer = self._peer
        cdef ReadSlot slot
        cdef mem_ops ops
        cdef int index
        ops.n = 0
        if self._untold:
            self._tell()
        if peer.released.torn_meanwhile():
            raise self._refused(TORN_, "acquire", timeout)
        peer._set_deadline(timeout)
        try:
            while True:
                index = peer._take(gr_acquire, self._sync, handle, &ops, False)
                if index == DAMAGED_:  # its frame is passed over: no later call would tell
                    raise self._refused(index, "acquire", timeout)
                if index < 0:
                    break
                slot = self._begin(index, handle)
                batch.append(slot)
                if <unsigned>len(batch) >= wanted:
                    break
                peer.me.deadline_ns = 0  # the others only if they are there
            if batch and not peer.me.left:  # else a signal handler has closed us, and given them back
                if ops.n:
                    peer._submit(self._sync, handle, &ops)
                return self._batch(batch)
        except BaseException:
            if peer.me.told:  # handed out with the last of the batch, which nobody gets
                peer.me.lost = 0
            for slot in reversed(batch):
                slot._open = False
                peer.me.lost += slot._lost
                gr_give_back(&peer.me, slot.index, slot._seq)
            raise
        raise self._refused(index, "acquire", timeout)
