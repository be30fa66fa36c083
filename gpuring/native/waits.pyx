"""A look at what a verb would do now, and a wait for several peers at once (ring/waiting.py)."""
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t, uint64_t

from gpuring.native.blocked cimport give_back_lost
from gpuring.native.c cimport *
from gpuring.native.clock cimport deadline_of
from gpuring.native.peer cimport Peer, check_idle
from gpuring.native.results cimport culprit_of

MAX_WAITED = <int>GR_MAX_WAITED


def look(Peer peer not None):
    """Looks what claim or acquire would do now, and changes nothing.

    Returns (the sequence that it would get, None), or (the negative result, who is in the way if that is BLOCKED)."""
    cdef uint64_t seq = 0
    cdef gr_culprit culprit
    cdef gr_result result = gr_look(&peer.gd.core, &seq, &culprit)
    if result == GR_OK:
        return seq, None
    return -<int>result, culprit_of(&culprit) if result == GR_BLOCKED else None


def ready(Peer peer not None, int64_t spin_ns=0):
    """Whether claim or acquire would have an answer now.  Changes nothing.

    It looks again and again for as long as the peer's own spin is, and for at most `spin_ns`."""
    cdef gr_result result = gr_ready(&peer.gd.core)
    if result == GR_BLOCKED and spin_ns and not gd_would_report(&peer.gd):
        with nogil:
            result = gr_spin_ready(&peer.gd.core, spin_ns)
    return result != GR_BLOCKED or gd_would_report(&peer.gd)


def show_waiting(Peer peer not None, bint waits):
    """Lets others see whether the owner of a peer waits, which sleeps elsewhere than at the ring's bell."""
    if waits:
        gr_announce(&peer.gd.core, GR_SLEEPING)
    else:
        gr_withdraw(&peer.gd.core, GR_SLEEPING)


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
        raise ValueError(f"1 … {GR_MAX_WAITED} producers and consumers can be waited for at once, not {n}. "
                         "An event loop waits for more, at their `fileno()`")
    deadline_ns = deadline_of(timeout)
    for k in range(n):
        peer = peers[k]
        check_idle(peer)
        members[k] = &peer.gd.core
    try:
        for peer in peers:
            peer.begin_wait()
        while True:
            torn = [gd_would_report(&peer.gd) for peer in peers]
            if True in torn:
                deadline_ns = 0
            with nogil:
                result = gr_select(members, n, begun_ns, deadline_ns, there)
            if result != GR_SIGNAL:
                return [torn[k] or there[k] for k in range(n)]
            PyErr_CheckSignals()
            give_back_lost()  # of every endpoint, because nothing says which one blocks us
    finally:
        for peer in peers:
            peer.waiting_in = 0
