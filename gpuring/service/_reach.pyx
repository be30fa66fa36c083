"""What an engine has of its clients' rings.  Only the one thread that runs the engine uses it."""
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from gpuring.native.c cimport *
from gpuring.native.peer cimport *
from gpuring.ring cimport inner
from gpuring.ring.producer cimport Producer
from gpuring.service._envelopes cimport now_ns, now_s
from gpuring.errors import RingClosed, RingFull

cdef int64_t ALIVE_NS = 1000000  # for so long a client is not asked again whether it lives
cdef double ROOM_S = 0.1  # how long to wait for the answer of a dead engine to be cleared


cdef class Answering(Producer):
    """An engine's producer in the ring of one client.  service/call.py has the rest of it."""

    cdef bint has_nothing(self) except -1:
        """Whether it has claimed nothing, according to the header's words.  It need not look at all of them, because the list of
        what was handed out has few entries."""
        cdef gr_ring *ring = self._peer.gd.core.ring
        cdef uint64_t word
        cdef uint32_t k
        if self.unlisted:
            if not self._peer.has_nothing():
                return False
            self.unlisted = False
        else:
            for k in range(self.givens):
                word = gr_load_acquire(&ring.slot[self.given[k]].word)
                if phase_of(word) == GR_WRITING and owner_of(word) == self._peer.gd.core.self.number:
                    return False
        return True


cdef class Reach:
    """An engine's producers in the rings of its clients."""

    def __init__(self):
        self.writers, self._used = {}, {}
        self._tidied = now_s()

    cpdef reach(self, uint64_t client, int64_t now=0):
        """Returns this engine's producer in a client's ring; None if the client is dead or has left.  Raises OSError if this
        process has too few descriptors or too little memory to open the ring.  `now` is now_ns(), if the caller knows it."""
        cdef PyObject *found = PyDict_GetItem(self.writers, client)
        cdef Answering writer
        if found == NULL:
            self.writers[client] = writer = self._meet(client)
        else:
            writer = <object>found
        return None if writer is None or is_gone(writer, ALIVE_NS, now) else writer

    cdef _claim(self, uint64_t client, stream, shape):
        """A slot for an answer: in the client's ring, or one that goes nowhere."""
        cdef Answering writer = self.reach(client)
        if writer is not None:
            self._used[writer] = None
            if stream is not None or shape is not None or writer.begun or writer._peer.gd.gate_host:
                return self.begin(writer, stream, shape)
            try:
                return inner.claim(writer, ROOM_S, None, None)
            except (RingClosed, RingFull):
                pass
        return self.begin(None, stream, shape)

    cdef int give_up(self) except -1:
        """Gives up what was begun and not sent."""
        cdef Answering writer
        for writer in list(self._used):
            if writer.has_nothing():
                self._used.pop(writer, None)
        if self._used:
            self.void()
        return 0


cpdef bint is_gone(Answering writer, int64_t trust_ns=0, int64_t now=0) except -1:
    """Whether the client of that ring is dead or has left.  Whether it lives is asked again after `trust_ns`, because that is a
    call to the system.  `now` is now_ns(), if the caller knows it."""
    cdef Peer peer = writer._peer
    if gr_load_acquire(&peer.header.ring.head.closed):
        return True
    if now == 0:
        now = now_ns()
    if now - writer.alive_ns >= trust_ns:
        if not peer.header.has_creator():
            return not peer.is_forked()  # a forked child does not see the locks of its parent's own
        writer.alive_ns = now
    return False
