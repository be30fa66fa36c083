cdef tuple told_of(gr_culprit *c):
    return (<int>c.reason, None if c.peer == GR_NONE else c.peer,
            None if c.subscription == GR_NONE else c.subscription, c.seq, c.since_ns)


cdef gr_result look_to_claim(gr_peer *me) noexcept nogil:
    return gr_look(me, &me.seq, &me.culprit)


@cython.no_gc_clear  # __dealloc__ needs the header
cdef class Peer:
    """One entry of the peer table: a producer or a consumer, used by one thread at a time.

    `sync` is None on host memory, else an object of gpuring.sync; `stream` is what it takes.
    """

    cdef gr_peer me
    cdef readonly Header header
    cdef bint busy
    cdef public bint gate_host
    """Whether it waits for others' GPU work on the host."""
    cdef Recorded recorded
    cdef readonly Released released

    def __cinit__(self, Header header not None):
        self.header = header
        self.recorded = Recorded(header.ring.slots)
        self.released = Released(header)

    def __dealloc__(self):
        """A join that a Ctrl-C cut short leaves again; a peer that was used is closed by its owner."""
        cdef uint32_t i
        cdef uint64_t seq
        if self.me.ring == NULL or self.me.left or self.me.ring.lock_fd < 0 or gr_forked(self.me.ring):
            return
        for i in range(self.me.ring.slots):
            if gr_holds(&self.me, i, &seq) or gr_load_acquire(fence_of(self.me.ring, i, self.me.number)) < \
                    gr_load_acquire(work_of(self.me.ring, i, self.me.number)):
                return
        gr_leave(&self.me)

    number = property(lambda Peer self: self.me.number)
    id = property(lambda Peer self: self.me.id)
    subscription = property(lambda Peer self: self.me.u)
    seq = property(lambda Peer self: self.me.seq)
    lost = property(lambda Peer self: self.me.lost)
    redelivered = property(lambda Peer self: self.me.redelivered)
    left = property(lambda Peer self: self.me.left)
    position = property(lambda Peer self: self.me.pos)

    @property
    def culprit(self):
        """(reason, peer or None, subscription or None, seq, since_ns) of the last BLOCKED."""
        return told_of(&self.me.culprit)

    cdef int _set_deadline(self, object timeout) except -1:
        cdef double seconds
        if self.busy:
            raise RuntimeError("this peer is waiting in another thread; give each thread its own")
        self.recorded.id_now = 0
        if timeout is None:
            self.me.deadline_ns = INT64_MAX
        else:
            seconds = timeout
            if not seconds >= 0:
                raise ValueError(f"timeout must be None or >= 0 seconds, not {timeout!r}")
            self.me.deadline_ns = (INT64_MAX if seconds > 9e9 else gr_now_ns() + <int64_t>(seconds * 1e9)) if seconds else 0
        return 0

    cdef int _run(self, gr_verb verb) except? 1:
        """One verb until it is done, refused, or the deadline has passed."""
        cdef gr_result result = verb(&self.me)
        if result != GR_BLOCKED or self.me.deadline_ns == 0:
            return -<int>result
        self.busy = True
        try:
            with nogil:
                result = gr_spin(&self.me, verb)
            while result == GR_BLOCKED or result == GR_SIGNAL:
                if result == GR_BLOCKED and gr_now_ns() >= self.me.deadline_ns:
                    break
                PyErr_CheckSignals()
                with nogil:
                    result = gr_sleep(&self.me, verb)
        finally:
            self.busy = False
        return -<int>result

    cdef int _order(self, sync, size_t stream, mem_ops *ops) except -1:
        """Two clocks: the stream (or, gate "host", this thread) waits for the fences that are open.

        0: the deadline came first.  What is left in `ops` is the caller's to submit.  Our own fence needs
        no wait on the stream that it is recorded on.
        """
        cdef uint32_t k, owner, index = self.me.index
        cdef uint64_t value
        cdef int status
        cdef bint ordered, soon = False
        cdef DeviceOrder device = None
        if isinstance(sync, DeviceOrder) and (<DeviceOrder>sync).usable(stream):
            device = <DeviceOrder>sync
            if ops.n + self.me.pendings > MAX_OPS:
                self._submit(device, stream, ops)
        for k in range(self.me.pendings):
            owner, value = self.me.pending[k].peer, self.me.pending[k].value
            if gr_load_acquire(fence_of(self.me.ring, index, owner)) >= value:
                continue
            if owner == self.me.number and device is not None and self.recorded.is_on(device, stream, index):
                continue
            if device is not None:
                if device.base == 0:
                    status = device.order_event(self, stream, owner, index, value)
                    if status == 0:
                        continue
                    if status != BY_PYTHON:
                        raise device.refused(stream, status)
                elif not self.gate_host:
                    if self.me.deadline_ns:
                        with nogil:
                            soon = gr_soon(&self.me, owner, index, value, NULL, NULL, NULL, NULL)
                    if not soon:
                        device.add(ops, CU_WAIT_64, owner, index, value)
                    continue
            self.busy = True  # a signal handler may come here
            try:
                if sync is None:
                    ordered = self.wait_fence(owner, index, value)
                else:
                    ordered = sync.order(self, stream, owner, index, value)
            finally:
                self.busy = False
            if not ordered:
                self.me.culprit.reason = GR_BY_FENCE
                self.me.culprit.peer = owner
                self.me.culprit.subscription = GR_NONE
                self.me.culprit.seq = self.me.seq
                self.me.culprit.since_ns = gr_load_acquire(&self.me.ring.slot[index].time_ns)
                return 0
        return 1

    cdef int _submit(self, DeviceOrder device, size_t stream, mem_ops *ops) except -1:
        cdef int status = device.submit(stream, ops)
        if status:
            raise device.refused(stream, status)
        return 0

    cpdef bint wait_fence(self, uint32_t peer, uint32_t index, uint64_t value) except? False:
        """Waits on the host for fence[index][peer] >= value, until the deadline of the call in
        progress.  False: it passed.  Ctrl-C interrupts."""
        cdef gr_result result
        while True:
            with nogil:
                result = gr_wait_fence(&self.me, peer, index, value)
            if result != GR_SIGNAL:
                return result == GR_OK
            PyErr_CheckSignals()

    def past_deadline(self):
        """Whether the call in progress has run out of time."""
        return gr_now_ns() >= self.me.deadline_ns

    cpdef int claim(self, timeout, sync, size_t stream) except? -1000:
        """The index of the claimed slot, or a negative result."""
        cdef mem_ops ops
        self._set_deadline(timeout)
        ops.n = 0
        return self._claim(sync, stream, &ops, True)

    cdef int _claim(self, sync, size_t stream, mem_ops *ops, bint submit) except? -1000:
        cdef int result, ordered = 1
        if self.gate_host and sync is not None and not self._claimable(sync, stream, ops):
            return BLOCKED_
        result = self._run(gr_claim)
        if result < 0:
            return result
        if self.me.pendings:
            try:
                ordered = self._order(sync, stream, ops)
                if submit and ops.n:
                    self._submit(<DeviceOrder>sync, stream, ops)
            except BaseException:
                gr_abandon(&self.me, self.me.index, self.me.seq)
                raise
            if not ordered:
                gr_abandon(&self.me, self.me.index, self.me.seq)
                return BLOCKED_
        return self._still_here()

    cdef bint _claimable(self, sync, size_t stream, mem_ops *ops) except -1:
        """Host gate: waits for the fences of the next slot before it is claimed, so that a call whose time is up
        has voided nothing.  False: it is.  True: so, or the claim itself knows better.

        (Once claimed it may be another slot, a faster producer's doing: that one's fences are awaited then.)
        Only where fences are words that a GPU raises: the slot is not ours, so what is promised on it may not
        be recorded yet, and an event would say "done" of the record before.
        """
        cdef uint64_t seq = 0
        if isinstance(sync, DeviceOrder) and (<DeviceOrder>sync).base == 0:
            return True
        while self._run(look_to_claim) == 0:
            gr_list_pending(&self.me, <uint32_t>(self.me.seq % self.me.ring.slots))
            if not self.me.pendings or self.me.seq == seq:
                return True
            seq = self.me.seq
            if not self._order(sync, stream, ops):
                return False
        return True

    cdef int _still_here(self) except? -1000:
        """The index of the slot, unless a signal handler or another thread has closed us while we waited:
        then the slot was given back, and there are no slot objects any more."""
        return -<int>GR_REAPED if self.me.left else <int>self.me.index

    cpdef int acquire(self, timeout, sync, size_t stream) except? -1000:
        """The index of the slot of the next frame, or a negative result."""
        cdef mem_ops ops
        if self.released.torn_meanwhile():
            return TORN_
        self._set_deadline(timeout)
        ops.n = 0
        return self._take(gr_acquire, sync, stream, &ops, True)

    cpdef int latest(self, timeout, sync, size_t stream) except? -1000:
        """The index of the slot of the newest frame, or a negative result."""
        cdef mem_ops ops
        if self.released.torn_meanwhile():
            return TORN_
        self._set_deadline(timeout)
        ops.n = 0
        return self._take(gr_latest, sync, stream, &ops, True)

    cdef int _take(self, gr_verb verb, sync, size_t stream, mem_ops *ops, bint submit) except? -1000:
        cdef int result, ordered
        while True:
            result = self._run(verb)
            if result < 0:
                return result
            if self.me.pendings:
                try:
                    ordered = self._order(sync, stream, ops)
                    if submit and ops.n:
                        self._submit(<DeviceOrder>sync, stream, ops)
                except BaseException:
                    gr_give_back(&self.me, self.me.index, self.me.seq)
                    raise
                if not ordered:
                    gr_give_back(&self.me, self.me.index, self.me.seq)
                    return BLOCKED_
            if gr_load_acquire(&self.me.ring.slot[self.me.index].ndim) > <uint64_t>GR_MAX_NDIM:
                gr_release(&self.me, self.me.index, self.me.seq)
                return DAMAGED_
            self.released.hold(&self.me)
            if not self.torn(self.me.index):
                return self._still_here()
            # Its producer died meanwhile.  Nobody has seen the frame: pass over it.
            gr_skip_torn(&self.me)

    cdef uint64_t _record(self, uint32_t index, uint64_t seq, sync, streams) except 0:
        """Two clocks: promise, then let the GPU pay when the streams get there."""
        cdef uint64_t value = gr_promise(&self.me, index, seq), number = 0
        cdef DeviceOrder device
        cdef size_t stream
        cdef int status
        self.recorded.on[index] = 0
        if value == 0:  # reaped or forked; the verb that follows says so
            return 1
        if sync is None:
            gr_raise_to(fence_of(self.me.ring, index, self.me.number), value)
            return value
        if isinstance(sync, DeviceOrder):
            device, stream, status = <DeviceOrder>sync, streams[0], BY_PYTHON
            if len(streams) == 1 and device.usable(stream):
                number = self.recorded.id_for(device, stream)
                status = device.record_on(stream, self.me.number, index, value)
            if status == 0:
                self.recorded.on[index] = number
                return value
            self._refuse_capture(device, streams, status, [index])
            if status != BY_PYTHON:
                self._settle(sync, [(index, value)], streams)
                raise device.refused(stream, status)
        try:
            sync.record(self, index, value, streams)
        except BaseException:
            # Whether it was enqueued is unknown.  Once the streams are idle it does not matter.
            self._settle(sync, [(index, value)], streams)
            raise
        return value

    cdef int _refuse_capture(self, DeviceOrder device, streams, int status, indices) except -1:
        """Raises if `status` of an operation on the first, or of none, says that a stream is captured.

        The slots stay ours: what was done on them cannot be waited for until the capture has ended.
        """
        cdef size_t stream = streams[0]
        if status == BY_PYTHON:
            for stream in streams:
                with nogil:
                    status = device.captured(stream)
                if status:
                    break
        if is_capture(status):
            for index in indices:
                self.recorded.on[index] = UNPAID
            raise device.refused(stream, status)
        return 0

    cdef int _settle(self, sync, list promises, streams) except -1:
        """If this raises, the slots stay ours: a promise that may never be paid must not be seen, or
        others' streams, and our own, would wait for it.  The next record on the slot pays it, or leave."""
        for index, _ in promises:
            self.recorded.on[index] = UNPAID
        sync.settle(self, promises, streams)
        for index, _ in promises:
            self.recorded.on[index] = 0
        return 0

    cpdef int publish(self, uint32_t index, uint64_t seq, sync, streams, shape) except? -1000:
        """0 or a negative result.  If the fence cannot be recorded the frame is abandoned (but see _settle)."""
        cdef uint64_t value
        try:
            value = self._record(index, seq, sync, streams)
        except BaseException:
            if not self.recorded.is_unpaid(index):
                gr_abandon(&self.me, index, seq)
            raise
        return self._publish(index, seq, value, shape)

    cdef int _publish(self, uint32_t index, uint64_t seq, uint64_t value, shape) except? -1000:
        cdef uint64_t extents[8]
        cdef uint32_t ndim = 0
        if shape is not None:
            for n in shape:
                extents[ndim] = n
                ndim += 1
        return -<int>gr_publish(&self.me, index, seq, value, ndim, extents)

    cpdef int abandon(self, uint32_t index, uint64_t seq, sync, streams) except? -1000:
        try:
            self._record(index, seq, sync, streams)
        except BaseException:
            if not self.recorded.is_unpaid(index):
                gr_abandon(&self.me, index, seq)
            raise
        return -<int>gr_abandon(&self.me, index, seq)

    cpdef int release(self, uint32_t index, uint64_t seq, sync, streams) except? -1000:
        """0, TORN (it is released, and known to be torn), or a negative result."""
        try:
            self._record(index, seq, sync, streams)
        except BaseException:
            if not self.recorded.is_unpaid(index) and self._release(index, seq, sync) == TORN_:
                self.released.tell_later(index, seq)
            raise
        return self._release(index, seq, sync)

    cdef int _release(self, uint32_t index, uint64_t seq, sync) except? -1000:
        """As release, whose record is done."""
        cdef released_frame *frame = &self.released.held[index]
        cdef bint paid = self.released.is_paid(frame) or \
            (isinstance(sync, DeviceOrder) and (<DeviceOrder>sync).is_done(frame.producer, index, frame.value))
        cdef gr_result result = gr_release(&self.me, index, seq)
        if result != GR_OK:
            return -<int>result
        if not paid:
            self.released.add(frame)
        elif self.released.is_torn(frame):
            return TORN_
        return 0

    cpdef bint torn(self, uint32_t index):
        """Whether the frame in a slot that this peer holds is known to be torn."""
        return self.released.is_torn(&self.released.held[index])

    def give_up(self, uint32_t index):
        """Voids a claim on whose slot nothing was enqueued."""
        cdef uint64_t seq
        if not gr_holds(&self.me, index, &seq):
            return REAPED
        return -<int>gr_abandon(&self.me, index, seq)

    def give_back(self, uint32_t index):
        """Opens a held frame to every member again.  Nothing may have been enqueued on it."""
        cdef uint64_t seq
        if not gr_holds(&self.me, index, &seq):
            return REAPED
        return -<int>gr_give_back(&self.me, index, seq)

    def time_ns(self, uint32_t index):
        """When the frame in a slot that this peer holds was published."""
        return gr_load_acquire(&self.me.ring.slot[index].time_ns)

    def shape(self, uint32_t index):
        """The shape of the frame in a slot that this peer holds; None: the whole slot."""
        cdef gr_slot *slot = &self.me.ring.slot[index]
        cdef uint64_t ndim = gr_load_acquire(&slot.ndim), k
        if ndim == 0:
            return None
        if ndim > <uint64_t>GR_MAX_NDIM:
            raise Damaged(f"slot {index} names {ndim} dimensions")
        return tuple([gr_load_acquire(&slot.shape[k]) for k in range(ndim)])

    def holding(self):
        """[(index, seq)] of what this peer has claimed or holds now, by the header's words."""
        cdef uint64_t seq
        cdef uint32_t i
        held = []
        for i in range(self.me.ring.slots):
            if gr_holds(&self.me, i, &seq):
                held.append((i, seq))
        return held

    def drained(self):
        """Whether the GPU has paid all that this peer has promised."""
        cdef uint32_t i
        for i in range(self.me.ring.slots):
            if gr_load_acquire(fence_of(self.me.ring, i, self.me.number)) < \
                    gr_load_acquire(work_of(self.me.ring, i, self.me.number)):
                return False
        return True

    def leave(self):
        """0 or a negative result.  Everything must be finished and drained before."""
        cdef gr_result result
        with nogil:
            result = gr_leave(&self.me)
        if result == GR_SYSTEM:
            PyErr_SetFromErrno(OSError)
        return -<int>result
