# On which stream a fence operation is (docs/decisions/0008).


cdef enum:
    UNPAID = ~<uint64_t>0  # the last promise may be unpaid: the slot is not given up before the next one is paid


@cython.final
cdef class Recorded:
    """On which stream the last fence operation of one peer on each slot is."""

    cdef uint64_t *on        # [slot]: id_of that stream; 0: unknown; UNPAID
    cdef size_t last_stream  # what was recorded on last, and its id as it was asked for at some time
    cdef uint64_t last_id
    cdef uint64_t id_now     # id_of the stream of the call in progress; 0: not asked for

    def __cinit__(self, uint32_t slots):
        self.on = <uint64_t *>calloc(slots, sizeof(uint64_t))
        if self.on == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.on)

    cdef uint64_t id_for(self, DeviceOrder device, size_t stream) noexcept:
        """What a record on `stream` notes.  0: of the per-thread default stream, another one in each thread.

        It may be that of a destroyed stream whose handle is used again: then it is not equal to what is_on
        asks for, and a wait too many is all that comes of it.
        """
        if stream == PER_THREAD:
            return 0
        if stream != self.last_stream or self.last_id == 0:
            self.last_stream, self.last_id = stream, device.id_of(stream)
        return self.last_id

    cdef bint is_on(self, DeviceOrder device, size_t stream, uint32_t index) noexcept:
        """Whether the last fence operation on the slot is on this very stream.

        If the id that was noted with it is the stream's now, the stream was there when the id was asked for and
        is there still, so that its handle has meant this stream all the time.
        """
        if self.on[index] == 0 or self.on[index] == UNPAID or stream == PER_THREAD:
            return False
        if self.id_now == 0:
            self.id_now = device.id_of(stream)
            self.last_stream, self.last_id = stream, self.id_now
        return self.on[index] == self.id_now

    cdef bint is_unpaid(self, uint32_t index) noexcept:
        """Whether the slot may not be given up yet: see Peer._settle, Peer._refuse_capture."""
        return self.on[index] == UNPAID
