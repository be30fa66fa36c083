"""What a wait that is blocked asks of the layers above, which know the rings and slots of the process.

A slot of this process that nobody has any more may be what blocks the wait, and no other process can know.
"""

cdef object handler = None


def on_blocked(new):
    """Registers who is asked, once, when the package is imported.  It has three methods.

    `give_back_lost()` is called between two slices of a wait for another peer of this process.  `waits_for_itself(peer)`
    is called between two slices of any wait without a time-out.  If that says twice that nobody but the calling
    thread can end the wait, `warn_of_itself(peer)` is called once."""
    global handler
    handler = new


cdef int give_back_lost() except -1:
    if handler is not None:
        handler.give_back_lost()
    return 0


cdef bint waits_for_itself(peer) except -1:
    return handler is not None and handler.waits_for_itself(peer)


cdef int warn_of_itself(peer) except -1:
    handler.warn_of_itself(peer)
    return 0
