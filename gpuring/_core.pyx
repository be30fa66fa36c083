# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
# cython: auto_pickle=False
"""Thin binding of core/ and device/: one Python call is one whole transition of the C library.

Only three things are decided here: when the GIL is released (a first try that neither waits nor enqueues keeps it), when
signals are handled (between two slices of a wait), and what a result is in Python.  Refusals come back as negative results,
for which the callers have the words.  Refusals of the driver are raised as DeviceError.

The C library is linked into this module, because it has state of the process.  Here are the header, the device, peers, and
waits for several of them.  _verbs.pyx has the verbs as users call them, on the slot objects of _slots.pyx.  _snapshot.pyx reads
a header for people, and _dlpack.pyx has the capsules of DLPack.
"""
import os

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals, PyErr_Occurred, PyErr_SetFromErrno, PyErr_SetFromErrnoWithFilenameObject
from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_INCREF
from libc.errno cimport EAGAIN, EINTR, ENOENT, ESTALE, errno
from libc.stdint cimport INT64_MAX, int64_t, intptr_t, uint8_t, uint32_t, uint64_t
from libc.math cimport INFINITY
from libc.string cimport memcpy, memset
from posix.fcntl cimport open as c_open
from posix.unistd cimport close as c_close, read as c_read, usleep

from gpuring import arguments, device_errors
from gpuring.errors import PeerLost, RingError, RingTimeout

cdef extern from "sys/inotify.h" nogil:
    int inotify_init1(int flags)
    int inotify_add_watch(int fd, const char *path, uint32_t mask)
    int IN_NONBLOCK, IN_CLOEXEC, IN_CREATE, IN_MOVED_TO, IN_ONLYDIR

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

MEMORY_KINDS = ("host", "ipc", "vmm", "pool")
SYNC_KINDS = ("host", "event", "timeline")
GATES = ("stream", "host")

class Damaged(Exception):
    """A header or a frame's record is not one of this build.  The text says what was found."""


class Retired(Damaged):
    """The header was one of this build and was removed.  Its name is gone, or about to go."""


def now_ns() -> int:
    """CLOCK_MONOTONIC in nanoseconds, which is the clock of every time in a header."""
    return gr_now_ns()


def layout_fields():
    """(table, field, offset, nbytes) of every field of the header, for the layout test."""
    fields, k = [], 0
    while gr_fields[k].table != NULL:
        fields.append((gr_fields[k].table.decode(), gr_fields[k].name.decode(),
                       gr_fields[k].offset, gr_fields[k].nbytes))
        k += 1
    return fields


cdef class File:
    """An open file.  It is closed at the latest when this object goes, so no interrupt can lose the descriptor."""

    cdef readonly int fd

    def __cinit__(self, path, int flags, int mode=0o600):
        """Opens a file as os.open does.  No program that is started inherits it.  Raises OSError."""
        cdef bytes encoded = os.fsencode(path)
        self.fd = -1
        while True:
            self.fd = c_open(encoded, flags | os.O_CLOEXEC, mode)
            if self.fd >= 0:
                return
            if errno != EINTR:
                PyErr_SetFromErrnoWithFilenameObject(OSError, path)
            PyErr_CheckSignals()

    def __dealloc__(self):
        self.close()

    cpdef close(self):
        """May be called twice."""
        if self.fd >= 0:
            c_close(self.fd)
        self.fd = -1

    def fileno(self):
        return self.fd

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


cdef class NameWatch:
    """A descriptor (inotify) that becomes readable when a name comes into a directory, and stays so until `drain`."""

    cdef readonly int fd

    def __cinit__(self, path):
        """Raises OSError, for example if this user has as many watches as he may (fs.inotify in /proc/sys)."""
        cdef bytes encoded = os.fsencode(path)
        self.fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
        if self.fd < 0 or inotify_add_watch(self.fd, encoded, IN_CREATE | IN_MOVED_TO | IN_ONLYDIR) < 0:
            PyErr_SetFromErrnoWithFilenameObject(OSError, path)

    def __dealloc__(self):
        if self.fd >= 0:
            c_close(self.fd)

    def fileno(self):
        return self.fd

    def drain(self):
        """Takes what has come so far, at most as much as the kernel keeps."""
        cdef char events[16384]
        cdef int k
        for k in range(64):
            if c_read(self.fd, events, sizeof(events)) <= 0:
                break


# ---- the header ------------------------------------------------------------------------------------------------------


cdef class Header:
    """A mapped header, or a copy to look at.  Its buffer is the metadata table, rows of `meta_stride` bytes."""

    def __cinit__(self):
        self.ring = NULL

    def __init__(self):
        raise TypeError("a Header is made by Header.create, Header.attach or Header.read")

    def __dealloc__(self):
        if self.ring != NULL:
            gr_detach(self.ring)

    @staticmethod
    def create(int fd, *, int slots, int max_peers, int max_subscriptions, str memory, str sync,
               str gate, uint64_t slot_nbytes, uint64_t meta_nbytes, bytes spec, bytes epoch,
               bytes device_uuid=bytes(16), bytes memory_handle=bytes(64)):
        """Sizes and fills the empty file `fd`, which is a whole header then.  Raises OSError, whose `nbytes` says how much was
        needed."""
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
        while header.ring == NULL:
            header.ring = gr_create(fd, &config, epoch, device_uuid, memory_handle, <const char *>spec)
            if header.ring != NULL:
                break
            if errno == EINTR:  # posix_fallocate, which gives back what it had
                PyErr_CheckSignals()
                continue
            try:
                PyErr_SetFromErrno(OSError)
            except OSError as error:
                error.nbytes = layout.nbytes
                raise
        return header

    @staticmethod
    def attach(int fd):
        """Maps an existing header after checking it.  The owner of the file must be trusted: he ends this process (SIGBUS) if
        he makes it shorter later.  Raises Damaged, OSError."""
        cdef const char *why = NULL
        cdef char text[256]
        cdef Header header = Header.__new__(Header)
        header.ring = gr_attach(fd, &why, text, sizeof(text))
        if header.ring == NULL:
            _refuse(why)
        return header

    @staticmethod
    def read(int fd):
        """Copies an existing header after checking it, whoever owns it.  The copy is not mapped, so its owner cannot harm this
        process.  `creator_alive` and `live_peers()` say what lives now, and everything else says what was when it was copied.
        Nobody can join or change anything through it.  Raises Damaged, OSError."""
        cdef const char *why = NULL
        cdef char text[256]
        cdef Header header = Header.__new__(Header)
        header.is_copy = True
        header.ring = gr_read(fd, &why, text, sizeof(text))
        if header.ring == NULL:
            _refuse(why)
        return header

    cdef int _to_write(self) except -1:
        if self.is_copy:
            raise TypeError("this header is a copy to look at: open the ring with gpuring.attach()")
        return 0

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        self._to_write()
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
    cdef bint has_creator(self) noexcept:
        return self.ring.lock_fd >= 0 and gr_creator_alive(self.ring)

    creator_alive = property(lambda Header self: self.has_creator())
    attached = property(lambda Header self: self.ring.lock_fd >= 0 and gr_attached(self.ring))
    closed = property(lambda Header self: gr_load_acquire(&self.ring.head.closed) != 0)
    has_producer = property(lambda Header self: gr_load_acquire(&self.ring.head.producers) >> 16 != 0)
    retired = property(lambda Header self: gr_load_acquire(&self.ring.head.magic) == 0)
    forked = property(lambda Header self: gr_forked(self.ring))
    frontier = property(lambda Header self: gr_frontier(self.ring))
    reaps = property(lambda Header self: gr_load_acquire(&self.ring.head.reaps))
    joins = property(lambda Header self: gr_load_acquire(&self.ring.head.joins))

    lock_fd = property(lambda Header self: self.ring.lock_fd)  # -1: it was given up

    @property
    def owner(self):
        """The user id that its segment belongs to."""
        return os.fstat(self.ring.lock_fd).st_uid

    def fence(self, uint32_t peer, uint32_t index):
        return gr_load_acquire(fence_of(self.ring, index, peer))

    def work(self, uint32_t peer, uint32_t index):
        return gr_load_acquire(work_of(self.ring, index, peer))

    def raise_fence(self, uint32_t peer, uint32_t index, uint64_t value):
        """Raises a fence.  The caller saw by other means that the peer's GPU work is complete."""
        self._to_write()
        gr_raise_to(fence_of(self.ring, index, peer), value)

    def torn(self, uint32_t index, uint32_t producer, uint64_t producer_id, uint64_t value):
        """Whether a frame is torn.  Its producer's fence has `value` then, but only because a reaper raised it."""
        return gr_load_acquire(fence_of(self.ring, index, producer)) >= value and \
            gr_torn(self.ring, index, producer, producer_id, value)

    def peer_id(self, uint32_t peer):
        """Tells the successive owners of one peer number apart."""
        return gr_load_acquire(&self.ring.peer[peer].id)

    def join_producer(self, Device device=None, bint gate_host=False):
        """Returns a Peer, or a negative result.  Raises DeviceError."""
        cdef Peer peer = Peer(self)
        cdef gr_result result
        self._to_write()
        with nogil:
            result = gr_join_producer(self.ring, &peer.gd.me)
        return _joined(peer, result, device, gate_host)

    def join_consumer(self, bytes name, bint lossless, start, bint redeliver=True, Device device=None,
                      bint gate_host=False):
        """Returns a Peer, or a negative result.  `start` is "next", "oldest" or a sequence.  Raises DeviceError."""
        cdef Peer peer = Peer(self)
        cdef char padded[64]
        cdef int how = GR_START_AT
        cdef uint64_t seq = 0
        cdef unsigned mode = GR_LOSSLESS if lossless else GR_LOSSY
        cdef unsigned policy = GR_REDELIVER if redeliver else GR_DROP
        cdef gr_result result
        if len(name) > 64:
            raise ValueError("a subscription's name has at most 64 bytes")
        self._to_write()
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
        """Has the process's watchdog look after this ring's peers.  A join does so by itself."""
        self._to_write()
        gr_watch(self.ring)

    def offer(self, int fd):
        """Offers the descriptor of the ring's slots to other processes: the process's watchdog hands a copy to each that may
        write the header.  `fd` stays the caller's.  Does not wait.  The offer ends with this handle.  Raises OSError, for
        example if /dev/shm is full, and leaves nothing then."""
        cdef gr_result result
        self._to_write()
        with nogil:
            result = gr_offer(self.ring, fd)
        if result == GR_FORKED:
            raise RingError("this handle belongs to the parent process: open the ring anew in a forked child")
        if result != GR_OK:
            PyErr_SetFromErrno(OSError)

    def fetch(self, timeout):
        """The descriptor of the ring's slots, from the first process that hands it over: the ring's creator, or one that has a
        peer in the ring.  It belongs to the caller, who closes it.

        Waits up to `timeout` seconds (None: for ever) without the GIL, and Ctrl-C interrupts it.  Raises PeerLost at once if
        nobody can be asked, RingTimeout if nobody has answered in time (the message says who was asked), OSError (no
        descriptors left), ValueError, TypeError."""
        cdef gr_fetch fetch
        cdef int64_t deadline = deadline_of(timeout), until
        cdef int fd = -1, error = 0
        self._to_write()
        if gr_forked(self.ring):
            raise RingError("this handle belongs to the parent process: open the ring anew in a forked child")
        gr_fetch_begin(&fetch, self.ring)
        try:
            while fd < 0:
                until = min(deadline, gr_now_ns() + 50 * 1000 * 1000)
                with nogil:
                    fd = gr_fetch_go_on(&fetch, self.ring, until)
                    error = errno
                if fd < 0 and error == ENOENT:
                    raise PeerLost(_nobody_has_it(&fetch))
                if fd < 0 and error != EAGAIN:
                    raise OSError(error, os.strerror(error))
                if fd < 0 and gr_now_ns() >= deadline:
                    raise RingTimeout(_nobody_answers(&fetch, timeout))
                PyErr_CheckSignals()
            return fd
        except BaseException:
            if fd >= 0:
                c_close(fd)
            raise
        finally:
            with nogil:
                gr_fetch_end(&fetch)

    def reap(self):
        """Clears the dead.  Returns the peer numbers that were cleared."""
        cdef uint64_t mask[GR_MASK_WORDS]
        self._to_write()
        with nogil:
            gr_reap_dead(self.ring, mask)
        return [p for p in range(self.ring.max_peers) if mask[p // 64] >> p % 64 & 1]

    def link(self):
        """How far a bridge from another host has come: (epoch of the near ring, the near sequence up to which everything was
        published or skipped, how many frames were lost upstream up to there).  The epoch is b"" if there never was one."""
        cdef gr_watermark mark
        if not gr_link(self.ring, &mark):
            return b"", 0, 0
        return PyBytes_FromStringAndSize(<char *>mark.epoch, 16), mark.seq, mark.lost

    def set_link(self, bytes epoch not None, uint64_t seq, uint64_t lost):
        """The importer of a bridge says how far it has come, after it has published."""
        cdef gr_watermark mark
        self._to_write()
        if len(epoch) != 16:
            raise ValueError(f"an epoch has 16 bytes, not {len(epoch)}")
        memcpy(mark.epoch, <const char *>epoch, 16)
        mark.seq, mark.lost = seq, lost
        gr_set_link(self.ring, &mark)

    def close_ring(self):
        """Closes the ring.  There are no more claims, and readers get the end of the stream after what is there."""
        self._to_write()
        return -<int>gr_close(self.ring)

    def retire(self):
        """Clears the magic number, so that nobody attaches any more."""
        self._to_write()
        gr_retire(self.ring)

    def disown(self):
        """Gives up this handle's locks.  The mapping lives as long as arrays over it."""
        gr_disown(self.ring)

    def peer_pid(self, uint32_t peer):
        return gr_load_acquire(&self.ring.peer[peer].pid) if peer < self.ring.max_peers else 0

    cpdef bint is_own(self, uint32_t peer) noexcept:
        """Whether a peer is of this process.  A pid alone does not say so: in each of two containers it may be 1."""
        cdef gr_peer_entry *entry
        if peer >= self.ring.max_peers:
            return False
        entry = &self.ring.peer[peer]
        return gr_load_acquire(&entry.pid) == self.ring.pid \
            and gr_load_acquire(&entry.start) == self.ring.start \
            and gr_load_acquire(&entry.pidns) == self.ring.pidns

    def is_stopped(self, uint32_t peer):
        """Whether a peer's process is stopped, by a signal or a debugger.  False also where it cannot be looked up: it is of
        another pid namespace, or /proc hides it."""
        cdef gr_peer_entry *entry
        cdef uint64_t start
        cdef char state = 0
        if peer >= self.ring.max_peers or self.is_own(peer):
            return False
        entry = &self.ring.peer[peer]
        if gr_load_acquire(&entry.pidns) != self.ring.pidns:
            return False
        start = gr_process_start(<int>gr_load_acquire(&entry.pid), &state)
        return start != 0 and start == gr_load_acquire(&entry.start) and (state == b"T" or state == b"t")

    def subscription_name(self, uint32_t subscription):
        """The bytes of a subscription's name, without padding."""
        if subscription >= self.ring.max_subscriptions:
            return b""
        return PyBytes_FromStringAndSize(<char *>self.ring.sub[subscription].name, 64).rstrip(b"\0")

    def members(self, uint32_t subscription):
        """The numbers of the peers of a subscription."""
        return [p for p in range(self.ring.max_peers)
                if state_of(gr_load_acquire(&self.ring.peer[p].word)) != GR_FREE
                and role_of(gr_load_acquire(&self.ring.peer[p].word)) == GR_CONSUMER
                and sub_of(gr_load_acquire(&self.ring.peer[p].word)) == subscription]

    def producers(self):
        """The numbers of the peers that are producers."""
        return [p for p in range(self.ring.max_peers)
                if state_of(gr_load_acquire(&self.ring.peer[p].word)) != GR_FREE
                and role_of(gr_load_acquire(&self.ring.peer[p].word)) == GR_PRODUCER]

    def live_peers(self):
        """The numbers of the peers that are in the table and whose process lives."""
        return [p for p in range(self.ring.max_peers)
                if state_of(gr_load_acquire(&self.ring.peer[p].word)) != GR_FREE
                and self.ring.lock_fd >= 0 and gr_peer_alive(self.ring, p)]


cdef int _refuse(const char *why) except -1:
    if why == NULL:
        PyErr_SetFromErrno(OSError)
    raise (Retired if errno == ESTALE else Damaged)(why.decode())


cdef str _pids(list found):
    return ", ".join(found[:10]) + (f" and {len(found) - 10} more" if len(found) > 10 else "")


cdef str _listed(const gr_fetch *fetch, bint met):
    return _pids([f"pid {fetch.asked[k].who.pid}" for k in range(fetch.n) if bool(fetch.asked[k].met) == met])


cdef str _nobody_has_it(const gr_fetch *fetch):
    met, away = _listed(fetch, True), _listed(fetch, False)
    told = "nobody hands the ring's memory on: its creator and its peers are dead, or have none"
    return told + (f". Not there: {away}" if away else "") + (f". There, and without it: {met}" if met else "")


cdef str _nobody_answers(const gr_fetch *fetch, object timeout):
    without = _pids([f"pid {fetch.asked[k].who.pid}" for k in range(fetch.n) if fetch.asked[k].without])
    told = (f"nobody handed the ring's memory on in {timeout} s. Asked were {_listed(fetch, True)}, which are stopped or "
            "have too much to do")
    return told + (f". Answered without it: {without}. Too many descriptors of that process's user are under way in "
                   "messages that nobody has read (ETOOMANYREFS)" if without else "")


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
    """The CUDA driver's functions.  Raises DeviceError if there is no driver, or one that is too old."""

    def __init__(self, functions=None):
        """`functions` has the address of each function by its symbol, for tests.  None takes libcuda's."""
        cdef const char *why = NULL
        cdef gr_bool found = True
        if functions is None:
            self.driver = gd_driver_load(&why, &found)
        elif gd_driver_fill(&self.own, _find, <void *>functions, &why):
            self.driver, self.functions = &self.own, functions
        if self.driver == NULL:
            raise device_errors.no_driver(why.decode(), found)

    def status_name(self, int status):
        """The name of a status, such as "CUDA_ERROR_INVALID_VALUE"."""
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

@cython.no_gc_clear  # __dealloc__ needs the header
cdef class Device:
    """How streams of this process are ordered with those of others, for one ring (device/device.h)."""

    def __init__(self, Header header not None, int ordinal, get_current_stream, capsule=None, Driver driver=None):
        """`ordinal` is that of the GPU under which this process has the slots.  `get_current_stream` is the framework's and
        returns an object with `ptr`.  `capsule` holds a C function that returns its handle, or is None.  Raises
        DeviceError."""
        cdef gd_trouble trouble
        self.header, self.driver, self.get_current_stream = header, driver or Driver(), get_current_stream
        if capsule is not None:
            self.fast_current_stream = <fast_stream>PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule))
        cdef bytes uuid = self.driver.uuid(ordinal)
        if gd_open(&self.gd, self.driver.driver, header.ring, ordinal, &trouble) != GR_OK:
            raise self.refused(&trouble)
        memcpy(header.ring.gpu, <const char *>uuid, 16)  # a join notes it
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
        if not unmapped:  # Another thread captures, so it stays registered.  Nothing else may be mapped at its address.
            Py_INCREF(self.header)

    cdef object refused(self, const gd_trouble *trouble):
        return device_errors.refused(
            _WHERE[trouble.where], self.driver.status_name(trouble.status), ordinal=self.gd.ordinal,
            stream=trouble.stream, peer=trouble.peer, index=trouble.index, value=trouble.value,
            pid=self.header.peer_pid(trouble.peer), made=self.driver.driver.made_count)

    def current_stream(self):
        """The handle of the current stream of the framework and of this thread."""
        return self.current()

    cdef size_t current(self) except? 1:
        cdef intptr_t stream
        if self.fast_current_stream == NULL:
            return self.get_current_stream().ptr
        stream = self.fast_current_stream()
        if PyErr_Occurred() != NULL:
            return 1  # with the exception set
        return <size_t>stream

    def check_stream(self, size_t stream):
        """Raises DeviceError if `stream` may not be used for the ring now: it is another GPU's, or it is being captured."""
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


cpdef double seconds(value, str what) except? -1:
    """`value` as a time that a call may take, as arguments.seconds checks it.  None is for ever: infinity."""
    cdef double checked = -1
    if value is None:
        return INFINITY
    try:
        if type(value) is float or type(value) is int:
            checked = value
    except OverflowError:
        pass
    return checked if checked >= 0 else arguments.seconds(value, what)  # a number of another type, or an error


cdef int64_t deadline_of(object timeout) except -1:
    """The deadline on the clock of gr_now_ns.  0 means at once."""
    cdef double patience_s = seconds(timeout, "timeout")
    if not patience_s:
        return 0
    return INT64_MAX if patience_s > 9e9 else gr_now_ns() + <int64_t>(patience_s * 1e9)


cdef tuple _told_of(const gr_culprit *c):
    return (<int>c.reason, None if c.peer == GR_NONE else c.peer,
            None if c.subscription == GR_NONE else c.subscription, c.seq, c.since_ns)


cdef inline gr_result _taken(gd_peer *me, gd_call *call, unsigned how, verb which) noexcept nogil:
    if which == CLAIM:
        return gd_claim(me, call, how)
    return gd_acquire(me, call, how, gr_acquire if which == ACQUIRE else gr_latest)


cdef inline gr_result _ended(gd_peer *me, gd_call *call, unsigned how, verb which) noexcept nogil:
    if which == PUBLISH:
        return gd_publish(me, call, how)
    return gd_release(me, call, how) if which == RELEASE else gd_abandon(me, call, how)


give_back_lost = lambda: None
"""Gives back the slots of this process that nobody has any more (_verbs.pyx).  gpuring/ending.py sets it."""


waits_for_itself = lambda peer: False
"""Whether a peer that is blocked waits for something that only its own thread can give back."""


warn_of_itself = lambda peer: None
"""Warns of such a wait."""


def call_when_blocked(function, ask, warn):
    """`function` is called between two slices of a wait for another peer of this process.  `ask` is called between two slices
    of any wait without a time-out.  If it says twice that nobody but the calling thread can end it, `warn` is called once."""
    global give_back_lost, waits_for_itself, warn_of_itself
    give_back_lost, waits_for_itself, warn_of_itself = function, ask, warn


cdef object _busy():
    return RuntimeError("this peer is waiting in another thread; give each thread its own")


@cython.no_gc_clear  # __dealloc__ needs the header
cdef class Peer:
    """A producer or a consumer: one entry of the peer table, with its device order."""

    def __cinit__(self, Header header not None):
        self.header = header

    def __dealloc__(self):
        """Leaves the ring if a Ctrl-C cut the join short.  A peer that was used is closed by its owner."""
        cdef uint32_t i
        cdef uint64_t seq
        cdef bint used = False
        if self.gd.me.ring == NULL:
            return
        if not self.gd.me.left and self.gd.me.ring.lock_fd >= 0 and not gr_forked(self.gd.me.ring):
            for i in range(self.gd.me.ring.slots):
                used = used or gr_holds(&self.gd.me, i, &seq) or not self._paid(i)
            if not used:
                self.gd.me.dropped = True
                with nogil:  # another thread of this process may have LOCK
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

    def count_on_from(self, Peer before not None):
        """What was lost upstream counts from the last frame that `before` had, which was in another ring.  Call it before the
        first verb."""
        self.gd.me.had_origin = before.gd.me.had_origin
        self.gd.me.origin_lost = before.gd.me.origin_lost

    remembered = property(lambda Peer self: self.gd.released.n)

    @property
    def gate_host(self):
        """Whether it waits on the host for the GPU work of others."""
        return self.gd.gate_host

    @gate_host.setter
    def gate_host(self, bint value):
        self.gd.gate_host = value

    @property
    def culprit(self):
        """(reason, peer or None, subscription or None, seq, since_ns) of the last BLOCKED."""
        return _told_of(&self.gd.me.culprit)

    def set_spin(self, int64_t ns):
        """Sets how long a wait spins before it sleeps.  -1 is adaptive, and with 2**63 - 1 it never sleeps."""
        gr_set_spin(&self.gd.me, ns)

    cdef int take(self, gd_call *call, verb which) except? -1000:
        """Does CLAIM, ACQUIRE or LATEST.  Returns 0 or a negative result.  If this raises, nothing is claimed or held."""
        cdef gr_result result
        self.check_idle()
        result = _taken(&self.gd, call, 0, which)
        if result == GR_SIGNAL:
            result = self._wait(call, which)
        if result == GR_DEVICE:
            raise self.device.refused(&call.trouble)
        return -<int>result

    cdef gr_result _wait(self, gd_call *call, verb which) except? GR_SIGNAL:
        cdef gr_result result
        cdef int seen = 0
        self.begin_wait()
        try:
            while True:
                with nogil:
                    result = _taken(&self.gd, call, GD_WAIT | GD_AGAIN, which)
                try:
                    PyErr_CheckSignals()  # after a success, too, because later the caller has the slot
                    if result != GR_SIGNAL:  # a signal handler may have closed us
                        return GR_REAPED if self.gd.me.left else result
                    if self.gd.me.stopping:  # it may wait for a GPU
                        gd_cancel(&self.gd, call)
                        return GR_REAPED
                    if self.is_in_own_way():
                        give_back_lost()
                    if call.deadline_ns == INT64_MAX and seen < 2 and waits_for_itself(self):
                        seen += 1
                        if seen == 2:  # what was lost has come back since the first time
                            warn_of_itself(self)
                except BaseException:
                    gd_cancel(&self.gd, call)
                    raise
        finally:
            self.waiting_in = 0

    cdef int check_idle(self) except -1:
        """Raises RuntimeError while a verb is in progress, in another thread or in what a signal handler has interrupted."""
        if self.waiting_in:
            raise _busy()
        return 0

    cdef int begin_wait(self) except -1:
        """Called before a wait without the GIL.  The end of the wait sets waiting_in to 0."""
        self.check_idle()
        self.waiting_in = PyThread_get_thread_ident()
        return 0

    cdef bint is_busy(self) noexcept:
        return self.waiting_in != 0

    cdef bint is_forked(self) noexcept:
        return gr_forked(self.gd.me.ring)

    cdef int64_t behind(self) noexcept:
        """How many sequences were claimed that this consumer has not looked at."""
        return <int64_t>(gr_frontier(self.gd.me.ring) - self.gd.me.pos)

    cdef bint has_news(self) noexcept:
        """Whether its verb would have an answer now.  A look that changes nothing."""
        return gr_ready(&self.gd.me) != GR_BLOCKED or gd_would_tell(&self.gd)

    cdef bint has_frame(self) noexcept:
        """Whether its verb would have a slot now.  It looks at the next slot only, where `behind` also reads what the other side
        is writing."""
        return gr_ready(&self.gd.me) == GR_OK

    cdef bint has_whole_frame(self) noexcept:
        """Whether it would have a slot for which no stream has to wait.  A hint."""
        return gd_is_whole(&self.gd)

    cdef bint has_nothing(self) noexcept:
        """Whether it has left, or has claimed and holds nothing according to the header's words."""
        cdef uint64_t seq
        cdef uint32_t i
        if not self.gd.me.left:
            for i in range(self.gd.me.ring.slots):
                if gr_holds(&self.gd.me, i, &seq):
                    return False
        return True

    cdef bint is_in_own_way(self) noexcept:
        """Whether the culprit of the verb is a peer of this process."""
        return self.header.is_own(self.gd.me.culprit.peer)

    def stop(self):
        """From now on no verb hands out a slot.  A verb that waits in another thread ends as if this peer had left.  This waits
        for that verb, for as long as for the membership lock.  False if it does not come back, because it is in the driver, for
        example.  Ctrl-C interrupts."""
        cdef int64_t deadline = gr_now_ns() + 5 * <int64_t>1000000000
        gr_stop(&self.gd.me, True)
        while self.waiting_in not in (0, PyThread_get_thread_ident()):  # our own thread: this is a signal handler
            if gr_now_ns() >= deadline:
                return False
            with nogil:
                gr_stop(&self.gd.me, True)
                usleep(100)
            PyErr_CheckSignals()
        return True

    def resume(self):
        """Makes the verbs work again, because the peer could not leave."""
        gr_stop(&self.gd.me, False)

    stopped = property(lambda Peer self: self.gd.me.stopping != 0)

    cpdef ask(self):
        """Notes in the header that this peer asks for frames now, or still does."""
        gr_ask(&self.gd.me)

    def drop(self):
        """Nobody has this peer any more.  `leave` does not wait for the membership lock then: if another process has it, which may
        be stopped, the watchdog leaves as soon as it can."""
        self.gd.me.dropped = True

    cdef void cancel(self, gd_call *call) noexcept:
        """Undoes what this call has taken.  No slot object was handed out."""
        gd_cancel(&self.gd, call)

    cdef int end(self, gd_call *call, verb which) except? -1000:
        """Does PUBLISH, ABANDON or RELEASE.  Returns 0 or a negative result.  If this raises, open slots are still ours."""
        cdef gr_result result
        if self.device is None:
            return -<int>_ended(&self.gd, call, GD_WAIT, which)
        with nogil:  # a full stream blocks, and what empties it may be another thread of this process
            result = _ended(&self.gd, call, GD_WAIT, which)
        while result == GR_SIGNAL:
            PyErr_CheckSignals()
            with nogil:
                result = _ended(&self.gd, call, GD_WAIT | GD_AGAIN, which)
        if result == GR_DEVICE:
            raise self.device.refused(&call.trouble)
        if result == GR_SYSTEM:
            PyErr_SetFromErrno(OSError)
        return -<int>result

    cdef int use_on(self, uint32_t index, size_t stream) except -1:
        """Notes that a slot of ours will be used on `stream`, too, and makes that wait for all work on the slot."""
        cdef gd_trouble trouble
        cdef gr_result result
        if stream == 1:  # how DLPack writes the legacy default stream, whose handle is 0
            stream = 0
        with nogil:
            result = gd_use_on(&self.gd, index, stream, &trouble)
        if result != GR_OK:
            raise self.device.refused(&trouble)
        return 0

    cdef void leave_thread(self, gd_use *use) noexcept:
        gd_leave_thread(use)

    # The verbs without slot objects, for the tests of the core: an index and a sequence name the frame.

    seq = property(lambda Peer self: self.gd.me.seq)
    lost = property(lambda Peer self: self.gd.me.lost + self.gd.me.upstream)
    redelivered = property(lambda Peer self: self.gd.me.redelivered)

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
        cdef int result
        self.gd.use[index].seq, self.gd.use[index].open = seq, True
        gd_begin(&call, stream, INT64_MAX, 1, &index)
        result = self.end(&call, which)
        return TORN if result == 0 and call.torns else result

    def shape(self, uint32_t index):
        """Returns the shape of the frame in a slot that this peer holds.  None means the shape of the whole slot."""
        cdef gr_slot *slot = &self.gd.me.ring.slot[index]
        cdef uint32_t ndim = gr_load_acquire32(&slot.ndim), k
        if ndim > <uint32_t>GR_MAX_NDIM:
            raise Damaged(f"slot {index} names {ndim} dimensions")
        return tuple([gr_load_acquire(&slot.shape[k]) for k in range(ndim)]) if ndim else None

    def set_origin(self, uint32_t index, uint64_t seq, uint64_t origin_seq, uint64_t time_ns, uint32_t lost):
        """Says where the frame in a slot that this peer has claimed comes from.  Returns 0 or a negative result."""
        cdef gr_origin origin
        origin.seq, origin.time_ns, origin.lost = origin_seq, time_ns, lost
        return -<int>gr_set_origin(&self.gd.me, index, seq, &origin)

    def origin(self, uint32_t index):
        """(seq, time_ns) of where the frame in a slot that this peer holds comes from, or None."""
        cdef gr_origin origin
        if not gr_origin_of(&self.gd.me.ring.slot[index], &origin):
            return None
        return origin.seq, origin.time_ns

    def settle(self, uint32_t index):
        """Waits until the streams that used a slot of ours are idle.  Ctrl-C interrupts.  Raises DeviceError."""
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
        """Whether frames that were released have turned out torn since.  take_torn() names them."""
        return gd_look_at_released(&self.gd)

    def take_torn(self):
        """The sequences that turned out torn after their release.  They are forgotten with this call."""
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
        """Returns [(index, seq)] of what this peer has claimed or holds now, according to the header's words."""
        cdef uint64_t seq
        cdef uint32_t i
        held = []
        for i in range(self.gd.me.ring.slots):
            if gr_holds(&self.gd.me, i, &seq):
                held.append((i, seq))
        return held

    def leave(self):
        """Waits until the GPU has done what this peer promised, and leaves the ring.  Returns 0 or a negative result.
        Everything must have been ended before.  Ctrl-C interrupts.  Raises DeviceError if the GPU reports an error
        instead.  Frames may be incomplete then, and readers learn which only by the death of this process."""
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


# ---- several peers at once, and event loops (waiting.py) ---------------------------------------------------------------


def look(Peer peer not None):
    """Looks what claim or acquire would do now, and changes nothing.

    Returns (the sequence that it would get, None), or (the negative result, who is in the way if that is BLOCKED)."""
    cdef uint64_t seq = 0
    cdef gr_culprit culprit
    cdef gr_result result = gr_look(&peer.gd.me, &seq, &culprit)
    if result == GR_OK:
        return seq, None
    return -<int>result, _told_of(&culprit) if result == GR_BLOCKED else None


def ready(Peer peer not None, int64_t spin_ns=0):
    """Whether claim or acquire would have an answer now.  Changes nothing.

    It looks again and again for as long as the peer's own spin is, and for at most `spin_ns`."""
    cdef gr_result result = gr_ready(&peer.gd.me)
    if result == GR_BLOCKED and spin_ns and not gd_would_tell(&peer.gd):
        with nogil:
            result = gr_spin_ready(&peer.gd.me, spin_ns)
    return result != GR_BLOCKED or gd_would_tell(&peer.gd)


def select(list peers not None, timeout):
    """Waits until one of several peers has an answer, or until the time is up.  Returns for each whether it has one.

    No peer may be named twice, and there may be MAX_WAITED at most.  Ctrl-C interrupts."""
    cdef gr_peer *members[GR_MAX_WAITED]
    cdef gr_bool there[GR_MAX_WAITED]
    cdef uint32_t k, n = len(peers)
    cdef int64_t deadline_ns, begun_ns = gr_now_ns()
    cdef gr_result result = GR_BLOCKED
    cdef Peer peer
    if not 0 < n <= GR_MAX_WAITED:
        raise ValueError(f"1 … {GR_MAX_WAITED} peers can be waited for, not {n}")
    deadline_ns = deadline_of(timeout)
    for k in range(n):
        peer = peers[k]
        peer.check_idle()
        members[k] = &peer.gd.me
    try:
        for peer in peers:
            peer.begin_wait()
        while True:
            told = [gd_would_tell(&peer.gd) for peer in peers]
            if True in told:
                deadline_ns = 0
            with nogil:
                result = gr_select(members, n, begun_ns, deadline_ns, there)
            if result != GR_SIGNAL:
                return [told[k] or there[k] for k in range(n)]
            PyErr_CheckSignals()
            give_back_lost()  # of every endpoint, because nothing says which one blocks us
    finally:
        for peer in peers:
            peer.waiting_in = 0


@cython.no_gc_clear  # __dealloc__ needs the peer
cdef class Notifier:
    """A descriptor that is readable when a peer's verb has an answer; see core/notify.c."""

    cdef gr_notifier *notifier
    cdef Peer peer  # the one that it was armed for, so that its ring stays mapped
    cdef object __weakref__

    def __cinit__(self):
        self.notifier = gr_notifier_open()
        if self.notifier == NULL:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        if self.notifier != NULL:
            gr_notifier_close(self.notifier)

    def fileno(self):
        """The descriptor.  It is -1 in a forked child."""
        return gr_notifier_fd(self.notifier)

    def arm(self, Peer peer not None):
        """Whether the verb has an answer.  If so, the descriptor is readable, and if not, it will be when there is one."""
        result = gr_notifier_arm(self.notifier, &peer.gd.me)
        self.peer = peer
        return result != GR_BLOCKED

    def arm_at_end(self, Peer peer not None):
        """Whether the stream, which had ended, goes on.  If so, the descriptor is readable, and if not, it will be when a
        producer joins."""
        result = gr_notifier_arm_at_end(self.notifier, &peer.gd.me)
        self.peer = peer
        return result != GR_BLOCKED

    def disarm(self):
        """Ends the wait.  Changes of the ring are cheap again.  A descriptor that is readable stays so."""
        gr_notifier_disarm(self.notifier)

    def clear(self):
        """Ends the wait.  The descriptor is not readable before it is armed again."""
        gr_notifier_clear(self.notifier)

    def set(self):
        """Makes it readable for the last time for this peer, which is about to leave."""
        gr_notifier_raise(self.notifier)
        self.peer = None
