"""A peer of a ring: its verbs, and how it leaves.  joining.pyx has how it joins.

One Python call is one whole transition of the C library.

Only three things are decided here: when the GIL is released (a first try that neither waits nor enqueues keeps it), when
signals are handled (between two slices of a wait), and what a result is in Python.  Refusals come back as negative results,
for which the callers have the words.  Refusals of the driver are raised as DeviceError.

gpuring/ring has the verbs as users call them, on slot objects.
"""
cimport cython
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from posix.unistd cimport usleep

from gpuring.native.blocked cimport give_back_lost, waits_for_itself, warn_of_itself
from gpuring.native.c cimport *
from gpuring.native.header cimport Header
from gpuring.native.results cimport culprit_of

from gpuring.native.header import Damaged


cdef inline gr_result _taken(gd_peer *me, gd_call *call, unsigned how, verb which) noexcept nogil:
    if which == CLAIM:
        return gd_claim(me, call, how)
    return gd_acquire(me, call, how, gr_acquire if which == ACQUIRE else gr_latest)


cdef inline gr_result _ended(gd_peer *me, gd_call *call, unsigned how, verb which) noexcept nogil:
    if which == PUBLISH:
        return gd_publish(me, call, how)
    return gd_release(me, call, how) if which == RELEASE else gd_abandon(me, call, how)


cdef int raise_busy(Peer peer) except -1:
    raise RuntimeError(f"ring {peer.called!r}: this peer is waiting in another thread; give each thread its own")


@cython.no_gc_clear  # __dealloc__ needs the header
cdef class Peer:
    """A producer or a consumer: one entry of the peer table, with its device order."""

    def __cinit__(self, Header header not None, str ring=""):
        """`ring`: what it is called."""
        self.header, self.called = header, ring

    def __dealloc__(self):
        """Leaves the ring if a Ctrl-C cut the join short.  A peer that was used is closed by its owner."""
        cdef uint32_t i
        cdef uint64_t seq
        cdef bint used = False
        if self.gd.core.ring == NULL:
            return
        if not self.gd.core.self.left and self.gd.core.ring.lock_fd >= 0 and not gr_forked(self.gd.core.ring):
            for i in range(self.gd.core.ring.slots):
                used = used or gr_holds(&self.gd.core, i, &seq) or not self._paid(i)
            if not used:
                self.gd.core.self.dropped = True
                with nogil:  # another thread of this process may have LOCK
                    gr_leave(&self.gd.core)
                    if gr_leaves_late(&self.gd.core):
                        gr_watch(self.gd.core.ring)
        gd_dispose(&self.gd)

    cdef bint _paid(self, uint32_t index) noexcept:
        cdef gr_ring *ring = self.gd.core.ring
        return gr_load_acquire(fence_of(ring, index, self.gd.core.self.number)) >= \
            gr_load_acquire(work_of(ring, index, self.gd.core.self.number))

    number = property(lambda Peer self: self.gd.core.self.number)
    id = property(lambda Peer self: self.gd.core.self.id)
    subscription = property(lambda Peer self: self.gd.core.self.u)
    left = property(lambda Peer self: self.gd.core.self.left)
    position = property(lambda Peer self: self.gd.core.cursor.pos)
    gate_host = property(lambda Peer self: self.gd.gate_host)  # whether it waits on the host for the GPU work of others

    def count_on_from(self, Peer before not None, lost=None):
        """What was lost upstream counts from the last frame that `before` had, which was in another ring.  `lost`: how much
        had been lost then as this ring counts, if it does not count on from the other one.  Call it before the first verb."""
        self.gd.core.cursor.counts_on = before.gd.core.cursor.counts_on
        self.gd.core.cursor.lost_before = before.gd.core.cursor.lost_before if lost is None else lost & 0xffffffff

    def count_since(self, int64_t lost):
        """`lost`: how much had been lost upstream, as this ring counts, when it was made.  Call it before the first verb."""
        gr_count_since(&self.gd.core, lost)

    def count_before(self):
        """Counts what was in the ring before the subscription that its join has made as lost.  If the subscription was there
        already, that is the other members' affair, and this does nothing.  Call it before the first verb."""
        gr_count_before(&self.gd.core)

    told_from = property(lambda Peer self: self.gd.core.cursor.told_from)  # the first death of which the last PRODUCER_DIED told

    @property
    def culprit(self):
        """(reason, peer or None, subscription or None, seq, since_ns) of the last BLOCKED."""
        return culprit_of(&self.gd.core.last.culprit)

    def set_label(self, bytes label not None):
        """What people shall see of this peer.  At most MAX_LABEL_NBYTES are kept."""
        gr_set_label(&self.gd.core, label[:64].ljust(64, b"\0"))

    def follow(self, bint follows):
        """Whether this consumer waits for the next producer, or ring, at the end of the stream."""
        self.gd.core.cursor.follows = follows

    def tell_deaths(self, bint told):
        """Whether each death of a producer is reported to this consumer."""
        self.gd.core.cursor.told_deaths = told

    cpdef count_drop(self):
        """A frame found no slot, and its producer does not wait."""
        gr_drop(&self.gd.core)

    def set_spin(self, int64_t ns):
        """Sets how long a wait spins before it sleeps.  -1 is adaptive, and with 2**63 - 1 it never sleeps."""
        gr_set_spin(&self.gd.core, ns)

    cdef int take(self, gd_call *call, verb which) except? -1000:
        """Does CLAIM, ACQUIRE or LATEST.  Returns 0 or a negative result.  If this raises, nothing is claimed or held."""
        cdef gr_result result
        check_idle(self)
        result = _taken(&self.gd, call, 0, which)
        if result == GR_SIGNAL:
            result = self._wait(call, which)
        if result == GR_DEVICE:
            raise self.device.refused(&call.trouble)
        return -<int>result

    cdef gr_result _wait(self, gd_call *call, verb which) except? GR_SIGNAL:
        cdef gr_result result
        cdef int seen = 0
        cdef int64_t vain_ns = 0
        self.begin_wait()
        try:
            while True:
                with nogil:
                    result = _taken(&self.gd, call, GD_WAIT | GD_AGAIN, which)
                try:
                    PyErr_CheckSignals()  # after a success, too, because later the caller has the slot
                    if result != GR_SIGNAL:  # a signal handler may have closed us
                        return GR_REAPED if self.gd.core.self.left else result
                    if self.gd.core.self.stopping:  # it may wait for a GPU
                        gd_cancel(&self.gd, call)
                        return GR_REAPED
                    if self.is_in_own_way():
                        give_back_lost()
                    if which == CLAIM and call.deadline_ns == INT64_MAX and gh_claims_in_vain(&self.gd.core, &vain_ns):
                        gd_cancel(&self.gd, call)
                        return GR_BLOCKED
                    if call.deadline_ns == INT64_MAX and seen < 2 and waits_for_itself(self):
                        seen += 1
                        if seen == 2:  # what was lost has come back since the first time
                            warn_of_itself(self)
                except BaseException:
                    gd_cancel(&self.gd, call)
                    raise
        finally:
            self.waiting_in = 0

    cdef int begin_wait(self) except -1:
        """Called before a wait without the GIL.  The end of the wait sets waiting_in to 0."""
        check_idle(self)
        self.waiting_in = PyThread_get_thread_ident()
        return 0

    cdef bint is_busy(self) noexcept:
        return self.waiting_in != 0

    cdef bint is_forked(self) noexcept:
        return gr_forked(self.gd.core.ring)

    cdef int64_t behind(self) noexcept:
        """How many sequences were claimed that this consumer has not looked at."""
        return <int64_t>(gr_frontier(self.gd.core.ring) - self.gd.core.cursor.pos)

    cdef bint has_news(self) noexcept:
        """Whether its verb would have an answer now.  A look that changes nothing."""
        return gr_ready(&self.gd.core) != GR_BLOCKED or gd_would_report(&self.gd)

    cdef bint has_frame(self) noexcept:
        """Whether its verb would have a slot now.  It looks at the next slot only, where `behind` also reads what the other side
        is writing."""
        return gr_ready(&self.gd.core) == GR_OK

    cdef bint has_whole_frame(self) noexcept:
        """Whether it would have a slot for which no stream has to wait.  A hint."""
        return gd_is_whole(&self.gd)

    cdef bint has_nothing(self) noexcept:
        """Whether it has left, or has claimed and holds nothing according to the header's words."""
        cdef uint64_t seq
        cdef uint32_t i
        if not self.gd.core.self.left:
            for i in range(self.gd.core.ring.slots):
                if gr_holds(&self.gd.core, i, &seq):
                    return False
        return True

    cdef bint is_in_own_way(self) noexcept:
        """Whether the culprit of the verb is a peer of this process."""
        return self.header.is_own(self.gd.core.last.culprit.peer)

    def stop(self):
        """From now on no verb hands out a slot.  A verb that waits in another thread ends as if this peer had left.  This waits
        for that verb, for as long as for the membership lock.  False if it does not come back, because it is in the driver, for
        example.  Ctrl-C interrupts."""
        cdef int64_t deadline = gr_now_ns() + 5 * <int64_t>1000000000
        gr_stop(&self.gd.core, True)
        while self.waiting_in not in (0, PyThread_get_thread_ident()):  # our own thread: this is a signal handler
            if gr_now_ns() >= deadline:
                return False
            with nogil:
                gr_stop(&self.gd.core, True)
                usleep(100)
            PyErr_CheckSignals()
        return True

    def resume(self):
        """Makes the verbs work again, because the peer could not leave."""
        gr_stop(&self.gd.core, False)

    stopped = property(lambda Peer self: self.gd.core.self.stopping != 0)

    cpdef ask(self):
        """Notes in the header that this peer asks for frames now, or still does."""
        gr_ask(&self.gd.core)

    def drop(self):
        """Nobody has this peer any more.  `leave` does not wait for the membership lock then: if another process has it, which may
        be stopped, the watchdog leaves as soon as it can."""
        self.gd.core.self.dropped = True

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

    def shape(self, uint32_t index):
        """Returns the shape of the frame in a slot that this peer holds.  None means the shape of the whole slot."""
        cdef gr_slot *slot = &self.gd.core.ring.slot[index]
        cdef uint32_t ndim = gr_load_acquire32(&slot.ndim), k
        if ndim > <uint32_t>GR_MAX_NDIM:
            raise Damaged(f"slot {index} names {ndim} dimensions")
        return tuple([gr_load_acquire(&slot.shape[k]) for k in range(ndim)]) if ndim else None

    def set_origin(self, uint32_t index, uint64_t seq, uint64_t origin_seq, uint64_t time_ns, uint32_t lost):
        """Says where the frame in a slot that this peer has claimed comes from.  Returns 0 or a negative result."""
        cdef gr_origin origin
        origin.seq, origin.time_ns, origin.lost = origin_seq, time_ns, lost
        return -<int>gr_set_origin(&self.gd.core, index, seq, &origin)

    def origin(self, uint32_t index):
        """(seq, time_ns) of where the frame in a slot that this peer holds comes from, or None."""
        cdef gr_origin origin
        if not gr_origin_of(&self.gd.core.ring.slot[index], &origin):
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

    def put_back(self, uint32_t index, bint seen=False):
        """Undoes a claim (it becomes void) or a hold (any member may take the frame).  Nothing may be enqueued on it.

        `seen`: the user has worked on the frame, so it comes again as redelivered."""
        return -<int>gd_put_back(&self.gd, index, seen)

    def keeps_place(self):
        """Whether a frame that this consumer has not released when its program is ended comes again to the next one."""
        cdef uint64_t word = gr_load_acquire(&self.header.ring.sub[self.gd.core.self.u].word)
        return mode_of(word) == GR_LOSSLESS and policy_of(word) & (GR_DURABLE | GR_DROP) == GR_DURABLE

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
        return gr_load_acquire(&self.gd.core.ring.slot[index].time_ns)

    def is_torn(self, uint32_t index):
        """Whether the frame in a slot that this peer holds is known to be torn."""
        return gd_is_torn(&self.gd, index)

    def holding(self):
        """Returns [(index, seq)] of what this peer has claimed or holds now, according to the header's words."""
        cdef uint64_t seq
        cdef uint32_t i
        held = []
        for i in range(self.gd.core.ring.slots):
            if gr_holds(&self.gd.core, i, &seq):
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
