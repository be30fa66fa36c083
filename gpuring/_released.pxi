# Frames that may still turn out torn after their release (docs/decisions/0003).


cdef struct released_frame:
    uint32_t index, producer
    uint64_t producer_id, seq, value
    bint known  # to be torn


@cython.final
cdef class Released:
    """Frames that one peer has released while their producer's GPU was at work on them.

    Each is kept until its producer's fence is paid.  Paid by the GPU or raised by a reaper: gr_torn tells.
    """

    cdef Header header
    cdef released_frame *held  # [slot]: the frame that is held
    cdef released_frame *frames
    cdef size_t n, room, limit
    cdef uint64_t reaps  # deaths up to which they were looked through
    cdef readonly list torn
    """Sequences that turned out torn, as the last look found them."""

    def __cinit__(self, Header header not None):
        self.header = header
        self.reaps = gr_load_acquire(&header.ring.head.reaps)
        self.limit = 2 * header.ring.slots
        self.torn = []
        self.held = <released_frame *>calloc(header.ring.slots, sizeof(released_frame))
        if self.held == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.held)
        free(self.frames)

    cdef void hold(self, gr_peer *me) noexcept:
        """The frame of the last acquire."""
        self.held[me.index] = released_frame(me.index, me.producer, me.producer_id, me.seq, me.value, False)

    cdef int add(self, released_frame *frame) except -1:
        cdef size_t room
        cdef void *more
        if self.n == self.room:
            room = 2 * self.room + 4 * self.header.ring.slots
            more = realloc(self.frames, room * sizeof(released_frame))
            if more == NULL:
                raise MemoryError
            self.frames, self.room = <released_frame *>more, room
        self.frames[self.n] = frame[0]
        self.n += 1
        return 0

    cpdef int tell_later(self, uint32_t index, uint64_t seq) except -1:
        """A frame that is known to be torn, while something else has to be raised."""
        cdef released_frame frame = released_frame(index, 0, 0, seq, 0, True)
        self.add(&frame)
        self.limit = 0
        return 0

    cdef bint is_torn(self, released_frame *frame) noexcept:
        return frame.known or (self.is_paid(frame) and gr_torn(
            self.header.ring, frame.index, frame.producer, frame.producer_id, frame.value))

    cdef bint is_paid(self, released_frame *frame) noexcept:
        return gr_load_acquire(fence_of(self.header.ring, frame.index, frame.producer)) >= frame.value

    cdef bint torn_meanwhile(self) except? True:
        return self.is_due() and self.look()

    cdef bint is_due(self) noexcept:
        """Whether somebody has died since the last look, or it is time to forget what was paid."""
        if self.n == 0:
            return False
        return self.n > self.limit or gr_load_acquire(&self.header.ring.head.reaps) != self.reaps

    cdef bint would_tell(self) noexcept:
        """What torn_meanwhile would say, without telling."""
        cdef size_t k
        if not self.is_due():
            return False
        for k in range(self.n):
            if self.is_torn(&self.frames[k]):
                return True
        return False

    cpdef bint look(self) except? True:
        """Whether any have turned out torn since; `torn` names them, and they are told with that."""
        cdef size_t k, still = 0
        self.reaps = gr_load_acquire(&self.header.ring.head.reaps)
        if self.torn:
            self.torn = []
        for k in range(self.n):
            if not self.is_paid(&self.frames[k]):
                self.frames[still] = self.frames[k]
                still += 1
            elif self.is_torn(&self.frames[k]):
                self.torn.append(self.frames[k].seq)
        self.n = still
        self.limit = 2 * max(still, <size_t>self.header.ring.slots)
        return bool(self.torn)
