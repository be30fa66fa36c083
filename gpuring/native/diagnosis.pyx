"""The errors of refused verbs, as the C library words them (host/diagnosis.c).

`is_stopped(number)` says whether the process of a peer is stopped.  None asks /proc.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from gpuring.native.c cimport *
from gpuring.native.header cimport Header
from gpuring.native.names cimport kind_of
from gpuring.native.peer cimport Peer
from gpuring.native.subscriptions cimport pad

cdef enum:
    ROOM = 16384

cdef dict _VERBS = {"claim": GH_CLAIM, "acquire": GH_ACQUIRE, "latest": GH_LATEST}


cdef class _Looks:
    """Who is asked.  C cannot raise, so what was raised meanwhile, such as by a Ctrl-C, is kept until C has returned."""

    cdef gh_looks looks
    cdef object is_stopped
    cdef object raised

    def __cinit__(self, is_stopped):
        self.is_stopped = is_stopped
        self.looks.is_stopped, self.looks.context = _asked, <void *>self

    cdef gh_looks *asked(self) noexcept:
        return NULL if self.is_stopped is None else &self.looks

    cdef int done(self) except -1:
        if self.raised is not None:
            raise self.raised
        return 0


cdef gr_bool _asked(void *context, const gr_ring *ring, uint32_t number) noexcept with gil:
    cdef _Looks looks = <_Looks>context
    try:
        return looks.raised is None and bool(looks.is_stopped(number))
    except BaseException as error:
        looks.raised = error
        return False


cdef object _error(gpuring_status status, const char *text):
    return kind_of(status)(text.decode(errors="replace"))


def refused(str ring not None, Peer peer not None, int result, str verb not None, timeout, is_stopped=None):
    """The error for the negative `result` of a frame verb, if it is not TORN."""
    cdef char room[ROOM]
    cdef gh_text text = gh_begin_text(room, ROOM)
    cdef _Looks looks = _Looks(is_stopped)
    cdef double timeout_s = GH_NO_TIMEOUT if timeout is None else timeout
    cdef gpuring_status status = gh_add_refused(
        &text, ring.encode(), &peer.gd.core, <gr_result>-result, _VERBS.get(verb, GH_CLAIM), timeout_s, looks.asked())
    looks.done()
    return _error(status, room)


def unusable(str ring not None, int result):
    """The error for a negative result that any call may return."""
    cdef char room[ROOM]
    cdef gh_text text = gh_begin_text(room, ROOM)
    return _error(gh_add_unusable(&text, ring.encode(), <gr_result>-result), room)


def cannot_join(str ring not None, Header header not None, int result, bytes subscription not None):
    """The error for the negative result of a join."""
    cdef char room[ROOM]
    cdef char padded[64]
    cdef gh_text text = gh_begin_text(room, ROOM)
    pad(padded, subscription)
    return _error(gh_add_cannot_join(&text, ring.encode(), header.ring, <gr_result>-result, padded), room)


def resting(str ring not None, Header header not None, int result, str verb not None, timeout):
    """The error of a verb of a peer that waits for the stream to go on, and whose time is up."""
    cdef char room[ROOM]
    cdef gh_text text = gh_begin_text(room, ROOM)
    cdef double timeout_s = 0.0 if timeout is None else timeout
    return _error(gh_add_resting(&text, ring.encode(), header.ring, <gr_result>-result, _VERBS[verb], timeout_s), room)


cdef gr_culprit _as_c(tuple culprit):
    cdef gr_culprit who
    reason, other, subscription, who.seq, who.since_ns = culprit
    who.reason = <gr_reason><int>reason
    who.peer = GR_NONE if other is None else other
    who.subscription = GR_NONE if subscription is None else subscription
    return who


def in_the_way(Header header not None, tuple culprit not None, is_stopped=None):
    """Who is in the way of a verb, in words: who it is, which sequence it is about, and since when.  `culprit` is as
    Peer.culprit."""
    cdef char room[ROOM]
    cdef gh_text text = gh_begin_text(room, ROOM)
    cdef _Looks looks = _Looks(is_stopped)
    cdef gr_culprit who = _as_c(culprit)
    gh_add_in_the_way(&text, header.ring, &who, looks.asked())
    looks.done()
    return room.decode(errors="replace")


def way_out(Header header not None, tuple culprit not None):
    """What can be done about it, in sentences.  Often nothing."""
    cdef char room[ROOM]
    cdef gh_text text = gh_begin_text(room, ROOM)
    cdef gr_culprit who = _as_c(culprit)
    gh_add_way_out(&text, header.ring, &who)
    return room.decode(errors="replace").removeprefix(". ")


def torn(str ring not None, seqs, bint released):
    """What is said of torn frames.  `released`: they turned out torn after their release."""
    cdef char room[ROOM]
    cdef gh_text text = gh_begin_text(room, ROOM)
    cdef size_t k, n = len(seqs)
    cdef uint64_t *listed = <uint64_t *>malloc(8 * max(n, 1))
    if listed == NULL:
        raise MemoryError()
    try:
        for k in range(n):
            listed[k] = seqs[k]
        gh_add_torn(&text, ring.encode(), listed, n, released)
    finally:
        free(listed)
    return room.decode(errors="replace")
