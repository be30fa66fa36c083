"""The verbs of a peer without slot objects, for tests of the core: an index and a sequence name the frame.  And words of a
header that tests look at, and which GPU owns the slots.

An editable install builds this module beside its source.  No wheel has it.
"""
from libc.signal cimport SIGINT
from libc.signal cimport raise_ as c_raise
from libc.stdint cimport INT64_MAX, uint32_t, uint64_t

from gpuring.native.c cimport *
from gpuring.native.clock cimport deadline_of
from gpuring.native.device cimport Device, Driver
from gpuring.native.header cimport Header
from gpuring.native.names cimport refuse
from gpuring.native.subscriptions cimport pad, set_start
from gpuring.native.peer cimport ABANDON, ACQUIRE, CLAIM, LATEST, PUBLISH, RELEASE, Peer, verb
from gpuring.ring.slot cimport Slot

from gpuring.native import joining
from gpuring.native.results import TORN


cdef extern from "core/claim.h" nogil:
    uint64_t gr_promise(gr_peer *me, uint32_t index, uint64_t seq)
    gr_result gr_publish(gr_peer *me, uint32_t index, uint64_t seq, uint64_t value, uint32_t ndim, const uint64_t *shape)


def join_producer(Header header not None, Device device=None, bint gate_host=False):
    """As gpuring.native.join_producer, with a RawPeer."""
    return joining.join_producer(RawPeer(header), device, gate_host)


def join_consumer(Header header not None, bytes name, bint lossless, start, bint redeliver=True, Device device=None,
                  bint gate_host=False):
    """As gpuring.native.join_consumer, with a RawPeer."""
    return joining.join_consumer(RawPeer(header), name, lossless, start, redeliver, device, gate_host)


def fence(Header header not None, uint32_t peer, uint32_t index):
    return gr_load_acquire(fence_of(header.ring, index, peer))


def work(Header header not None, uint32_t peer, uint32_t index):
    return gr_load_acquire(work_of(header.ring, index, peer))


def raise_fence(Header header not None, uint32_t peer, uint32_t index, uint64_t value):
    gr_raise_to(fence_of(header.ring, index, peer), value)


def torn(Header header not None, uint32_t index, uint32_t producer, uint64_t producer_id, uint64_t value):
    """Whether a frame is torn.  Its producer's fence has `value` then, but only because a reaper raised it."""
    return gr_load_acquire(fence_of(header.ring, index, producer)) >= value and \
        gr_torn(header.ring, index, producer, producer_id, value)


def gpu_owner(Driver driver not None, int device, bytes wanted not None, str ring not None):
    """The ordinal of the GPU `wanted`, which `device` is or can reach.  Raises DeviceError."""
    cdef gpuring_error error
    cdef int owner
    if gm_owner_of(driver.driver, device, wanted, ring.encode(), &owner, &error) != GPURING_OK:
        refuse(&error)
    return owner


def peer_id(Header header not None, uint32_t peer):
    """Tells the successive owners of one peer number apart."""
    return gr_load_acquire(&header.ring.peer[peer].id)


def has_producer(Header header not None):
    return gr_load_acquire(&header.ring.head.producers) >> 8 & 0xFF != 0


def joins(Header header not None):
    return gr_load_acquire(&header.ring.head.joins)


def is_retired(Header header not None):
    return gr_load_acquire(&header.ring.head.magic) == 0


def nbytes(Header header not None):
    return header.ring.layout.nbytes


def remembered(Peer peer not None):
    """How many frames it has released that may still turn out torn."""
    return peer.gd.released.n


def reserved(Peer peer not None):
    """For how many more it keeps room."""
    return peer.gd.released.reserved


def driver_symbols():
    """The names of all functions that a Driver needs."""
    names = []
    cdef const char *missing
    cdef gd_driver driver
    gd_driver_fill(&driver, _note, <void *>names, &missing)
    return names


cdef int pushed = 0


cdef int _push(void *context) noexcept nogil:
    global pushed
    pushed += 1
    return c_raise(SIGINT)


cdef int _pop(void **context) noexcept nogil:
    global pushed
    pushed -= 1
    return 0


cdef int _do_nothing() noexcept nogil:
    return 0


def interrupting_driver():
    """A Driver that does nothing.  Ctrl-C is pressed whenever a context is pushed."""
    table = dict.fromkeys(driver_symbols(), <size_t>&_do_nothing)
    return Driver(table | {"cuCtxPushCurrent_v2": <size_t>&_push, "cuCtxPopCurrent_v2": <size_t>&_pop})


def pushed_contexts():
    """How many of them were not popped."""
    return pushed


cdef void *_note(void *names, const char *symbol) noexcept with gil:
    (<list>names).append(symbol.decode())
    return <void *>names  # not NULL, and never called


def forget_other_streams(Slot slot not None):
    """The end of the slot waits for the stream only that it was claimed or acquired for."""
    slot.use.streams = 1


def note_promise(Slot slot not None, uint64_t value):
    """As if the frame of a slot that is read had come with that promise of its producer."""
    slot.use.value = value


cdef class RawPeer(Peer):
    seq = property(lambda RawPeer self: self.gd.core.last.seq)
    lost = property(lambda RawPeer self: self.gd.core.last.lost + self.gd.core.last.upstream)
    redelivered = property(lambda RawPeer self: self.gd.core.last.redelivered)

    def claim(self, timeout=None, size_t stream=0):
        """Returns the index of the claimed slot, or a negative result."""
        return self._raw(timeout, stream, CLAIM)

    def acquire(self, timeout=None, size_t stream=0):
        """Returns the index of the slot of the next frame, or a negative result."""
        return self._raw(timeout, stream, ACQUIRE)

    def latest(self, timeout=None, size_t stream=0):
        """Returns the index of the slot of the newest frame, or a negative result."""
        return self._raw(timeout, stream, LATEST)

    cdef int _raw(self, timeout, size_t stream, verb which) except? -1000:
        cdef gd_call call
        cdef uint32_t index = 0
        cdef int result
        gd_begin(&call, stream, deadline_of(timeout), 1, &index)
        result = self.take(&call, which)
        return result if result else <int>index

    def publish(self, uint32_t index, uint64_t seq, shape=None, size_t stream=0):
        """Returns 0 or a negative result, as abandon and release do."""
        cdef gd_use *use = &self.gd.use[index]
        cdef uint32_t k
        use.ndim = 0 if shape is None else len(shape)
        for k in range(use.ndim):
            use.shape[k] = shape[k]
        return self._finish(index, seq, stream, PUBLISH)

    def abandon(self, uint32_t index, uint64_t seq, size_t stream=0):
        return self._finish(index, seq, stream, ABANDON)

    def release(self, uint32_t index, uint64_t seq, size_t stream=0):
        """Returns 0, TORN (the frame is released, and known to be torn) or another negative result."""
        return self._finish(index, seq, stream, RELEASE)

    cdef int _finish(self, uint32_t index, uint64_t seq, size_t stream, verb which) except? -1000:
        cdef gd_call call
        cdef gd_use *use = &self.gd.use[index]
        cdef int result
        cdef uint64_t value
        use.seq, use.open = seq, True
        if self.device is None:  # as on a GPU that has done all work when it is promised
            value = gr_promise(&self.gd.core, index, seq)
            gr_raise_to(fence_of(self.gd.core.ring, index, self.gd.core.self.number), value)
            if which == PUBLISH:
                use.open = False
                return -<int>gr_publish(&self.gd.core, index, seq, value, use.ndim, use.shape)
        gd_begin(&call, stream, INT64_MAX, 1, &index)
        result = self.end(&call, which)
        return TORN if result == 0 and call.torns else result


# ---- what rings owe to durable subscriptions that had the name earlier: each of the core's steps alone


def subscribe_owed(Header header not None, bytes name not None, *, bint lossless, bint redeliver, start, uint64_t patience_ns,
                   uint64_t owed=0, uint64_t earlier=0):
    """As gpuring.native.subscribe, with what the ring before owes, and whether others may owe it something."""
    cdef gr_terms terms
    cdef char padded[64]
    pad(padded, name)
    terms.mode = GR_LOSSLESS if lossless else GR_LOSSY
    terms.policy = GR_REDELIVER if redeliver else GR_DROP
    terms.start = 0
    set_start(&terms, start)
    terms.patience_ns, terms.owed, terms.earlier = patience_ns, owed, earlier
    return -<int>gr_subscribe(header.ring, padded, &terms)


def owed(Header header not None, uint32_t subscription):
    """How many frames it has lost that nobody was told of.  None: a member lives, or nobody can tell."""
    cdef uint64_t n = 0
    return n if gr_owed(header.ring, subscription, &n) == GR_OK else None


def settle(Header header not None, uint32_t subscription, uint64_t number, uint64_t owed):
    return -<int>gr_settle(header.ring, subscription, number, owed)


def being_settled(Header header not None, uint32_t subscription):
    return gr_being_settled(header.ring, subscription)


def settled(Header header not None, uint32_t subscription):
    return -<int>gr_settled(header.ring, subscription)
