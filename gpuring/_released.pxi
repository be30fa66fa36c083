# Frames that may still turn out torn after their release (docs/decisions/0003).


cdef struct released_frame:
    uint32_t index, owner
    uint64_t seq, value


@cython.final
cdef class Released:
    """Frames that one peer has released while their producer's GPU was at work on them.

    Each is kept until its producer's fence is paid.  Paid by the GPU or raised by a reaper: the torn mark,
    set before a fence is raised, tells.  (It may call a frame torn that another producer finished in the
    same slot just before: a false alarm, never a false all-clear.)
    """

    cdef Header header
    cdef uint32_t *producer  # [slot]: of the frame that is held
    cdef released_frame *frames
    cdef size_t n, room, limit
    cdef uint64_t reaps  # deaths up to which they were looked through
    cdef readonly list torn
    """Sequences that turned out torn, as the last look found them."""

    def __cinit__(self, Header header not None):
        self.header = header
        self.reaps = load_acquire(&header.ring.head.reaps)
        self.limit = 2 * header.ring.slots
        self.torn = []
        self.producer = <uint32_t *>calloc(header.ring.slots, sizeof(uint32_t))
        if self.producer == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.producer)
        free(self.frames)

    cdef int add(self, uint32_t index, uint64_t seq, uint32_t owner, uint64_t value) except -1:
        cdef size_t room
        cdef void *more
        if self.n == self.room:
            room = 2 * self.room + 4 * self.header.ring.slots
            more = realloc(self.frames, room * sizeof(released_frame))
            if more == NULL:
                raise MemoryError
            self.frames, self.room = <released_frame *>more, room
        self.frames[self.n] = released_frame(index, owner, seq, value)
        self.n += 1
        return 0

    cpdef int tell_later(self, uint32_t index, uint64_t seq) except -1:
        """A frame that is known to be torn, while something else has to be raised."""
        self.add(index, seq, 0, 0)
        self.limit = 0
        return 0

    cdef bint is_torn(self, size_t k) noexcept:
        cdef released_frame *frame = &self.frames[k]
        return self.is_paid(k) and load_acquire(&self.header.ring.slot[frame.index].torn) >= frame.seq

    cdef bint is_paid(self, size_t k) noexcept:
        cdef released_frame *frame = &self.frames[k]
        return load_acquire(fence_of(self.header.ring, frame.index, frame.owner)) >= frame.value

    cdef bint torn_meanwhile(self) except? True:
        return self.is_due() and self.look()

    cdef bint is_due(self) noexcept:
        """Whether somebody has died since the last look, or it is time to forget what was paid."""
        if self.n == 0:
            return False
        return self.n > self.limit or load_acquire(&self.header.ring.head.reaps) != self.reaps

    cdef bint would_tell(self) noexcept:
        """What torn_meanwhile would say, without telling."""
        cdef size_t k
        if not self.is_due():
            return False
        for k in range(self.n):
            if self.is_torn(k):
                return True
        return False

    cpdef bint look(self) except? True:
        """Whether any have turned out torn since; `torn` names them, and they are told with that."""
        cdef size_t k, still = 0
        self.reaps = load_acquire(&self.header.ring.head.reaps)
        if self.torn:
            self.torn = []
        for k in range(self.n):
            if not self.is_paid(k):
                self.frames[still] = self.frames[k]
                still += 1
            elif self.is_torn(k):
                self.torn.append(self.frames[k].seq)
        self.n = still
        self.limit = 2 * max(still, <size_t>self.header.ring.slots)
        return bool(self.torn)
