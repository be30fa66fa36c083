# Device order without Python: the driver's functions, called as soon as a verb has need of them.
#
# The core knows no GPU and nothing here links to CUDA: gpuring.sync gives the addresses.  What one call
# on one stream can do is done here; the rest (a thread that has no context yet, several streams, an event
# met for the first time, the host gate, errors) is left to `record` and `order` of the synchroniser.
# The GIL is released around calls that may block: a stream's queue can be full, and what empties it may
# be another thread of this process.

ctypedef int (*cu_get_device)(int *) noexcept nogil
ctypedef int (*cu_stream_is_capturing)(void *, int *) noexcept nogil
ctypedef intptr_t (*fast_stream)() noexcept
ctypedef int (*cu_stream_get_id)(void *, unsigned long long *) noexcept nogil
ctypedef int (*cu_stream_value)(void *, uint64_t, uint64_t, unsigned) noexcept nogil
ctypedef int (*cu_batch_mem_op)(void *, unsigned, void *, unsigned) noexcept nogil
ctypedef int (*cu_event_record)(void *, void *) noexcept nogil
ctypedef int (*cu_event_query)(void *) noexcept nogil
ctypedef int (*cu_stream_wait_event)(void *, void *, unsigned) noexcept nogil

cdef enum:
    CU_NOT_READY = 600
    CU_CAPTURE = 900  # … 908: what was asked for cannot be done while a stream is captured
    CU_CAPTURE_END = 909
    CU_WAIT_64 = 4   # CU_STREAM_MEM_OP_WAIT_VALUE_64
    CU_WRITE_64 = 5  # CU_STREAM_MEM_OP_WRITE_VALUE_64
    LEGACY = 0       # the default stream, of which 1 is another name
    PER_THREAD = 2   # handles up to this one belong to whatever device is current
    MAX_OPS = 128    # in one submission (CUDA takes 256); a claim has at most one for each peer
    BY_PYTHON = -1   # not to be done here

cdef inline bint is_capture(int status) noexcept nogil:
    return CU_CAPTURE <= status < CU_CAPTURE_END


cdef struct mem_op:  # CUstreamBatchMemOpParams.  The flags: a wait for >=, a write behind all earlier work
    uint32_t operation, _1
    uint64_t address, value
    uint32_t flags, _2
    uint64_t alias, _3

cdef struct mem_ops:
    unsigned n
    mem_op op[MAX_OPS]


cdef class EventRow:
    """The events of one peer as seen from here.  Whoever uses one holds the row, so that a row that
    another thread replaces outlives the use."""

    cdef uint32_t slots
    cdef void **events
    cdef readonly uint64_t peer_id
    cdef object __weakref__

    def __cinit__(self, uint64_t peer_id, uint32_t slots, *_):
        self.events = <void **>calloc(slots, sizeof(void *))
        if self.events == NULL:
            raise MemoryError
        self.peer_id, self.slots = peer_id, slots

    def __dealloc__(self):
        free(self.events)

    def __getitem__(self, uint32_t index):
        """The event of a slot, 0 for none yet."""
        if index >= self.slots:
            raise IndexError(index)
        return <size_t>self.events[index]

    def __setitem__(self, uint32_t index, size_t event):
        if index >= self.slots:
            raise IndexError(index)
        self.events[index] = <void *>event


cdef class DeviceOrder:
    """What the synchronisers of gpuring.sync derive from."""

    cdef readonly Header header
    cdef int device
    cdef bint armed
    cdef uint64_t base  # timeline: where the GPU has the fence table; 0: events
    cdef readonly list rows
    """Events: an EventRow for each peer that was met, else None."""
    cdef object get_current_stream
    cdef fast_stream fast_current_stream
    cdef cu_get_device get_device
    cdef cu_stream_is_capturing is_capturing
    cdef cu_stream_get_id get_id
    cdef cu_stream_value wait_value, write_value
    cdef cu_batch_mem_op batch
    cdef cu_event_record event_record
    cdef cu_event_query event_query
    cdef cu_stream_wait_event wait_event

    def __cinit__(self, *_, **__):
        self.armed = False

    def arm(self, Header header not None, int device, get_current_stream, function, uint64_t base=0,
            capsule=None):
        """`function`: the address of a driver function by its name; `base`: for the timeline; `capsule`: of
        a C function that gives the handle of the current stream, or None."""
        self.fast_current_stream = NULL
        if capsule is not None:
            self.fast_current_stream = <fast_stream>PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule))
        self.header, self.device, self.base = header, device, base
        self.get_current_stream = get_current_stream
        self.rows = [None] * header.ring.max_peers
        self.get_device = <cu_get_device><size_t>function("cuCtxGetDevice")
        self.is_capturing = <cu_stream_is_capturing><size_t>function("cuStreamIsCapturing")
        self.get_id = <cu_stream_get_id><size_t>function("cuStreamGetId")
        self.write_value = <cu_stream_value><size_t>function("cuStreamWriteValue64_v2")
        self.wait_value = <cu_stream_value><size_t>function("cuStreamWaitValue64_v2")
        self.batch = <cu_batch_mem_op><size_t>function("cuStreamBatchMemOp_v2")
        self.event_record = <cu_event_record><size_t>function("cuEventRecord")
        self.event_query = <cu_event_query><size_t>function("cuEventQuery")
        self.wait_event = <cu_stream_wait_event><size_t>function("cuStreamWaitEvent")
        self.armed = True

    def disarm(self):
        """From now on everything is done by `record` and `order`."""
        self.armed = False

    cdef size_t current(self) except? 1:
        cdef intptr_t stream
        if self.fast_current_stream == NULL:
            return self.get_current_stream().ptr
        stream = self.fast_current_stream()
        if PyErr_Occurred() != NULL:
            return 1  # with the exception set
        return <size_t>stream

    cdef bint usable(self, size_t stream) noexcept:
        """Whether this thread may use `stream` now."""
        cdef int device = -1
        return self.armed and self.get_device(&device) == 0 and (stream > PER_THREAD or device == self.device)

    cdef int captured(self, size_t stream) noexcept nogil:
        """0, or why nothing of ours may go into `stream` now: it would be recorded into a graph that is being
        captured, and not be done, or it would spoil the capture.

        Asked before each operation, and costs as little as a driver call can.  (No operation of ours would
        tell: writes and waits of words, and records, are captured without an error.)
        """
        cdef int capturing = 0, status
        if self.is_capturing == NULL:
            return 0
        status = self.is_capturing(<void *>stream, &capturing)
        if status == 0:
            return CU_CAPTURE if capturing else 0
        return status if is_capture(status) else 0  # any other error the operation itself will tell

    cdef uint64_t id_of(self, size_t stream) noexcept:
        """Tells `stream` from all others in the life of this process; 0: not to be had.

        Its handle does not: the driver gives that out again as soon as a stream is destroyed, whose work may
        be far from done.
        """
        cdef unsigned long long number = 0
        cdef int status
        with nogil:
            status = self.captured(stream)  # to be asked its id would end the capture
            if status == 0:
                status = self.get_id(<void *>stream, &number)
        return 0 if status else number + 1

    def refuse_capture(self, size_t stream):
        """Raises DeviceError if `stream` is being captured."""
        cdef int status
        with nogil:
            status = self.captured(stream)
        if status:
            raise self.refused(stream, status)

    cdef void add(self, mem_ops *ops, uint32_t operation, uint32_t peer, uint32_t index, uint64_t value) noexcept:
        cdef mem_op *op = &ops.op[ops.n]
        memset(op, 0, sizeof(mem_op))
        op.operation, op.value = operation, value
        op.address = self.base + 8 * (<uint64_t>index * self.header.ring.max_peers + peer)
        ops.n += 1

    cdef int submit(self, size_t stream, mem_ops *ops) noexcept:
        """All of `ops` in one driver call; 0 or the driver's error.  If that is_capture, nothing was enqueued."""
        cdef int status = 0
        cdef unsigned n = ops.n
        cdef mem_op *op = ops.op
        if n == 0:
            return 0
        ops.n = 0
        with nogil:
            status = self.captured(stream)
            if status:
                pass
            elif n > 1:
                status = self.batch(<void *>stream, n, op, 0)
            elif op.operation == CU_WAIT_64:
                status = self.wait_value(<void *>stream, op.address, op.value, 0)
            else:
                status = self.write_value(<void *>stream, op.address, op.value, 0)
        return status

    cdef int record_on(self, size_t stream, uint32_t peer, uint32_t index, uint64_t value) except? -2:
        """fence[index][peer] = value when `stream` gets there; 0, BY_PYTHON, or the driver's error, as submit."""
        cdef int status
        cdef EventRow row
        cdef void *event
        cdef uint64_t word
        if self.base:
            word = self.base + 8 * (<uint64_t>index * self.header.ring.max_peers + peer)
            with nogil:
                status = self.captured(stream)
                if status == 0:
                    status = self.write_value(<void *>stream, word, value, 0)
        else:
            row = self.rows[peer]
            if row is None:  # closed meanwhile
                return BY_PYTHON
            event = row.events[index]
            with nogil:
                status = self.captured(stream)
                if status == 0:
                    status = self.event_record(event, <void *>stream)
        return status

    cdef int order_event(self, Peer peer, size_t stream, uint32_t owner, uint32_t index, uint64_t value) except? -2:
        """0: complete, or the stream waits; BY_PYTHON; else the driver's error."""
        cdef EventRow own, row = self.rows[owner]
        cdef int status
        cdef void *event
        cdef void *ours
        cdef void *last
        if row is None or row.peer_id != gr_load_acquire(&self.header.ring.peer[owner].id):
            return BY_PYTHON
        event = row.events[index]
        if event == NULL:
            return BY_PYTHON
        own = self.rows[peer.me.number]
        if own is None or own.peer_id != peer.me.id:
            return BY_PYTHON
        status = self.event_query(event)
        if status == CU_NOT_READY and not peer.gate_host and peer.me.deadline_ns:
            ours, last = own.events[index], own.events[peer.me.last_index]
            with nogil:
                if gr_soon(&peer.me, owner, index, value, self.event_query, event, ours, last):
                    status = 0
        if status == 0:
            # Exactly the value that was asked for: a higher one may be promised but not recorded yet.
            gr_raise_to(fence_of(self.header.ring, index, owner), value)
            return 0
        if status != CU_NOT_READY or peer.gate_host:
            return BY_PYTHON
        with nogil:
            status = self.captured(stream)
            if status == 0:
                status = self.wait_event(<void *>stream, event, 0)
        return status

    cdef bint is_done(self, uint32_t owner, uint32_t index, uint64_t value) noexcept:
        """Whether the GPU has written a frame that is held, though nobody has asked its event since.

        For if its producer dies, it is called torn unless the fence word says the same.
        """
        cdef EventRow row = self.rows[owner]
        if self.base or row is None or row.peer_id != gr_load_acquire(&self.header.ring.peer[owner].id):
            return False
        if row.events[index] == NULL or self.event_query(row.events[index]):
            return False
        gr_raise_to(fence_of(self.header.ring, index, owner), value)
        return True

    def enqueue_write(self, size_t stream, uint32_t peer, uint32_t index, uint64_t value):
        """`stream` stores fence[index][peer] = value when it gets there.  0 or the driver's error."""
        cdef mem_ops ops
        ops.n = 0
        self.add(&ops, CU_WRITE_64, peer, index, value)
        return self.submit(stream, &ops)

    def enqueue_wait(self, size_t stream, uint32_t peer, uint32_t index, uint64_t value):
        """`stream` waits for fence[index][peer] >= value.  0 or the driver's error."""
        cdef mem_ops ops
        ops.n = 0
        self.add(&ops, CU_WAIT_64, peer, index, value)
        return self.submit(stream, &ops)
