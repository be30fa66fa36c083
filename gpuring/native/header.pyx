"""The header of a ring, as a process has it mapped: its words one by one, and what may be done to it without a peer.

What it holds for people, field by field, is in snapshot.pyx.  How a peer joins is in joining.pyx.
"""
import os

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EINTR, ESTALE, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from gpuring.native.c cimport *

VERSION = GR_VERSION_
MAX_SLOTS = GR_MAX_SLOTS_
MAX_PEERS = GR_MAX_PEERS_
MAX_SUBSCRIPTIONS = GR_MAX_SUBSCRIPTIONS_
MAX_META_NBYTES = GR_MAX_META_
MAX_NDIM = GR_MAX_NDIM
MAX_SPEC_NBYTES = GR_MAX_SPEC
MAX_SLOT_NBYTES = GR_MAX_SLOT_NBYTES
MAX_NAME_NBYTES = 8 * GR_NAME_WORDS
MAX_FAR_NBYTES = 8 * GR_FAR_WORDS
MAX_LABEL_NBYTES = 8 * GR_LABEL_WORDS
MAX_PRODUCERS = GR_MAX_PRODUCERS

MEMORY_KINDS = ("host", "ipc", "vmm", "pool", "pinned")
SYNC_KINDS = ("host", "event", "timeline")
GATES = ("stream", "host")


class Damaged(Exception):
    """A header or a frame's record is not one of this build.  The text says what was found."""


class Retired(Damaged):
    """The header was one of this build and was removed.  Its name is gone, or about to go."""


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
               str gate, int producers=1, uint64_t slot_nbytes, uint64_t meta_nbytes, bytes spec, bytes epoch,
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
        config.producers = producers
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

    cdef int to_write(self) except -1:
        if self.is_copy:
            raise TypeError("this header is a copy to look at: open the ring with gpuring.attach()")
        return 0

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        self.to_write()
        PyBuffer_FillInfo(buffer, self, self.ring.meta,
                          self.ring.slots * self.ring.layout.meta_stride, 0, flags)

    slots = property(lambda Header self: self.ring.slots)
    max_peers = property(lambda Header self: self.ring.max_peers)
    max_subscriptions = property(lambda Header self: self.ring.max_subscriptions)
    memory = property(lambda Header self: MEMORY_KINDS[self.ring.config.memory])
    # Whether the slots are a segment of /dev/shm, which is opened by its name.
    on_host = property(lambda Header self: self.ring.config.memory in (GR_MEMORY_HOST, GR_MEMORY_PINNED))
    sync = property(lambda Header self: SYNC_KINDS[self.ring.config.sync])
    gate = property(lambda Header self: GATES[self.ring.config.gate])
    slot_nbytes = property(lambda Header self: self.ring.config.slot_nbytes)
    meta_nbytes = property(lambda Header self: self.ring.config.meta_nbytes)
    meta_stride = property(lambda Header self: self.ring.layout.meta_stride)
    epoch = property(lambda Header self: PyBytes_FromStringAndSize(<char *>self.ring.head.epoch, 16))
    device_uuid = property(lambda Header self: PyBytes_FromStringAndSize(<char *>self.ring.head.device_uuid, 16))
    memory_handle = property(lambda Header self: PyBytes_FromStringAndSize(<char *>self.ring.head.memory_handle, 64))
    spec = property(lambda Header self: PyBytes_FromStringAndSize(<char *>self.ring.spec, self.ring.config.spec_nbytes))
    created_ns = property(lambda Header self: self.ring.head.created_ns)
    creator_pid = property(lambda Header self: self.ring.head.creator_pid)
    # Whether it is of another pid namespace than this process, so that its pid means nothing here.
    creator_elsewhere = property(lambda Header self: self.ring.head.creator_pidns != self.ring.pidns)
    cdef bint has_creator(self) noexcept:
        return self.ring.lock_fd >= 0 and gr_creator_alive(self.ring)

    creator_alive = property(lambda Header self: self.has_creator())
    attached = property(lambda Header self: self.ring.lock_fd >= 0 and gr_attached(self.ring))
    closed = property(lambda Header self: gr_load_acquire(&self.ring.head.closed) != 0)
    forked = property(lambda Header self: gr_forked(self.ring))
    frontier = property(lambda Header self: gr_frontier(self.ring))
    reaps = property(lambda Header self: gr_load_acquire(&self.ring.head.reaps))

    producers_in_all = property(lambda Header self: self.ring.producers_in_all)

    @property
    def producers_gone(self):
        """How many producers have left or died.  Of one peer number 4,095 of each are counted."""
        cdef uint64_t word = gr_load_acquire(&self.ring.head.producers)
        return left_of(word) + died_of(word)

    lock_fd = property(lambda Header self: self.ring.lock_fd)  # -1: it was given up

    @property
    def owner(self):
        """The user id that its segment belongs to."""
        return os.fstat(self.ring.lock_fd).st_uid

    def uses_gpu(self, bytes uuid not None, uint64_t unregistered):
        """What peers of this process say in their entries, if CUDA has not registered the slots for their GPU.  A Device says
        so itself."""
        memcpy(self.ring.gpu, <const char *>uuid, 16)
        self.ring.unregistered = unregistered

    def watch(self):
        """Has the process's watchdog look after this ring's peers.  A join does so by itself."""
        self.to_write()
        gr_watch(self.ring)

    def reap(self):
        """Clears the dead.  Returns the peer numbers that were cleared."""
        cdef uint64_t mask[GR_MASK_WORDS]
        self.to_write()
        with nogil:
            gr_reap_dead(self.ring, mask)
        return [p for p in range(self.ring.max_peers) if mask[p // 64] >> p % 64 & 1]

    def join_within(self, double seconds):
        """Has joins of this handle wait for the membership lock for at most so long, if that is less than usual."""
        self.ring.join_patience_ns = <int64_t>(1e9 * min(seconds, self.ring.join_patience_ns / 1e9))

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
        self.to_write()
        if len(epoch) != 16:
            raise ValueError(f"an epoch has 16 bytes, not {len(epoch)}")
        memcpy(mark.epoch, <const char *>epoch, 16)
        mark.seq, mark.lost = seq, lost
        gr_set_link(self.ring, &mark)

    def clock(self):
        """How the clocks of a bridge's two hosts differ, as it was measured last: (by how many nanoseconds the near host's
        CLOCK_MONOTONIC is ahead, by how many that may be wrong, CLOCK_MONOTONIC of this host then).  None: it was not yet."""
        cdef gr_ahead clock
        if not gr_clock(self.ring, &clock):
            return None
        return clock.ahead_ns, clock.error_ns, clock.time_ns

    def set_clock(self, int64_t ahead_ns, int64_t error_ns, int64_t time_ns):
        """The importer of a bridge says what it has measured."""
        cdef gr_ahead clock
        self.to_write()
        clock.ahead_ns, clock.error_ns, clock.time_ns = ahead_ns, error_ns, time_ns
        gr_set_clock(self.ring, &clock)

    def close_ring(self):
        """Closes the ring.  There are no more claims, and readers get the end of the stream after what is there."""
        self.to_write()
        return -<int>gr_close(self.ring)

    def retire(self):
        """Clears the magic number, so that nobody attaches any more."""
        self.to_write()
        gr_retire(self.ring)

    def drop_all(self):
        """Drops all peers of this handle, when those that are known have left: joins that a Ctrl-C has cut short."""
        gr_drop_all(self.ring)

    def leave_late(self):
        """Leaves for peers of this handle that were dropped while another process had the membership lock.  Returns whether
        there are some that cannot leave yet.  Does not wait."""
        cdef bint later
        with nogil:
            later = gr_leave_late(self.ring)
        return later

    def disown(self):
        """Gives up this handle's locks.  The mapping lives as long as arrays over it."""
        gr_disown(self.ring)

    def peer_pid(self, uint32_t peer):
        return gr_load_acquire(&self.ring.peer[peer].pid) if peer < self.ring.max_peers else 0

    def label(self, uint32_t peer):
        """What a peer calls itself, as bytes: the label that it was given, or the name of its program."""
        if peer >= self.ring.max_peers:
            return b""
        return PyBytes_FromStringAndSize(<char *>self.ring.peer[peer].label, 64).rstrip(b"\0")

    def deaths(self, uint64_t since=0):
        """The last deaths as plain dicts, the latest first: of those from number `since` on, which counts from 0, the ones that
        are still remembered."""
        cdef uint64_t reaps = gr_load_acquire(&self.ring.head.reaps), word, k
        cdef gr_death *death
        deaths = []
        for k in range(max(since, reaps - min(reaps, <uint64_t>GR_DEATHS)), reaps):
            death = &self.ring.head.deaths[k % <uint64_t>GR_DEATHS]
            word = gr_load_acquire(&death.peer)
            deaths.insert(0, {
                "time_ns": gr_load_acquire(&death.time_ns), "pid": gr_load_acquire(&death.pid),
                "number": gr_load_acquire(&death.number), "label": PyBytes_FromStringAndSize(<char *>death.label, 64).rstrip(b"\0"),
                "role": "producer" if role_of(word) == GR_PRODUCER else "consumer",
                "leaving": state_of(word) == GR_LEAVING,
                "voided": gr_load_acquire(&death.voided), "torn": gr_load_acquire(&death.torn),
                "reopened": gr_load_acquire(&death.reopened), "raised": gr_load_acquire(&death.raised),
            })
        return deaths

    def in_other_namespace(self, uint32_t peer):
        """Whether a peer's process is of another pid namespace than this one, so that its pid means nothing here."""
        return peer < self.ring.max_peers and gr_load_acquire(&self.ring.peer[peer].pidns) != self.ring.pidns

    cpdef bint is_own(self, uint32_t peer) noexcept:
        """Whether a peer is of this process.  A pid alone does not say so: in each of two containers it may be 1."""
        return gh_is_of_this_process(self.ring, peer)

    def is_stopped(self, uint32_t peer):
        """Whether a peer's process is stopped, by a signal or a debugger.  False also where it cannot be looked up: it is of
        another pid namespace, or /proc hides it."""
        return gh_is_stopped(self.ring, peer)

    def subscription_name(self, uint32_t subscription):
        """The bytes of a subscription's name, without padding."""
        if subscription >= self.ring.max_subscriptions:
            return b""
        return PyBytes_FromStringAndSize(<char *>self.ring.sub[subscription].name, 64).rstrip(b"\0")

    def far(self, uint32_t subscription):
        """Of a bridge: the subscription that keeps the far ring from taking more, as bytes.  b"": nobody."""
        if subscription >= self.ring.max_subscriptions:
            return b""
        return PyBytes_FromStringAndSize(<char *>self.ring.sub[subscription].far, 32).rstrip(b"\0")

    def set_far(self, uint32_t subscription, bytes far not None):
        """A member of the subscription says so.  At most MAX_FAR_NBYTES are kept."""
        cdef bytes padded = far[:MAX_FAR_NBYTES].ljust(MAX_FAR_NBYTES, b"\0")
        self.to_write()
        if subscription < self.ring.max_subscriptions:
            gr_set_far(self.ring, subscription, padded)

    def patience(self, uint32_t subscription):
        """Of a durable subscription: (for how long producers wait for it while it has no member, since when it has none).  In
        nanoseconds; 0 means for ever, or that it has a member.  None: it is not durable."""
        cdef gr_sub *sub
        if subscription >= self.ring.max_subscriptions:
            return None
        sub = &self.ring.sub[subscription]
        if not policy_of(gr_load_acquire(&sub.word)) & GR_DURABLE:
            return None
        return gr_load_acquire(&sub.patience_ns), gr_load_acquire(&sub.unread_ns)

    def terms(self, uint32_t subscription):
        """(lossless, redeliver) of a subscription, or None if there is none of this number."""
        cdef uint64_t word
        if subscription >= self.ring.max_subscriptions:
            return None
        word = gr_load_acquire(&self.ring.sub[subscription].word)
        if mode_of(word) == GR_SUB_FREE:
            return None
        return mode_of(word) == GR_LOSSLESS, not policy_of(word) & GR_DROP

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
