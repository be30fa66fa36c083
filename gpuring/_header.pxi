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

    @property
    def fence_region(self):
        """(address, nbytes) of the fence table, whole pages: what CUDA maps for the timeline."""
        return <size_t>self.ring.fence, self.ring.layout.event - self.ring.layout.fence

    def fence_offset(self, uint32_t peer, uint32_t index):
        """Bytes from the start of fence_region to fence[index][peer]."""
        return 8 * (<uint64_t>index * self.ring.max_peers + peer)

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
            word = gr_load_acquire(&ring.slot[i].word)
            slots.append({
                "seq": seq_of(word), "owner": owner_of(word), "phase": SLOT_PHASES[phase_of(word) & 3],
                "since_ns": gr_load_acquire(&ring.slot[i].since_ns),
                "time_ns": gr_load_acquire(&ring.slot[i].time_ns),
            })
        for p in range(ring.max_peers):
            word = gr_load_acquire(&ring.peer[p].word)
            if state_of(word) == GR_FREE:
                continue
            peers[p] = {
                "role": "producer" if role_of(word) == GR_PRODUCER else "consumer",
                "leaving": state_of(word) == GR_LEAVING,
                "subscription": sub_of(word) if role_of(word) == GR_CONSUMER else None,
                "pid": gr_load_acquire(&ring.peer[p].pid),
                "alive": ring.lock_fd >= 0 and gr_peer_alive(ring, p),
                "joined_ns": gr_load_acquire(&ring.peer[p].joined_ns),
                "waiting": gr_load_acquire(&ring.peer[p].waiting) != 0,
                "frames": gr_load_acquire(&ring.peer[p].frames),
                "lost": gr_load_acquire(&ring.peer[p].lost),
                "torn": gr_load_acquire(&ring.peer[p].torn),
                "pending": sum([gr_load_acquire(fence_of(ring, i, p)) < gr_load_acquire(work_of(ring, i, p))
                                for i in range(ring.slots)]),
            }
        for u in range(ring.max_subscriptions):
            sub = gr_load_acquire(&ring.sub[u].word)
            if mode_of(sub) == GR_SUB_FREE:
                continue
            takes = []
            for i in range(ring.slots):
                take = take_of(ring, i, u)
                word = gr_load_acquire(&take.word)
                takes.append({"seq": seq_of(word), "member": owner_of(word),
                              "phase": TAKE_PHASES[phase_of(word) % 3],
                              "since_ns": gr_load_acquire(&take.since_ns)})
            subscriptions[u] = {
                "name": self.subscription_name(u),
                "lossless": mode_of(sub) == GR_LOSSLESS, "start": start_of(sub),
                "redeliver": policy_of(sub) == GR_REDELIVER,
                "lost": gr_load_acquire(&ring.sub[u].lost),
                "created_ns": gr_load_acquire(&ring.sub[u].created_ns), "takes": takes,
            }
        return {"frontier": gr_frontier(ring), "closed": self.closed, "slots": slots, "peers": peers,
                "subscriptions": subscriptions, "deaths": self._deaths()}

    def _deaths(self):
        """The last deaths, the latest first."""
        cdef uint64_t reaps = gr_load_acquire(&self.ring.head.reaps), k
        cdef gr_death *death
        deaths = []
        for k in range(min(reaps, <uint64_t>GR_DEATHS)):
            death = &self.ring.head.deaths[(reaps - 1 - k) % <uint64_t>GR_DEATHS]
            deaths.append({
                "time_ns": gr_load_acquire(&death.time_ns), "pid": gr_load_acquire(&death.pid),
                "number": gr_load_acquire(&death.number),
                "role": "producer" if role_of(gr_load_acquire(&death.peer)) == GR_PRODUCER else "consumer",
                "voided": gr_load_acquire(&death.voided), "torn": gr_load_acquire(&death.torn),
                "reopened": gr_load_acquire(&death.reopened), "raised": gr_load_acquire(&death.raised),
            })
        return deaths


cdef object _joined(Peer peer, gr_result result):
    if result == GR_SYSTEM:
        PyErr_SetFromErrno(OSError)
    if result != GR_OK:
        return -<int>result
    return peer
