# Part of _core.pyx: several peers at once, and event loops (waiting.py).


def look(Peer peer not None):
    """Looks what claim or acquire would do now, and changes nothing.

    Returns (the sequence that it would get, None), or (the negative result, who is in the way if that is BLOCKED)."""
    cdef uint64_t seq = 0
    cdef gr_culprit culprit
    cdef gr_result result = gr_look(&peer.gd.core, &seq, &culprit)
    if result == GR_OK:
        return seq, None
    return -<int>result, _told_of(&culprit) if result == GR_BLOCKED else None


def ready(Peer peer not None, int64_t spin_ns=0):
    """Whether claim or acquire would have an answer now.  Changes nothing.

    It looks again and again for as long as the peer's own spin is, and for at most `spin_ns`."""
    cdef gr_result result = gr_ready(&peer.gd.core)
    if result == GR_BLOCKED and spin_ns and not gd_would_tell(&peer.gd):
        with nogil:
            result = gr_spin_ready(&peer.gd.core, spin_ns)
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
        members[k] = &peer.gd.core
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
        result = gr_notifier_arm(self.notifier, &peer.gd.core)
        self.peer = peer
        return result != GR_BLOCKED

    def arm_at_end(self, Peer peer not None):
        """Whether the stream, which had ended, goes on.  If so, the descriptor is readable, and if not, it will be when a
        producer joins."""
        result = gr_notifier_arm_at_end(self.notifier, &peer.gd.core)
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
