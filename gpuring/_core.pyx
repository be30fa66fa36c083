# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
# cython: auto_pickle=False
"""Thin binding of core/ and device/: one Python call is one whole transition of the C library.

Nothing is decided here but when the GIL is released (a first try that neither waits nor asks the driver keeps it), when
signals are looked at (between two slices of a wait), and what a result is in Python.  Refusals come back as negative
results, which the callers word; the driver's as DeviceError.

One module, since its classes share C structs and the C library has state of the process: the header, the device, peers,
slots and their verbs, batches, and waiting for several peers.  _snapshot.pyx reads a header for people, _dlpack.pyx knows
DLPack, and neither calls a verb.
"""
import os

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals, PyErr_Occurred, PyErr_SetFromErrno
from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer
from cpython.ref cimport Py_INCREF
from libc.stdint cimport INT64_MAX, int64_t, intptr_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from gpuring import device_errors

# What a verb returns when it is refused (the negative of the C result).
BLOCKED = -<int>GR_BLOCKED
CLOSED = -<int>GR_CLOSED
ENDED = -<int>GR_ENDED
PEER_LOST = -<int>GR_PEER_LOST
REAPED = -<int>GR_REAPED
FORKED = -<int>GR_FORKED
DAMAGED = -<int>GR_DAMAGED
FULL_PEERS = -<int>GR_FULL_PEERS
FULL_SUBSCRIPTIONS = -<int>GR_FULL_SUBS
MODE_MISMATCH = -<int>GR_MODE_MISMATCH
LOCK_TIMEOUT = -<int>GR_LOCK_TIMEOUT
TORN = -<int>GR_TORN_BEHIND  # frames that this consumer has released turned out torn: Peer.take_torn() names them

# Why a verb is blocked (Peer.culprit[0]).
BY_PRODUCER = <int>GR_BY_PRODUCER
BY_HOLDER = <int>GR_BY_HOLDER
BY_SUBSCRIPTION = <int>GR_BY_SUBSCRIPTION
BY_NO_FRAME = <int>GR_BY_NO_FRAME
BY_FENCE = <int>GR_BY_FENCE

VERSION = GR_VERSION_
MAX_SLOTS = GR_MAX_SLOTS_
MAX_PEERS = GR_MAX_PEERS_
MAX_SUBSCRIPTIONS = GR_MAX_SUBSCRIPTIONS_
MAX_META_NBYTES = GR_MAX_META_
MAX_NDIM = GR_MAX_NDIM
MAX_SPEC_NBYTES = GR_MAX_SPEC
MAX_SLOT_NBYTES = GR_MAX_SLOT_NBYTES
MAX_NAME_NBYTES = 8 * GR_NAME_WORDS
MAX_WAITED = <int>GR_MAX_WAITED

MEMORY_KINDS = ("host", "cuda")
SYNC_KINDS = ("host", "event", "timeline")
GATES = ("stream", "host")

cdef enum:
    MAX_BATCH = 1024  # GR_MAX_SLOTS, which Cython does not take as the size of an array


class Damaged(Exception):
    """A header, or a frame's record, is none of this build; the text says what was found."""


def now_ns() -> int:
    """CLOCK_MONOTONIC in nanoseconds: the clock of every time in a header."""
    return gr_now_ns()


def layout_fields():
    """(table, field, offset, nbytes) of every field of the header, for the layout test."""
    fields, k = [], 0
    while gr_fields[k].table != NULL:
        fields.append((gr_fields[k].table.decode(), gr_fields[k].name.decode(),
                       gr_fields[k].offset, gr_fields[k].nbytes))
        k += 1
    return fields


# ---- the header ------------------------------------------------------------------------------------------------------


cdef class Header:
    """A mapped header.  Its buffer is the metadata table, rows of `meta_stride` bytes."""

    def __cinit__(self):
        self.ring = NULL

    def __init__(self):
        raise TypeError("a Header is made by Header.create or Header.attach")

    def __dealloc__(self):
        if self.ring != NULL:
            gr_detach(self.ring)

    @staticmethod
    def create(int fd, *, int slots, int max_peers, int max_subscriptions, str memory, str sync,
               str gate, uint64_t slot_nbytes, uint64_t meta_nbytes, bytes spec, bytes epoch,
               bytes device_uuid=bytes(16), bytes memory_handle=bytes(64)):
        """Sizes and fills the empty segment `fd`.  Raises OSError (ENOSPC: no room in /dev/shm)."""
        cdef gr_config config
        cdef gr_layout layout
        memset(&config, 0, sizeof(config))
        config.slots, config.max_peers, config.max_subscriptions = slots, max_peers, max_subscriptions
        config.memory = MEMORY_KINDS.index(memory)
        config.sync = SYNC_KINDS.index(sync)
        config.gate = GATES.index(gate)
        config.slot_nbytes, config.meta_nbytes, config.spec_nbytes = slot_nbytes, meta_nbytes, len(spec)
        cdef char why[128]
        if not gr_layout_of(&config, &layout, why, sizeof(why)):
            raise ValueError(why.decode())
        if len(epoch) != 16 or len(device_uuid) != 16 or len(memory_handle) != 64:
            raise ValueError("epoch and device_uuid have 16 bytes, memory_handle has 64")
        cdef Header header = Header.__new__(Header)
        header.ring = gr_create(fd, &config, epoch, device_uuid, memory_handle, <const char *>spec)
        if header.ring == NULL:
            try:
                PyErr_SetFromErrno(OSError)
            except OSError as error:
                error.nbytes = layout.nbytes
                raise
        return header

    @staticmethod
    def attach(int fd):
        """Maps an existing header after checking it.  Raises Damaged, OSError."""
        cdef const char *why = NULL
        cdef char text[256]
        cdef Header header = Header.__new__(Header)
        header.ring = gr_attach(fd, &why, text, sizeof(text))
        if header.ring == NULL:
            if why != NULL:
                raise Damaged(text.decode())
            PyErr_SetFromErrno(OSError)
        return header

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.ring.meta,
                          self.ring.slots * self.ring.layout.meta_stride, 0, flags)

    slots = property(lambda Header self: self.ring.slots)
    max_peers = property(lambda Header self: self.ring.max_peers)
    max_subscriptions = property(lambda Header self: self.ring.max_subscriptions)
    memory = property(lambda Header self: MEMORY_KINDS[self.ring.config.memory])
    sync = property(lambda Header self: SYNC_KINDS[self.ring.config.sync])
    gate = property(lambda Header self: GATES[self.ring.config.gate])
    slot_nbytes = property(lambda Header self: self.ring.config.slot_nbytes)
    meta_nbytes = property(lambda Header self: self.ring.config.meta_nbytes)
    meta_stride = property(lambda Header self: self.ring.layout.meta_stride)
    nbytes = property(lambda Header self: self.ring.layout.nbytes)
    epoch = property(lambda Header self: PyBytes_FromStringAndSize(<char *>self.ring.head.epoch, 16))
    device_uuid = property(lambda Header self: PyBytes_FromStringAndSize(<char *>self.ring.head.device_uuid, 16))
    memory_handle = property(lambda Header self: PyBytes_FromStringAndSize(<char *>self.ring.head.memory_handle, 64))
    spec = property(lambda Header self: PyBytes_FromStringAndSize(<char *>self.ring.spec, self.ring.config.spec_nbytes))
    created_ns = property(lambda Header self: self.ring.head.created_ns)
    creator_pid = property(lambda Header self: self.ring.head.creator_pid)
    creator_alive = property(lambda Header self: self.ring.lock_fd >= 0 and gr_creator_alive(self.ring))
    attached = property(lambda Header self: self.ring.lock_fd >= 0 and gr_attached(self.ring))
    closed = property(lambda Header self: gr_load_acquire(&self.ring.head.closed) != 0)
    has_producer = property(lambda Header self: gr_load_acquire(&self.ring.head.producers) >> 16 != 0)
    retired = property(lambda Header self: gr_load_acquire(&self.ring.head.magic) == 0)
    forked = property(lambda Header self: gr_forked(self.ring))
    frontier = property(lambda Header self: gr_frontier(self.ring))
    reaps = property(lambda Header self: gr_load_acquire(&self.ring.head.reaps))
    joins = property(lambda Header self: gr_load_acquire(&self.ring.head.joins))

    @property
    def inode(self):
        """Of the segment in /dev/shm: tells it from a later one of the same name."""
        return os.fstat(self.ring.lock_fd).st_ino if self.ring.lock_fd >= 0 else 0

    @property
    def owner(self):
        """The user id that its segment belongs to."""
        return os.fstat(self.ring.lock_fd).st_uid

    def fence(self, uint32_t peer, uint32_t index):
        return gr_load_acquire(fence_of(self.ring, index, peer))

    def work(self, uint32_t peer, uint32_t index):
        return gr_load_acquire(work_of(self.ring, index, peer))

    def raise_fence(self, uint32_t peer, uint32_t index, uint64_t value):
        """For who saw the peer's GPU work complete by other means than the word itself."""
        gr_raise_to(fence_of(self.ring, index, peer), value)

    def torn(self, uint32_t index, uint32_t producer, uint64_t producer_id, uint64_t value):
        """Whether a frame is torn: its producer's fence has `value`, but only because a reaper raised it."""
        return gr_load_acquire(fence_of(self.ring, index, producer)) >= value and \
            gr_torn(self.ring, index, producer, producer_id, value)

    def peer_id(self, uint32_t peer):
        """Tells the successive owners of one peer number apart."""
        return gr_load_acquire(&self.ring.peer[peer].id)

    def join_producer(self, Device device=None, bint gate_host=False):
        """A Peer, or a negative result.  Raises DeviceError."""
        cdef Peer peer = Peer(self)
        cdef gr_result result
        with nogil:
            result = gr_join_producer(self.ring, &peer.gd.me)
        return _joined(peer, result, device, gate_host)

    def join_consumer(self, bytes name, bint lossless, start, bint redeliver=True, Device device=None,
                      bint gate_host=False):
        """A Peer, or a negative result.  start: "next", "oldest" or a sequence.  Raises DeviceError."""
        cdef Peer peer = Peer(self)
        cdef char padded[64]
        cdef int how = GR_START_AT
        cdef uint64_t seq = 0
        cdef unsigned mode = GR_LOSSLESS if lossless else GR_LOSSY
        cdef unsigned policy = GR_REDELIVER if redeliver else GR_DROP
        cdef gr_result result
        if len(name) > 64:
            raise ValueError("a subscription's name has at most 64 bytes")
        memset(padded, 0, 64)
        memcpy(padded, <const char *>name, len(name))
        if start == "next":
            how = GR_START_NEXT
        elif start == "oldest":
            how = GR_START_OLDEST
        else:
            seq = start
        with nogil:
            result = gr_join_consumer(self.ring, padded, mode, policy, how, seq, &peer.gd.me)
        return _joined(peer, result, device, gate_host)

    def watch(self):
        """Has the process's watchdog look after this ring's peers; a join does so by itself."""
        gr_watch(self.ring)

    def reap(self):
        """Clears the dead.  Returns the peer numbers that were cleared."""
        cdef uint64_t mask = 0
        with nogil:
            gr_reap_dead(self.ring, &mask)
        return [p for p in range(64) if mask >> p & 1]

    def close_ring(self):
        """No more claims; readers drain what is there and get the end of the stream."""
        return -<int>gr_close(self.ring)

    def retire(self):
        """Clears the magic number: nobody attaches any more."""
        gr_retire(self.ring)

    def disown(self):
        """Gives up this handle's locks.  The mapping lives as long as arrays over it."""
        gr_disown(self.ring)

    def peer_pid(self, uint32_t peer):
        return gr_load_acquire(&self.ring.peer[peer].pid) if peer < self.ring.max_peers else 0

    def subscription_name(self, uint32_t subscription):
        """The bytes of its name, without padding."""
        if subscription >= self.ring.max_subscriptions:
            return b""
        return PyBytes_FromStringAndSize(<char *>self.ring.sub[subscription].name, 64).rstrip(b"\0")

    def members(self, uint32_t subscription):
        """Numbers of the peers of a subscription."""
        return [p for p in range(self.ring.max_peers)
                if state_of(gr_load_acquire(&self.ring.peer[p].word)) != GR_FREE
                and role_of(gr_load_acquire(&self.ring.peer[p].word)) == GR_CONSUMER
                and sub_of(gr_load_acquire(&self.ring.peer[p].word)) == subscription]

    def live_peers(self):
        """Numbers of the peers that are in the table and whose process lives."""
        return [p for p in range(self.ring.max_peers)
                if state_of(gr_load_acquire(&self.ring.peer[p].word)) != GR_FREE
                and self.ring.lock_fd >= 0 and gr_peer_alive(self.ring, p)]


cdef object _joined(Peer peer, gr_result result, Device device, bint gate_host):
    cdef gd_trouble trouble
    if result == GR_SYSTEM:
        PyErr_SetFromErrno(OSError)
    if result != GR_OK:
        return -<int>result
    gr_watch(peer.header.ring)
    peer.device = device
    result = gd_prepare(&peer.gd, NULL if device is None else &device.gd, gate_host, &trouble)
    if result != GR_OK:
        peer.leave()
        raise device.refused(&trouble) if result == GR_DEVICE else MemoryError()
    return peer


# ---- the GPU ---------------------------------------------------------------------------------------------------------


cdef class Driver:
    """The CUDA driver's functions.  Raises DeviceError if there is none, or one that is too old."""

    cdef gd_driver *driver
    cdef gd_driver own
    cdef object functions

    def __init__(self, functions=None):
        """`functions`: the address of each function by its symbol, for tests; None: libcuda's."""
        cdef const char *why = NULL
        cdef gr_bool found = True
        if functions is None:
            self.driver = gd_driver_load(&why, &found)
        elif gd_driver_fill(&self.own, _find, <void *>functions, &why):
            self.driver, self.functions = &self.own, functions
        if self.driver == NULL:
            raise device_errors.no_driver(why.decode(), found)

    def status_name(self, int status):
        """ "CUDA_ERROR_INVALID_VALUE"."""
        return gd_status_name(self.driver, status).decode()

    def attribute(self, int number, int device):
        """A device's attribute (CUdevice_attribute).  Raises DeviceError."""
        cdef int value = 0
        cdef int status = self.driver.init(0) or self.driver.device_get_attribute(&value, number, device)
        if status:
            raise device_errors.DeviceError(
                f"GPU {device} cannot be asked for attribute {number}: {self.status_name(status)}")
        return value

    def uuid(self, int device):
        """The 16 bytes that name a GPU (or MIG instance) in every process, whatever its ordinal there.

        Asked from the driver itself: CuPy's device properties cut the UUID at a zero byte.
        """
        cdef char uuid[16]
        cdef int status = self.driver.init(0) or self.driver.device_get_uuid(uuid, device)
        if status:
            raise device_errors.DeviceError(
                f"the driver does not tell the UUID of GPU {device}: {self.status_name(status)}")
        return PyBytes_FromStringAndSize(uuid, 16)


def driver_symbols():
    """The names of all functions that a Driver needs."""
    names = []
    cdef const char *missing
    cdef gd_driver driver
    gd_driver_fill(&driver, _note, <void *>names, &missing)
    return names


cdef void *_note(void *names, const char *symbol) noexcept with gil:
    (<list>names).append(symbol.decode())
    return <void *>names  # not NULL, and never called


cdef void *_find(void *functions, const char *symbol) noexcept with gil:
    return <void *><size_t>(<object>functions).get(symbol.decode(), 0)


_WHERE = {
    GD_ON_STREAM: "on stream", GD_CAPTURED: "captured", GD_OTHER_DEVICE: "other device", GD_NO_CONTEXT: "no context",
    GD_OPEN_EVENT: "open event", GD_MAKE_EVENTS: "make events", GD_WORK_FAILED: "work failed", GD_NOT_NOW: "not now",
    GD_REGISTER: "register", GD_NO_MEMORY: "no memory",
}

ctypedef intptr_t (*fast_stream)() noexcept


@cython.no_gc_clear  # __dealloc__ needs the header
cdef class Device:
    """How streams of this process are ordered with those of others, for one ring (device/device.h)."""

    cdef gd_device gd
    cdef readonly Header header
    cdef Driver driver
    cdef bint is_open
    cdef public object get_current_stream
    cdef fast_stream fast_current_stream
    cdef object __weakref__

    def __init__(self, Header header not None, int ordinal, get_current_stream, capsule=None, Driver driver=None):
        """`ordinal`: of the GPU under which this process has the slots; `get_current_stream`: the framework's, an object
        with `ptr`; `capsule`: of a C function that gives its handle, or None.  Raises DeviceError."""
        cdef gd_trouble trouble
        self.header, self.driver, self.get_current_stream = header, driver or Driver(), get_current_stream
        if capsule is not None:
            self.fast_current_stream = <fast_stream>PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule))
        if gd_open(&self.gd, self.driver.driver, header.ring, ordinal, &trouble) != GR_OK:
            raise self.refused(&trouble)
        self.is_open = True

    def __dealloc__(self):
        self.close()

    ordinal = property(lambda Device self: self.gd.ordinal)

    def close(self):
        """Gives up what is registered and opened.  Waits for this process's work on the GPU: a wait that is still in some
        stream reads the header."""
        if not self.is_open:
            return
        cdef bint unmapped
        self.is_open = False
        with nogil:  # a callback of the GPU's may need the GIL
            unmapped = gd_close(&self.gd)
        if not unmapped:  # another thread captures: what is mapped there next could not be registered
            Py_INCREF(self.header)

    cdef object refused(self, const gd_trouble *trouble):
        return device_errors.refused(
            _WHERE[trouble.where], self.driver.status_name(trouble.status), ordinal=self.gd.ordinal,
            stream=trouble.stream, peer=trouble.peer, index=trouble.index, value=trouble.value,
            pid=self.header.peer_pid(trouble.peer), made=self.driver.driver.made_count)

    cpdef size_t current(self) except? 1:
        """The handle of the framework's current stream, of this thread."""
        cdef intptr_t stream
        if self.fast_current_stream == NULL:
            return self.get_current_stream().ptr
        stream = self.fast_current_stream()
        if PyErr_Occurred() != NULL:
            return 1  # with the exception set
        return <size_t>stream

    def check_stream(self, size_t stream):
        """Raises DeviceError if `stream` may not be used for the ring now: another GPU's, or one that is being captured."""
        cdef gd_trouble trouble
        cdef gr_result result
        with nogil:
            result = gd_check_stream(&self.gd, stream, &trouble)
        if result != GR_OK:
            raise self.refused(&trouble)

    def follow(self, size_t stream, others):
        """Makes `stream` wait for all work so far on `others`.  Raises DeviceError."""
        cdef gd_trouble trouble
        cdef gr_result result = GR_OK
        cdef gd_stream other
        if not others:
            self.check_stream(stream)
        for each in others:
            other = each
            with nogil:
                result = gd_follow(&self.gd, stream, &other, 1, &trouble)
            if result != GR_OK:
                raise self.refused(&trouble)


# ---- peers -----------------------------------------------------------------------------------------------------------


ctypedef gr_result (*gd_ending)(gd_peer *, gd_call *, unsigned) noexcept nogil


cdef int64_t _deadline(object timeout) except -1:
    """On the clock of gr_now_ns; 0: at once."""
    cdef double seconds
    if timeout is None:
        return INT64_MAX
    seconds = timeout
    if not seconds >= 0:
        raise ValueError(f"timeout must be None or >= 0 seconds, not {timeout!r}")
    if not seconds:
        return 0
    return INT64_MAX if seconds > 9e9 else gr_now_ns() + <int64_t>(seconds * 1e9)


cdef tuple _told_of(const gr_culprit *c):
    return (<int>c.reason, None if c.peer == GR_NONE else c.peer,
            None if c.subscription == GR_NONE else c.subscription, c.seq, c.since_ns)


@cython.no_gc_clear  # __dealloc__ needs the header
cdef class Peer:
    """One entry of the peer table with its device order: a producer or a consumer."""

    cdef gd_peer gd
    cdef readonly Header header
    cdef readonly Device device
    cdef bint busy

    def __cinit__(self, Header header not None):
        self.header = header

    def __dealloc__(self):
        """A join that a Ctrl-C cut short leaves again; a peer that was used is closed by its owner."""
        cdef uint32_t i
        cdef uint64_t seq
        cdef bint used = False
        if self.gd.me.ring == NULL:
            return
        if not self.gd.me.left and self.gd.me.ring.lock_fd >= 0 and not gr_forked(self.gd.me.ring):
            for i in range(self.gd.me.ring.slots):
                used = used or gr_holds(&self.gd.me, i, &seq) or not self._paid(i)
            if not used:
                gr_leave(&self.gd.me)
        gd_dispose(&self.gd)

    cdef bint _paid(self, uint32_t index) noexcept:
        cdef gr_ring *ring = self.gd.me.ring
        return gr_load_acquire(fence_of(ring, index, self.gd.me.number)) >= \
            gr_load_acquire(work_of(ring, index, self.gd.me.number))

    number = property(lambda Peer self: self.gd.me.number)
    id = property(lambda Peer self: self.gd.me.id)
    subscription = property(lambda Peer self: self.gd.me.u)
    left = property(lambda Peer self: self.gd.me.left)
    position = property(lambda Peer self: self.gd.me.pos)
    remembered = property(lambda Peer self: self.gd.released.n)

    @property
    def gate_host(self):
        """Whether it waits for others' GPU work on the host."""
        return self.gd.gate_host

    @gate_host.setter
    def gate_host(self, bint value):
        self.gd.gate_host = value

    @property
    def culprit(self):
        """(reason, peer or None, subscription or None, seq, since_ns) of the last BLOCKED."""
        return _told_of(&self.gd.me.culprit)

    def set_spin(self, int64_t ns):
        """How long a wait spins before it sleeps; -1: adaptive, 2**63 - 1: it never sleeps."""
        gr_set_spin(&self.gd.me, ns)

    cdef int _take(self, gd_call *call, gr_verb verb) except? -1000:
        """claim (verb NULL), acquire or latest: 0 or a negative result.  If this raises, nothing is claimed or held."""
        cdef gr_result result
        if self.busy:
            raise RuntimeError("this peer is waiting in another thread; give each thread its own")
        result = gd_claim(&self.gd, call, 0) if verb == NULL else gd_acquire(&self.gd, call, 0, verb)
        if result == GR_SIGNAL:
            result = self._wait(call, verb)
        if result == GR_DEVICE:
            raise self.device.refused(&call.trouble)
        return -<int>result

    cdef gr_result _wait(self, gd_call *call, gr_verb verb) except? GR_SIGNAL:
        cdef gr_result result
        self.busy = True
        try:
            while True:
                with nogil:
                    if verb == NULL:
                        result = gd_claim(&self.gd, call, GD_WAIT | GD_AGAIN)
                    else:
                        result = gd_acquire(&self.gd, call, GD_WAIT | GD_AGAIN, verb)
                if result != GR_SIGNAL:
                    return result
                try:
                    PyErr_CheckSignals()
                except BaseException:
                    gd_cancel(&self.gd, call)
                    raise
        finally:
            self.busy = False

    cdef int _end(self, gd_call *call, gd_ending ending) except? -1000:
        """publish, abandon, release: 0 or a negative result.  If this raises, slots that are open are still ours."""
        cdef gr_result result
        if self.device is None:
            return -<int>ending(&self.gd, call, GD_WAIT)
        with nogil:  # a full stream blocks, and what empties it may be another thread of this process
            result = ending(&self.gd, call, GD_WAIT)
        while result == GR_SIGNAL:
            PyErr_CheckSignals()
            with nogil:
                result = ending(&self.gd, call, GD_WAIT | GD_AGAIN)
        if result == GR_DEVICE:
            raise self.device.refused(&call.trouble)
        if result == GR_SYSTEM:
            PyErr_SetFromErrno(OSError)
        return -<int>result

    # The verbs without slot objects, for the tests of the core: an index and a sequence name the frame.

    seq = property(lambda Peer self: self.gd.me.seq)
    lost = property(lambda Peer self: self.gd.me.lost)
    redelivered = property(lambda Peer self: self.gd.me.redelivered)

    def claim(self, timeout=None, size_t stream=0):
        """The index of the claimed slot, or a negative result."""
        return self._raw(timeout, stream, NULL)

    def acquire(self, timeout=None, size_t stream=0):
        """The index of the slot of the next frame, or a negative result."""
        return self._raw(timeout, stream, gr_acquire)

    def latest(self, timeout=None, size_t stream=0):
        """The index of the slot of the newest frame, or a negative result."""
        return self._raw(timeout, stream, gr_latest)

    cdef int _raw(self, timeout, size_t stream, gr_verb verb) except? -1000:
        cdef gd_call call
        cdef uint32_t index = 0
        cdef int result
        gd_begin(&call, stream, _deadline(timeout), 1, &index)
        result = self._take(&call, verb)
        return result if result else <int>index

    def publish(self, uint32_t index, uint64_t seq, shape=None, size_t stream=0):
        """0 or a negative result, as abandon and release."""
        cdef gd_use *use = &self.gd.use[index]
        cdef uint32_t k
        use.ndim = 0 if shape is None else len(shape)
        for k in range(use.ndim):
            use.shape[k] = shape[k]
        return self._finish(index, seq, stream, gd_publish)

    def abandon(self, uint32_t index, uint64_t seq, size_t stream=0):
        return self._finish(index, seq, stream, gd_abandon)

    def release(self, uint32_t index, uint64_t seq, size_t stream=0):
        """... or TORN: it is released, and known to be torn."""
        return self._finish(index, seq, stream, gd_release)

    cdef int _finish(self, uint32_t index, uint64_t seq, size_t stream, gd_ending ending) except? -1000:
        cdef gd_call call
        cdef int result
        self.gd.use[index].seq, self.gd.use[index].open = seq, True
        gd_begin(&call, stream, INT64_MAX, 1, &index)
        result = self._end(&call, ending)
        return TORN if result == 0 and call.torns else result

    def shape(self, uint32_t index):
        """The shape of the frame in a slot that this peer holds; None: the whole slot."""
        cdef gr_slot *slot = &self.gd.me.ring.slot[index]
        cdef uint64_t ndim = gr_load_acquire(&slot.ndim), k
        if ndim > <uint64_t>GR_MAX_NDIM:
            raise Damaged(f"slot {index} names {ndim} dimensions")
        return tuple([gr_load_acquire(&slot.shape[k]) for k in range(ndim)]) if ndim else None

    def settle(self, uint32_t index):
        """Waits until the streams that used a slot of ours are idle; Ctrl-C interrupts.  Raises DeviceError."""
        cdef gd_call call
        cdef gr_result result
        if self.device is None:
            return
        gd_begin(&call, 0, INT64_MAX, 0, NULL)
        while True:
            with nogil:
                result = gd_settle(&self.gd, &call, index)
            if result != GR_SIGNAL:
                break
            PyErr_CheckSignals()
        if result != GR_OK:
            raise self.device.refused(&call.trouble)

    def put_back(self, uint32_t index):
        """Undoes a claim (it becomes void) or a hold (any member may take the frame).  Nothing may be enqueued on it."""
        return -<int>gd_put_back(&self.gd, index)

    def look_at_released(self):
        """Whether frames that were released have turned out torn since; take_torn() names them."""
        return gd_look_at_released(&self.gd)

    def take_torn(self):
        """Sequences that turned out torn after their release, told with this."""
        cdef uint64_t seqs[256]
        cdef size_t n, k
        told = []
        while True:
            n = gd_take_torn(&self.gd, seqs, 256)
            for k in range(n):
                told.append(seqs[k])
            if n < 256:
                return told

    def time_ns(self, uint32_t index):
        """When the frame in a slot that this peer holds was published."""
        return gr_load_acquire(&self.gd.me.ring.slot[index].time_ns)

    def is_torn(self, uint32_t index):
        """Whether the frame in a slot that this peer holds is known to be torn."""
        return gd_is_torn(&self.gd, index)

    def holding(self):
        """[(index, seq)] of what this peer has claimed or holds now, by the header's words."""
        cdef uint64_t seq
        cdef uint32_t i
        held = []
        for i in range(self.gd.me.ring.slots):
            if gr_holds(&self.gd.me, i, &seq):
                held.append((i, seq))
        return held

    def leave(self):
        """0 or a negative result, when the GPU has done what this peer promised.  Everything must have been ended.
        Ctrl-C interrupts.  Raises DeviceError if the GPU reports an error instead: its frames may be incomplete, and
        only this process's death tells the readers which."""
        cdef gd_call call
        cdef gr_result result
        cdef unsigned how = GD_WAIT
        gd_begin(&call, 0, INT64_MAX, 0, NULL)
        while True:
            with nogil:
                result = gd_leave(&self.gd, &call, how)
            if result != GR_SIGNAL:
                break
            PyErr_CheckSignals()
            how = GD_WAIT | GD_AGAIN
        if result == GR_DEVICE:
            raise self.device.refused(&call.trouble)
        if result == GR_SYSTEM:
            PyErr_SetFromErrno(OSError)
        return -<int>result


# ---- slots and verbs, as users call them: producer.py, consumer.py and slot.py derive from these and add what is not on
# the path of every frame (arrays, interchange, the wording of refusals)


cdef class Slot:
    """Whose slot it is, which frame, and on which streams it was used."""

    cdef gd_use *use
    cdef readonly uint32_t index
    """Which slot of the ring this is, 0 … slots - 1."""
    cdef readonly Peer _peer
    cdef readonly Device _device
    cdef public tuple _shape    # of a frame that is smaller than the slot, else None
    cdef public object _whole   # the array over the whole slot; None if it has several fields
    cdef public object _meta
    cdef public bint _restarted

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
        self.use.open = value

    @property
    def _seq(self):
        return self.use.seq

    @property
    def _streams(self):
        """The handles of the streams that it was used on, the one that it was claimed or acquired for first."""
        cdef uint32_t k
        gd_leave_thread(self.use)
        return tuple([<size_t>self.use.stream[k] for k in range(self.use.streams)])

    @_streams.setter
    def _streams(self, tuple streams):
        """Fewer of them, for tests: the end of the slot does not wait for the others then."""
        cdef uint32_t k
        for k in range(len(streams)):
            self.use.stream[k] = streams[k]
        self.use.streams = len(streams)

    @property
    def _stream(self):
        gd_leave_thread(self.use)
        return <size_t>self.use.stream[0]

    @_stream.setter
    def _stream(self, size_t stream):
        """One of _streams comes first from now on."""
        cdef uint32_t k
        for k in range(self.use.streams):
            if self.use.stream[k] == stream:
                self.use.stream[k], self.use.stream[0] = self.use.stream[0], stream

    def _import_on(self, size_t stream):
        """Orders a stream behind all that were used so far, and remembers it.  Raises DeviceError."""
        cdef gd_trouble trouble
        cdef gr_result result
        if stream == 1:  # how DLPack writes the legacy default stream, whose handle is 0
            stream = 0
        with nogil:
            result = gd_use_on(&self._peer.gd, self.index, stream, &trouble)
        if result != GR_OK:
            raise self._device.refused(&trouble)

    @property
    def seq(self):
        """The frame's sequence.  A ring of N slots begins with N."""
        return self.use.seq

    @property
    def array(self):
        """The frame as an array over the slot: `cupy.ndarray` on a GPU, `numpy.ndarray` on the host.

        Only for rings with one field (`shape=`, `dtype=`); see `slot[name]` for several.  On a GPU the
        stream of claim or acquire already waits for whoever used the slot before; work on another
        stream must be ordered by you.
        """
        if self.use.open and self._shape is None and self._whole is not None:
            return self._whole
        return self._array()

    @property
    def meta(self):
        """The frame's metadata: a `numpy.void` over the header, `slot.meta["pts"]`.

        A view: what is written here is in the ring at once.  None if the ring has no metadata.
        """
        if not self.use.open:
            self._check_open()
        return self._meta


cdef class WriteSlot(Slot):
    cdef int _begin(self, tuple shape) except -1:
        cdef uint32_t k
        self._shape = shape
        if shape is not None:
            for k in range(len(shape)):
                self.use.shape[k] = shape[k]
            self.use.ndim = len(shape)
        return 0

    def _reshape(self, tuple shape):
        """The frame will have this shape; None: the slot's."""
        self.use.ndim = 0
        self._begin(shape)

    def publish(self):
        """Hands the frame to the readers, in stream order: their streams wait for yours.

        Never blocks.  Raises PeerLost if this peer was taken for dead, DeviceError if the work could not
        be recorded (the frame is abandoned then), RingError if the slot is not yours any more.
        """
        self._finish(gd_publish, "publish")

    def abandon(self):
        """Gives the slot back without a frame: readers pass over its sequence."""
        self._finish(gd_abandon, "abandon")

    cdef int _finish(self, gd_ending ending, str verb) except -1:
        cdef gd_call call
        cdef int result
        if not self.use.open:
            self._check_open()
        gd_begin(&call, self._current(), INT64_MAX, 1, &self.index)  # if CuPy refuses to tell, the slot is still ours
        result = self._peer._end(&call, ending)
        if result:
            raise self._refused(result, verb)
        return 0

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if not self.use.open:
            return
        if kind is None:
            self._finish(gd_publish, "publish")
        else:
            self.abandon()


cdef class ReadSlot(Slot):
    cdef int _begin(self) except -1:
        self._restarted = False
        self._shape = self._peer.shape(self.index) if gr_load_acquire(
            &self._peer.gd.me.ring.slot[self.index].ndim) else None
        return 0

    @property
    def lost(self):
        """Sequences that this consumer was made to skip just before this frame; 0 if lossless.

        Void sequences (abandoned claims) among them count too: nobody can tell afterwards."""
        return self.use.lost

    @property
    def redelivered(self):
        """Whether another member of the subscription had this frame and died with it."""
        return self.use.redelivered

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
        self._finish()

    cdef int _finish(self) except -1:
        cdef gd_call call
        cdef int result
        if not self.use.open:
            self._check_open()
        gd_begin(&call, self._current(), INT64_MAX, 1, &self.index)
        result = self._peer._end(&call, gd_release)
        if result:
            raise self._refused(result, "release")
        if call.torns:
            raise self._torn()
        return 0

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if self.use.open:
            self._finish()


cdef class Verbs:
    """A peer of a ring with its slots."""

    cdef public Peer _peer
    cdef public Device _device
    cdef public list _slots

    cdef size_t _stream_of(self, stream) except? 1:
        if stream is None:
            return 0 if self._device is None else self._device.current()
        return self._handle(stream)

    cdef uint32_t _at_most(self, n) except 0:
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
        cdef WriteSlot slot
        cdef gd_call call
        cdef uint32_t index
        cdef int result
        gd_begin(&call, self._stream_of(stream), _deadline(timeout), 1, &index)
        result = self._peer._take(&call, NULL)
        if result:
            raise self._refused(result, "claim", timeout)
        slot = self._slots[index]
        slot._begin(extents)
        return slot

    def claim_many(self, n, timeout=None, *, stream=None):
        """Up to `n` slots at once, at least one: a WriteBatch, a tuple of slots in order of sequences.

        Blocks as `claim` does until there is one, then takes as many as are free.  One call into the
        driver orders `stream` for all of them, and one records them all when the batch is published.
        More slots in a batch also mean more work between two switches of the GPU from one process to
        another.  Raises as `claim` does; no claim is left behind by a call that raises.
        """
        cdef uint32_t indices[MAX_BATCH]
        cdef WriteSlot slot
        cdef gd_call call
        cdef uint32_t k
        cdef list batch = []
        cdef int result
        gd_begin(&call, self._stream_of(stream), _deadline(timeout), self._at_most(n), indices)
        result = self._peer._take(&call, NULL)
        if result:
            raise self._refused(result, "claim", timeout)
        try:
            for k in range(call.got):
                slot = self._slots[indices[k]]
                slot._begin(None)
                batch.append(slot)
            return self._batch(batch)
        except BaseException:  # Ctrl-C, no memory
            gd_cancel(&self._peer.gd, &call)
            raise


cdef class ConsumerVerbs(Verbs):
    cdef public list _untold
    """Frames known to be torn, which nobody could be told of yet."""
    cdef public bint _lossless

    cdef ReadSlot _one(self, gr_verb verb, str name, timeout, stream):
        cdef ReadSlot slot
        cdef gd_call call
        cdef uint32_t index
        cdef int result
        gd_begin(&call, self._stream_of(stream), _deadline(timeout), 1, &index)
        if self._untold:
            self._tell()
        result = self._peer._take(&call, verb)
        if result:
            raise self._refused(result, name, timeout)
        slot = self._slots[index]
        slot._begin()
        return slot

    def acquire(self, timeout=None, *, stream=None):
        """The next frame of the subscription, in order of sequences.

        Blocks until there is one; `timeout` in seconds, 0 = do not block, None = for ever; Ctrl-C
        interrupts.  On a GPU, `stream` (default: CuPy's current one) is made to wait until the frame is
        written.  Several frames may be held at once.

        Raises RingTimeout (a TimeoutError), EndOfStream when everything was read and the producers are
        gone or the ring is closed, PeerLost when the last producer died, FrameTorn if frames that were
        released before turned out torn since, DeviceError.  No frame is held by a call that raises.
        """
        return self._one(gr_acquire, "acquire", timeout, stream)

    def latest(self, timeout=None, *, stream=None):
        """The newest frame that this consumer has not had yet; older ones count as lost.

        Only for lossy consumers.  Blocks and raises as `acquire` does.
        """
        if self._lossless:
            raise self._not_lossy()
        return self._one(gr_latest, "latest", timeout, stream)

    def acquire_many(self, n, timeout=None, *, stream=None):
        """Up to `n` frames at once, at least one: a ReadBatch, a tuple of slots in order of sequences.

        Blocks as `acquire` does until there is one, then takes as many as are published.  One call into
        the driver orders `stream` after all of them, and one records the reads when the batch is
        released.  Raises as `acquire` does; no frame is held by a call that raises.
        """
        cdef uint32_t indices[MAX_BATCH]
        cdef ReadSlot slot
        cdef gd_call call
        cdef uint32_t k
        cdef list batch = []
        cdef int result
        gd_begin(&call, self._stream_of(stream), _deadline(timeout), self._at_most(n), indices)
        if self._untold:
            self._tell()
        result = self._peer._take(&call, gr_acquire)
        if result:
            raise self._refused(result, "acquire", timeout)
        try:
            for k in range(call.got):
                slot = self._slots[indices[k]]
                slot._begin()
                batch.append(slot)
            return self._batch(batch)
        except BaseException:  # Ctrl-C, no memory
            gd_cancel(&self._peer.gd, &call)
            raise


# ---- batches: together if one driver call can record them all, else slot by slot ------------------------------------


def still_open(batch):
    """Slot objects are used again each lap: one that has a later sequence is not the batch's any more.

    (Whatever the slot of a frame carries next was claimed after the last of the batch, or while the frame
    was held: then it is void, and nobody acquires it.)"""
    cdef Slot slot
    cdef uint64_t last = batch._last
    return [slot for slot in batch if slot.use.open and slot.use.seq <= last]


cdef list _end_all(list slots, gd_ending ending, str verb):
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
    result = peer._end(&call, ending)
    if result:
        raise slot._refused(result, verb)
    return [call.torn[n] for n in range(call.torns)]


def publish_all(batch):
    """Publishes those WriteSlots of one producer that are open; if one cannot be, those behind it are abandoned."""
    _end_all(still_open(batch), gd_publish, "publish")


def abandon_all(batch):
    """Abandons those WriteSlots of one producer that are open."""
    _end_all(still_open(batch), gd_abandon, "abandon")


def release_all(batch):
    """Releases those ReadSlots of one consumer that are open.

    The sequences of those that are known to be torn.  If something else is raised, they are told later: by the
    next acquire, or at close.
    """
    return _end_all(still_open(batch), gd_release, "release")


# ---- several peers at once, and event loops (waiting.py) ---------------------------------------------------------------


def look(Peer peer not None):
    """(sequence that claim or acquire would get now, or why it would not; who is in the way if it is BLOCKED).

    A look that changes nothing."""
    cdef uint64_t seq = 0
    cdef gr_culprit culprit
    cdef gr_result result = gr_look(&peer.gd.me, &seq, &culprit)
    if result == GR_OK:
        return seq, None
    return -<int>result, _told_of(&culprit) if result == GR_BLOCKED else None


def ready(Peer peer not None, int64_t spin_ns=0):
    """Whether claim or acquire would have an answer now.  A look that changes nothing.

    It goes on for as long as the peer's own spin is, at most `spin_ns`."""
    cdef gr_result result = gr_ready(&peer.gd.me)
    if result == GR_BLOCKED and spin_ns and not gd_would_tell(&peer.gd):
        with nogil:
            result = gr_spin_ready(&peer.gd.me, spin_ns)
    return result != GR_BLOCKED or gd_would_tell(&peer.gd)


def select(list peers not None, timeout):
    """[whether it has an answer] for each of the peers (different ones, at most MAX_WAITED); waits until
    one has, or until the time is up.  Ctrl-C interrupts."""
    cdef gr_peer *members[GR_MAX_WAITED]
    cdef gr_bool there[GR_MAX_WAITED]
    cdef uint32_t k, n = len(peers)
    cdef int64_t deadline_ns, begun_ns = gr_now_ns()
    cdef gr_result result = GR_BLOCKED
    cdef Peer peer
    if not 0 < n <= GR_MAX_WAITED:
        raise ValueError(f"1 … {GR_MAX_WAITED} peers can be waited for, not {n}")
    deadline_ns = _deadline(timeout)
    for k in range(n):
        peer = peers[k]
        if peer.busy:
            raise RuntimeError("this peer is waiting in another thread; give each thread its own")
        members[k] = &peer.gd.me
    try:
        for peer in peers:
            peer.busy = True
        while True:
            told = [gd_would_tell(&peer.gd) for peer in peers]
            if True in told:
                deadline_ns = 0
            with nogil:
                result = gr_select(members, n, begun_ns, deadline_ns, there)
            if result != GR_SIGNAL:
                return [told[k] or there[k] for k in range(n)]
            PyErr_CheckSignals()
    finally:
        for peer in peers:
            peer.busy = False


@cython.no_gc_clear  # __dealloc__ needs the peer
cdef class Notifier:
    """A descriptor that is readable when a peer's verb has an answer; see core/notify.c."""

    cdef gr_notifier *notifier
    cdef Peer peer  # that it was armed for: its ring stays mapped
    cdef object __weakref__

    def __cinit__(self):
        self.notifier = gr_notifier_open()
        if self.notifier == NULL:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        if self.notifier != NULL:
            gr_notifier_close(self.notifier)

    def fileno(self):
        """The descriptor; -1 in a forked child."""
        return gr_notifier_fd(self.notifier)

    def arm(self, Peer peer not None):
        """Whether the verb has an answer, and the descriptor is readable.  If not, it will be."""
        result = gr_notifier_arm(self.notifier, &peer.gd.me)
        self.peer = peer
        return result != GR_BLOCKED

    def disarm(self):
        """Nobody waits: changes of the ring are cheap again.  Readable it stays as it is."""
        gr_notifier_disarm(self.notifier)

    def set(self):
        """Makes it readable, for the last time for this peer: it is about to leave."""
        gr_notifier_raise(self.notifier)
        self.peer = None
