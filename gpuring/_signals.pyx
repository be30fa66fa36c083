# cython: language_level=3
"""The end of an object that is dropped while a signal handler raises.

Python runs signal handlers between two of its own instructions.  The steps here are compiled to C,
so Python has no instructions between them.
"""


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
