# cython: language_level=3
"""Where no signal handler may come between.

Python runs signal handlers between two of its own instructions: also between a lock's `acquire` and
what says that it is ours, or between the block of a `with` and its `__exit__`'s first line.  A
handler that raises there would leave the lock taken, the slot claimed.  Here is no instruction of
Python's, but for those that are called.
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


cdef class Ended:
    """A kind of slot whose `with` ends it by verbs in Python.  If a handler cuts those short, the slot
    is given back: else it would be somebody's for as long as the exception is kept, which keeps the
    frame of the block."""

    def __exit__(self, kind, error, traceback):
        if not self._open:
            if kind is None and self._cut and hasattr(self, "publish"):  # nobody gets what was written
                self._check_open()
            return
        try:
            self._done(kind is None)
        except Exception:  # a refusal: what it says of the slot holds
            raise
        except BaseException:
            if self._open:
                self._end()
            raise
