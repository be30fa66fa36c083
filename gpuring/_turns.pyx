# cython: language_level=3
"""Turns that no signal handler can come between.

Python runs signal handlers between two of its own instructions: also between a lock's `acquire` and
what says that it is ours.  A handler that raises there would leave the lock taken for ever.  Here is
no instruction of Python's.
"""


cdef class Attempt:
    """`with Attempt(lock, timeout) as mine:` waits `timeout` seconds for a lock (-1: for ever), says
    whether it was to be had, and gives it back at the end of the block.  Ctrl-C interrupts the wait."""

    cdef object lock
    cdef object timeout
    cdef bint mine

    def __init__(self, lock, timeout=0):
        self.lock, self.timeout = lock, timeout

    def __enter__(self):
        self.mine = self.lock.acquire(True, self.timeout)
        return self.mine

    def __exit__(self, *_):
        if self.mine:
            self.mine = False
            self.lock.release()
