"""Steps that a signal handler that raises must not cut short: the end of an object that is dropped,
and the first step of an asynchronous loop.

Python runs signal handlers between two of its own instructions.  The steps here are compiled to C,
so Python has no instructions between them.
"""

import signal
import sys
import weakref

cdef extern from "Python.h":
    int PyErr_SetInterruptEx(int)

cdef object set_signal = signal.signal
cdef list unfinished = []  # what was dropped, and whose `_dropped` was interrupted twice
cdef int under_way = 0  # ends of what was dropped
cdef object is_finalizing = sys.is_finalizing  # what has a name in a module is None when it is needed


cdef class Dropped:
    """Calls its `_dropped` when nobody has it any more.

    Where a `__del__` in Python begins, Python looks for signals.  If a handler raises there, nothing of the
    `__del__` is done, and nothing will ever call it again.  Here the object is kept, and `_dropped` is called
    once more.  If a handler raises in that call, too, `finish_dropped` does the rest.  As always, Python
    prints what a handler raises.

    While the interpreter goes away, nothing is called.  gpuring/ring/shutdown.py has closed all rings before
    that, and functions in Python may not find their builtins any more."""

    def __del__(self):
        global under_way
        if is_finalizing():
            return
        under_way += 1
        try:
            self._dropped()
        except Exception:
            raise
        except BaseException:
            unfinished.append(self)
            finish_dropped()
            raise
        finally:
            under_way -= 1


def is_dropping():
    """Whether the end of something that was dropped is under way, in any thread.  Tests ask: it has no frame of Python."""
    return under_way != 0


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


def begun_elsewhere(step):
    """Makes the `__anext__` of a class of `step`, an asynchronous function, which gets a weak reference to the
    iterator.

    Where a function in Python begins, Python looks for signals.  If a handler raises there, the traceback has
    that function's arguments, and an asyncio task may keep the traceback for long.  So the iterator, and the
    frame that it has, must not be among them."""

    def __anext__(self):
        return step(weakref.ref(self))

    return __anext__


def raises_again(number, told):
    """A `sys.unraisablehook`.  Python drops what a handler raises while an object goes, such as a lock of an import.  If that was to
    end the program, the signal comes again, and the handler raises where Python goes on.  All else is `told` to the hook before.

    This hook is compiled, so that the handler does not raise in it."""

    def hook(unraisable):
        if unraisable.exc_type is SystemExit and str(unraisable.exc_value) == str(128 + number):
            PyErr_SetInterruptEx(number)
        else:
            told(unraisable)

    return hook


def set_handler(number, handler):
    """`signal.signal`, also if a handler raises before it has done anything: then it is done first."""
    try:
        set_signal(number, handler)
    except BaseException:
        set_signal(number, handler)
        raise
