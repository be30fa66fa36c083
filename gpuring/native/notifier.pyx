"""A descriptor for event loops (core/notify.c)."""
cimport cython
from cpython.exc cimport PyErr_SetFromErrno

from gpuring.native.c cimport *
from gpuring.native.peer cimport Peer


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

    def arm(self, Peer peer not None, bint at_end=False):
        """Whether the verb has an answer or, at the end of the stream, whether the stream goes on.  If so, the descriptor is
        readable, and if not, it will be when there is an answer or a producer joins."""
        result = gr_notifier_arm(self.notifier, &peer.gd.core, at_end)
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
