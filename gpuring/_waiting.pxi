# Waiting for several peers, and in event loops (gpuring/waiting.py).

MAX_WAITED = <int>GR_MAX_WAITED


def ready(Peer peer not None, int64_t spin_ns=0):
    """Whether claim or acquire would have an answer now.  A look that changes nothing.

    It goes on for as long as the peer's own spin is, at most `spin_ns`."""
    cdef gr_result result = gr_ready(&peer.me)
    if result == GR_BLOCKED and spin_ns and not peer.released.would_tell():
        with nogil:
            result = gr_look(&peer.me, spin_ns)
    return result != GR_BLOCKED or peer.released.would_tell()


def select(list peers not None, timeout):
    """[whether it has an answer] for each of the peers (different ones, at most MAX_WAITED); waits until
    one has, or until the time is up.  Ctrl-C interrupts."""
    cdef gr_peer *members[GR_MAX_WAITED]
    cdef gr_bool there[GR_MAX_WAITED]
    cdef uint32_t k, n = len(peers)
    cdef int64_t begun_ns = gr_now_ns(), deadline_ns = INT64_MAX
    cdef gr_result result = GR_BLOCKED
    cdef Peer peer
    if not 0 < n <= GR_MAX_WAITED:
        raise ValueError(f"1 … {GR_MAX_WAITED} peers can be waited for, not {n}")
    if timeout is not None:
        if not timeout >= 0:
            raise ValueError(f"timeout must be None or >= 0 seconds, not {timeout!r}")
        if timeout <= 9e9:
            deadline_ns = begun_ns + <int64_t>(timeout * 1e9) if timeout else 0
    for k in range(n):
        peer = peers[k]
        if peer.busy:
            raise RuntimeError("this peer is waiting in another thread; give each thread its own")
        members[k] = &peer.me
    try:
        for peer in peers:
            peer.busy = True
        while True:
            told = [peer.released.would_tell() for peer in peers]
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
