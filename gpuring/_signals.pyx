# cython: language_level=3
"""Steps between which no signal handler may run.

Python runs signal handlers between two of its own instructions.  So one may run between a lock's
`acquire` and the assignment that says that the lock is ours, or between the block of a `with` and
the first line of its `__exit__`.  If it raises there, the lock stays taken, or the slot claimed.
The steps here are compiled to C, so Python has no instructions between them.
"""


cdef class Attempt:
    """`with Attempt(lock, timeout) as mine:` waits at most `timeout` seconds for a lock, or for ever if
    that is -1.  `mine` says whether it got the lock.  The end of the block gives the lock back.  Ctrl-C
    interrupts the wait."""

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
    """A kind of slot whose `with` block ends it by verbs in Python.

    If a signal handler cuts those short, the slot is given back.  Otherwise somebody would have it for
    as long as the exception is kept, because the exception keeps the frame of the block."""

    def __exit__(self, kind, error, traceback):
        if not self._open:
            if kind is None and self._cut and hasattr(self, "publish"):  # what was written was not published
                self._check_open()
            return
        try:
            self._done(kind is None)
        except Exception:  # a verb was refused, and the error says what became of the slot
            raise
        except BaseException:
            if self._open:
                self._end()
            raise


cdef list unfinished = []  # what was dropped, and whose `_dropped` was interrupted twice


cdef class Dropped:
    """Calls its `_dropped` when nobody has it any more.

    Where a `__del__` in Python begins, Python looks for signals.  If a handler raises there, nothing of the
    `__del__` is done, and nothing will ever call it again.  Here the object is kept, and `_dropped` is called
    once more.  If a handler raises in that call, too, `finish_dropped` does the rest.  As always, Python
    prints what a handler raises."""

    def __del__(self):
        try:
            self._dropped()
        except Exception:
            raise
        except BaseException:
            unfinished.append(self)
            finish_dropped()
            raise


def finish_dropped():
    """Calls `_dropped` of what was dropped and interrupted."""
    while unfinished:
        dropped = unfinished.pop()
        try:
            dropped._dropped()
        except Exception:
            raise
        except BaseException:
            unfinished.append(dropped)
            raise
