"""The threads and tasks that sleep until something changes in a client, and the turns that they try to take.

A sleeper belongs to the thread or the task that sleeps.  Any thread may `wake` it, once or several times.
"""
import threading

from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident

from gpuring.service._envelopes cimport NOTHING, PyWeakref_GetObject, PyWeakref_NewRef, made

Turn = threading.RLock


cdef class Attempt:
    """`with Attempt(turn) as mine:` tries to take a turn, says whether it did, and gives it back at the end of the block."""

    cdef object turn
    cdef bint mine

    def __init__(self, turn):
        self.turn = turn

    def __enter__(self):
        self.mine = self.turn.acquire(False)
        return self.mine

    def __exit__(self, *_):
        if self.mine:
            self.mine = False
            self.turn.release()


cdef class Thread:
    """A thread that sleeps."""

    def __init__(self):
        self.asleep = threading.Lock()
        self.asleep.acquire()

    def wake(self):
        try:
            self.asleep.release()
        except RuntimeError:  # it was woken already
            pass

    def sleep(self, timeout):
        self.asleep.acquire(timeout=timeout)


def nothing():
    return False


cdef object imported = None, current_task = None, get_running_loop = None


cpdef asyncio():
    """The module, which a program without event loops need not import."""
    global imported, current_task, get_running_loop
    if imported is None:
        import asyncio as module
        current_task, get_running_loop = module.current_task, module.get_running_loop
        imported = module
    return imported


cdef running_loop():
    if get_running_loop is None:
        asyncio()
    return get_running_loop()


cdef class AsleepTask:
    """A task of an event loop that sleeps once.  `asleep` are the tasks for which the loop listens, if it is one of them."""

    def __init__(self, loop):
        self.begin(loop, None, nothing, None)

    cdef int begin(self, loop, dict asleep, ready, stream) except -1:
        self.loop, self.asleep, self.ready, self.stream = loop, asleep, ready, stream
        self.thread = PyThread_get_thread_ident()
        if current_task is None:
            asyncio()
        task = current_task(loop)
        # The same key for the same task each time, so it replaces what an interrupt has left.  The reference is weak, because a
        # task keeps its calls.
        self.key = self if task is None else PyWeakref_NewRef(task, None)
        self.woken = loop.create_future()
        return 0

    @property
    def gone(self):
        """Whether the task has ended without having been removed."""
        if self.key is self:
            return False
        task = <object>PyWeakref_GetObject(self.key)
        return task is None or task.done()

    cpdef wake(self):
        """Called by any thread."""
        if PyThread_get_thread_ident() == self.thread:
            rung(self, None)
            return
        try:
            self.loop.call_soon_threadsafe(self.ring)
        except RuntimeError:  # that loop has ended, with its tasks
            pass

    def ring(self, error=None):
        """Called by the thread of the loop."""
        rung(self, error)


cdef rung(AsleepTask task, error):
    if task.asleep is not None and PyDict_GetItem(task.asleep, task.key) == <PyObject *>task:
        del task.asleep[task.key]
    if task.woken.done():
        return
    try:
        if error is None:
            task.woken.set_result(None)
        else:
            task.woken.set_exception(error)
    except RuntimeError:  # that loop has ended, with its tasks
        pass


cdef AsleepTask asleep_task(kind, loop, dict asleep, ready, stream):
    """A task of that kind: the running one.  `asleep` are the tasks for which the loop listens, and `ready` says whether this one
    need not sleep any more."""
    cdef AsleepTask task = made(kind, NOTHING)
    task.begin(loop, asleep, ready, stream)
    return task


cdef wake(list sleepers):
    """Called after the last change.  A sleeper that is not woken, because a signal handler raises here, looks again by itself."""
    for each in sleepers:
        if isinstance(each, AsleepTask):
            (<AsleepTask>each).wake()
        else:
            each.wake()
