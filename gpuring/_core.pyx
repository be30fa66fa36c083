# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""Thin binding of core/: one Python call is one whole transition.

Nothing is decided here but three things: when the GIL is released (only to wait), when signals are
looked at (between two slices of a wait), and that a verb whose device order could not be arranged is
undone before the exception leaves.  Refusals come back as negative results; the callers word them.
"""
import os

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

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
TORN = -100  # frames that this consumer has released turned out torn: Peer.torn_behind names them

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

MEMORY_KINDS = ("host", "cuda")
SYNC_KINDS = ("host", "event", "timeline")
GATES = ("stream", "host")
SLOT_PHASES = ("void", "writing", "ready", "torn")
TAKE_PHASES = ("done", "open", "held")


class Damaged(Exception):
    """The segment is no header of this build; the text says what was found."""


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


cdef class Header:
    """A mapped header.  Its buffer is the metadata table, rows of `meta_stride` bytes."""

    cdef gr_ring *ring
    cdef object __weakref__

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
    closed = property(lambda Header self: load_acquire(&self.ring.head.closed) != 0)
    has_producer = property(lambda Header self: load_acquire(&self.ring.head.producers) >> 16 != 0)
    retired = property(lambda Header self: load_acquire(&self.ring.head.magic) == 0)
    forked = property(lambda Header self: gr_forked(self.ring))
    frontier = property(lambda Header self: gr_frontier(self.ring))
    reaps = property(lambda Header self: load_acquire(&self.ring.head.reaps))
    joins = property(lambda Header self: load_acquire(&self.ring.head.joins))

    @property
    def inode(self):
        """Of the segment in /dev/shm: tells it from a later one of the same name."""
        return os.fstat(self.ring.lock_fd).st_ino if self.ring.lock_fd >= 0 else 0

    @property
    def fence_region(self):
        """(address, nbytes) of the fence table, whole pages: what CUDA maps for the timeline."""
        return <size_t>self.ring.fence, self.ring.layout.event - self.ring.layout.fence

    def fence_offset(self, uint32_t peer, uint32_t index):
        """Bytes from the start of fence_region to fence[index][peer]."""
        return 8 * (<uint64_t>index * self.ring.max_peers + peer)

    def fence(self, uint32_t peer, uint32_t index):
        return load_acquire(fence_of(self.ring, index, peer))

    def work(self, uint32_t peer, uint32_t index):
        return load_acquire(work_of(self.ring, index, peer))

    def raise_fence(self, uint32_t peer, uint32_t index, uint64_t value):
        """For who saw the peer's GPU work complete by other means than the word itself."""
        raise_to(fence_of(self.ring, index, peer), value)

    def torn(self, uint32_t index):
        """The highest torn sequence of a slot, 0 for none."""
        return load_acquire(&self.ring.slot[index].torn)

    def peer_id(self, uint32_t peer):
        """Tells the successive owners of one peer number apart."""
        return load_acquire(&self.ring.peer[peer].id)

    cdef uint8_t *_event_handle(self, uint32_t peer, uint32_t index) except NULL:
        if self.ring.layout.event == self.ring.layout.meta:
            raise ValueError("this ring has no event handles")
        return self.ring.event + GR_EVENT_HANDLE * (<uint64_t>peer * self.ring.slots + index)

    def set_event_handle(self, uint32_t peer, uint32_t index, bytes handle):
        if len(handle) != GR_EVENT_HANDLE:
            raise ValueError("an event handle has 64 bytes")
        memcpy(self._event_handle(peer, index), <const char *>handle, GR_EVENT_HANDLE)

    def event_handle(self, uint32_t peer, uint32_t index):
        return PyBytes_FromStringAndSize(<char *>self._event_handle(peer, index), GR_EVENT_HANDLE)

    def join_producer(self):
        """A Peer, or a negative result."""
        cdef Peer peer = Peer(self)
        cdef gr_result result
        with nogil:
            result = gr_join_producer(self.ring, &peer.me)
        return _joined(peer, result)

    def join_consumer(self, bytes name, bint lossless, start, bint redeliver=True):
        """A Peer, or a negative result.  start: "next", "oldest" or a sequence."""
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
            result = gr_join_consumer(self.ring, padded, mode, policy, how, seq, &peer.me)
        return _joined(peer, result)

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
        return load_acquire(&self.ring.peer[peer].pid) if peer < self.ring.max_peers else 0

    def subscription_name(self, uint32_t subscription):
        """The bytes of its name, without padding."""
        if subscription >= self.ring.max_subscriptions:
            return b""
        return PyBytes_FromStringAndSize(<char *>self.ring.sub[subscription].name, 64).rstrip(b"\0")

    def members(self, uint32_t subscription):
        """Numbers of the peers of a subscription."""
        return [p for p in range(self.ring.max_peers)
                if state_of(load_acquire(&self.ring.peer[p].word)) != GR_FREE
                and role_of(load_acquire(&self.ring.peer[p].word)) == GR_CONSUMER
                and sub_of(load_acquire(&self.ring.peer[p].word)) == subscription]

    def live_peers(self):
        """Numbers of the peers that are in the table and whose process lives."""
        return [p for p in range(self.ring.max_peers)
                if state_of(load_acquire(&self.ring.peer[p].word)) != GR_FREE
                and self.ring.lock_fd >= 0 and gr_peer_alive(self.ring, p)]

    def snapshot(self):
        """What the header says now, field by field and without a lock, as plain dicts.

        Each word is read once; words that belong together may be a few transitions apart.
        """
        cdef gr_ring *ring = self.ring
        cdef uint64_t word, sub
        cdef uint32_t i, p, u
        cdef gr_take *take
        slots, peers, subscriptions = [], {}, {}
        for i in range(ring.slots):
            word = load_acquire(&ring.slot[i].word)
            slots.append({
                "seq": seq_of(word), "owner": owner_of(word), "phase": SLOT_PHASES[phase_of(word) & 3],
                "since_ns": load_acquire(&ring.slot[i].since_ns),
                "time_ns": load_acquire(&ring.slot[i].time_ns),
                "torn": load_acquire(&ring.slot[i].torn),
            })
        for p in range(ring.max_peers):
            word = load_acquire(&ring.peer[p].word)
            if state_of(word) == GR_FREE:
                continue
            peers[p] = {
                "role": "producer" if role_of(word) == GR_PRODUCER else "consumer",
                "leaving": state_of(word) == GR_LEAVING,
                "subscription": sub_of(word) if role_of(word) == GR_CONSUMER else None,
                "pid": load_acquire(&ring.peer[p].pid),
                "alive": ring.lock_fd >= 0 and gr_peer_alive(ring, p),
                "joined_ns": load_acquire(&ring.peer[p].joined_ns),
                "waiting": load_acquire(&ring.peer[p].waiting) != 0,
                "frames": load_acquire(&ring.peer[p].frames),
                "lost": load_acquire(&ring.peer[p].lost),
                "torn": load_acquire(&ring.peer[p].torn),
                "pending": sum([load_acquire(fence_of(ring, i, p)) < load_acquire(work_of(ring, i, p))
                                for i in range(ring.slots)]),
            }
        for u in range(ring.max_subscriptions):
            sub = load_acquire(&ring.sub[u].word)
            if mode_of(sub) == GR_SUB_FREE:
                continue
            takes = []
            for i in range(ring.slots):
                take = take_of(ring, i, u)
                word = load_acquire(&take.word)
                takes.append({"seq": seq_of(word), "member": owner_of(word),
                              "phase": TAKE_PHASES[phase_of(word) % 3],
                              "since_ns": load_acquire(&take.since_ns)})
            subscriptions[u] = {
                "name": self.subscription_name(u),
                "lossless": mode_of(sub) == GR_LOSSLESS, "start": start_of(sub),
                "redeliver": policy_of(sub) == GR_REDELIVER,
                "lost": load_acquire(&ring.sub[u].lost),
                "created_ns": load_acquire(&ring.sub[u].created_ns), "takes": takes,
            }
        return {"frontier": gr_frontier(ring), "closed": self.closed, "slots": slots, "peers": peers,
                "subscriptions": subscriptions, "deaths": self._deaths()}

    def _deaths(self):
        """The last deaths, the latest first."""
        cdef uint64_t reaps = load_acquire(&self.ring.head.reaps), k
        cdef gr_death *death
        deaths = []
        for k in range(min(reaps, <uint64_t>GR_DEATHS)):
            death = &self.ring.head.deaths[(reaps - 1 - k) % <uint64_t>GR_DEATHS]
            deaths.append({
                "time_ns": load_acquire(&death.time_ns), "pid": load_acquire(&death.pid),
                "number": load_acquire(&death.number),
                "role": "producer" if role_of(load_acquire(&death.peer)) == GR_PRODUCER else "consumer",
                "voided": load_acquire(&death.voided), "torn": load_acquire(&death.torn),
                "reopened": load_acquire(&death.reopened), "raised": load_acquire(&death.raised),
            })
        return deaths


cdef object _joined(Peer peer, gr_result result):
    if result == GR_SYSTEM:
        PyErr_SetFromErrno(OSError)
    if result != GR_OK:
        return -<int>result
    return peer


@cython.no_gc_clear  # __dealloc__ needs the header
cdef class Peer:
    """One entry of the peer table: a producer or a consumer, used by one thread at a time.

    `sync` is None on host memory, else an object of gpuring.sync; `stream` is what it takes.
    """

    cdef gr_peer me
    cdef readonly Header header
    cdef bint busy
    cdef list unsettled  # (index, seq, owner, value): released while their producer's GPU was at work
    cdef uint64_t reaps  # deaths up to which `unsettled` was looked through
    cdef readonly list torn_behind
    """Sequences that turned out torn after their release, as the last look_behind found them."""

    def __cinit__(self, Header header not None):
        self.header = header
        self.reaps = load_acquire(&header.ring.head.reaps)
        self.unsettled = []
        self.torn_behind = []

    def __dealloc__(self):
        """A join that a Ctrl-C cut short leaves again; a peer that was used is closed by its owner."""
        cdef uint32_t i
        cdef uint64_t seq
        if self.me.ring == NULL or self.me.left or self.me.ring.lock_fd < 0 or gr_forked(self.me.ring):
            return
        for i in range(self.me.ring.slots):
            if gr_holds(&self.me, i, &seq) or load_acquire(fence_of(self.me.ring, i, self.me.number)) < \
                    load_acquire(work_of(self.me.ring, i, self.me.number)):
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
        cdef gr_culprit c = self.me.culprit
        return (<int>c.reason, None if c.peer == GR_NONE else c.peer,
                None if c.subscription == GR_NONE else c.subscription, c.seq, c.since_ns)

    cdef int _set_deadline(self, object timeout) except -1:
        cdef double seconds
        if self.busy:
            raise RuntimeError("this peer is waiting in another thread; give each thread its own")
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

    cdef bint _order(self, sync, stream) except? False:
        """Two clocks: the stream (or, gate "host", this thread) waits for the fences that are open."""
        cdef uint32_t k
        for k in range(self.me.pendings):
            if sync is None:
                ordered = self.wait_fence(self.me.pending[k].peer, self.me.index, self.me.pending[k].value)
            else:
                ordered = sync.order(self, stream, self.me.pending[k].peer, self.me.index, self.me.pending[k].value)
            if not ordered:
                self.me.culprit.reason = GR_BY_FENCE
                self.me.culprit.peer = self.me.pending[k].peer
                self.me.culprit.subscription = GR_NONE
                self.me.culprit.seq = self.me.seq
                self.me.culprit.since_ns = load_acquire(&self.me.ring.slot[self.me.index].time_ns)
                return False
        return True

    def wait_fence(self, uint32_t peer, uint32_t index, uint64_t value):
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

    def claim(self, timeout, sync, stream):
        """The index of the claimed slot, or a negative result."""
        cdef int result
        self._set_deadline(timeout)
        result = self._run(gr_claim)
        if result < 0:
            return result
        if self.me.pendings:
            try:
                ordered = self._order(sync, stream)
            except BaseException:
                gr_abandon(&self.me, self.me.index, self.me.seq)
                raise
            if not ordered:
                gr_abandon(&self.me, self.me.index, self.me.seq)
                return BLOCKED
        return self.me.index

    def look_behind(self):
        """Whether frames that were released have turned out torn since; `torn_behind` names them.

        A frame whose producer's fence was open at its release is kept until the fence is paid.  Paid by
        the GPU or raised by a reaper: the torn mark, set before a fence is raised, tells.  (It may call a
        frame torn that another producer finished in the same slot just before: a false alarm, never a
        false all-clear.)
        """
        self.reaps = load_acquire(&self.me.ring.head.reaps)
        still, self.torn_behind = [], []
        for entry in self.unsettled:
            index, seq, owner, value = entry
            if load_acquire(fence_of(self.me.ring, index, owner)) < <uint64_t>value:
                still.append(entry)
            elif load_acquire(&self.me.ring.slot[<uint32_t>index].torn) >= <uint64_t>seq:
                self.torn_behind.append(seq)
        self.unsettled = still
        return bool(self.torn_behind)

    cdef int _take(self, gr_verb verb, timeout, sync, stream) except? 1:
        cdef int result
        if self.unsettled and (load_acquire(&self.me.ring.head.reaps) != self.reaps
                               or len(self.unsettled) > 2 * self.me.ring.slots):
            if self.look_behind():
                return TORN
        self._set_deadline(timeout)
        while True:
            result = self._run(verb)
            if result < 0:
                return result
            if self.me.pendings:
                try:
                    ordered = self._order(sync, stream)
                except BaseException:
                    gr_give_back(&self.me, self.me.index, self.me.seq)
                    raise
                if not ordered:
                    gr_give_back(&self.me, self.me.index, self.me.seq)
                    return BLOCKED
            if load_acquire(&self.me.ring.slot[self.me.index].ndim) > <uint64_t>GR_MAX_NDIM:
                gr_release(&self.me, self.me.index, self.me.seq)
                return DAMAGED
            if load_acquire(&self.me.ring.slot[self.me.index].torn) < self.me.seq:
                return self.me.index
            # Its producer died meanwhile.  Nobody has seen the frame: pass over it.
            gr_skip_torn(&self.me)

    def acquire(self, timeout, sync, stream):
        """The index of the slot of the next frame, or a negative result."""
        return self._take(gr_acquire, timeout, sync, stream)

    def latest(self, timeout, sync, stream):
        """The index of the slot of the newest frame, or a negative result."""
        return self._take(gr_latest, timeout, sync, stream)

    cdef uint64_t _record(self, uint32_t index, uint64_t seq, sync, streams) except 0:
        """Two clocks: promise, then let the GPU pay when the streams get there."""
        cdef uint64_t value = gr_promise(&self.me, index, seq)
        if value == 0:  # reaped or forked; the verb that follows says so
            return 1
        if sync is None:
            raise_to(fence_of(self.me.ring, index, self.me.number), value)
            return value
        try:
            sync.record(self, index, value, streams)
        except BaseException:
            # Whether it was enqueued is unknown.  Once the streams are idle it does not matter.
            sync.settle(self, index, value, streams)
            raise
        return value

    def publish(self, uint32_t index, uint64_t seq, sync, streams, shape):
        """0 or a negative result.  If the fence cannot be recorded the frame is abandoned."""
        cdef uint64_t extents[8]
        cdef uint32_t ndim = 0
        cdef uint64_t value
        if shape is not None:
            for n in shape:
                extents[ndim] = n
                ndim += 1
        try:
            value = self._record(index, seq, sync, streams)
        except BaseException:
            gr_abandon(&self.me, index, seq)
            raise
        return -<int>gr_publish(&self.me, index, seq, value, ndim, extents)

    def abandon(self, uint32_t index, uint64_t seq, sync, streams):
        try:
            self._record(index, seq, sync, streams)
        finally:
            result = gr_abandon(&self.me, index, seq)
        return -<int>result

    def release(self, uint32_t index, uint64_t seq, sync, streams):
        """0, TORN (it is released, and known to be torn), or a negative result."""
        cdef gr_slot *slot = &self.me.ring.slot[index]
        cdef uint32_t owner = owner_of(load_acquire(&slot.word))  # stable while the frame is held
        cdef uint64_t value = load_acquire(&slot.fence)
        try:
            self._record(index, seq, sync, streams)
        finally:
            result = gr_release(&self.me, index, seq)
        if result != GR_OK:
            return -<int>result
        if owner < self.me.ring.max_peers and load_acquire(fence_of(self.me.ring, index, owner)) < value:
            self.unsettled.append((index, seq, owner, value))
        elif load_acquire(&slot.torn) >= seq:
            return TORN
        return 0

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
        return load_acquire(&self.me.ring.slot[index].time_ns)

    def shape(self, uint32_t index):
        """The shape of the frame in a slot that this peer holds; None: the whole slot."""
        cdef gr_slot *slot = &self.me.ring.slot[index]
        cdef uint64_t ndim = load_acquire(&slot.ndim), k
        if ndim == 0:
            return None
        if ndim > <uint64_t>GR_MAX_NDIM:
            raise Damaged(f"slot {index} names {ndim} dimensions")
        return tuple([load_acquire(&slot.shape[k]) for k in range(ndim)])

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
            if load_acquire(fence_of(self.me.ring, i, self.me.number)) < \
                    load_acquire(work_of(self.me.ring, i, self.me.number)):
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


# ---- several peers, and event loops (gpuring/waiting.py) ------------------------------------------

MAX_WAITED = <int>GR_MAX_WAITED


def ready(Peer peer not None):
    """Whether claim or acquire would have an answer now.  A look that changes nothing."""
    return gr_ready(&peer.me) != GR_BLOCKED or _torn_is_untold(peer)


cdef bint _torn_is_untold(Peer peer) except? True:
    """Whether acquire would begin with FrameTorn: as look_behind, which tells it, without telling."""
    if not peer.unsettled or load_acquire(&peer.me.ring.head.reaps) == peer.reaps:
        return False
    for index, seq, owner, value in peer.unsettled:
        if load_acquire(fence_of(peer.me.ring, index, owner)) >= <uint64_t>value and \
                load_acquire(&peer.me.ring.slot[<uint32_t>index].torn) >= <uint64_t>seq:
            return True
    return False


def select(list peers not None, timeout):
    """[whether it has an answer] for each of the peers (different ones, at most MAX_WAITED); waits until
    one has, or until the time is up.  Ctrl-C interrupts."""
    cdef gr_peer *members[GR_MAX_WAITED]
    cdef gr_bool there[GR_MAX_WAITED]
    cdef uint32_t k, n = len(peers)
    cdef int64_t deadline_ns = INT64_MAX
    cdef gr_result result = GR_BLOCKED
    cdef Peer peer
    if not 0 < n <= GR_MAX_WAITED:
        raise ValueError(f"1 … {GR_MAX_WAITED} peers can be waited for, not {n}")
    if timeout is not None:
        if not timeout >= 0:
            raise ValueError(f"timeout must be None or >= 0 seconds, not {timeout!r}")
        if timeout <= 9e9:
            deadline_ns = gr_now_ns() + <int64_t>(timeout * 1e9) if timeout else 0
    for k in range(n):
        peer = peers[k]
        if peer.busy:
            raise RuntimeError("this peer is waiting in another thread; give each thread its own")
        members[k] = &peer.me
    try:
        for peer in peers:
            peer.busy = True
        while True:
            told = [_torn_is_untold(peer) for peer in peers]
            if True in told:
                deadline_ns = 0
            with nogil:
                result = gr_select(members, n, deadline_ns, there)
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
        result = gr_notifier_arm(self.notifier, &peer.me)
        self.peer = peer
        return result != GR_BLOCKED

    def disarm(self):
        """Nobody waits: changes of the ring are cheap again.  Readable it stays as it is."""
        gr_notifier_disarm(self.notifier)

    def set(self):
        """Makes it readable, for the last time for this peer: it is about to leave."""
        gr_notifier_raise(self.notifier)
        self.peer = None
