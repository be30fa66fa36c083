"""The iterator of `for slot in consumer`, and how iterators of this package hear of their loop's end.

A loop is one around acquire, which waits for restarts by itself (following.py).  It holds one frame, that of its body.
async_frames.py has the iterator of `async for`.
"""
from cpython.exc cimport PyErr_Fetch, PyErr_Restore, PyErr_WriteUnraisable
from cpython.object cimport PyTypeObject, destructor
from cpython.ref cimport PyObject


from gpuring.errors import EndOfStream, FrameTorn
from gpuring.ring.not_copyable import Unique


cdef extern from "Python.h":
    ctypedef struct Finalized "PyTypeObject":
        destructor tp_finalize


cdef void _dropped(object iterated) noexcept:
    cdef PyObject *kind
    cdef PyObject *error
    cdef PyObject *trace
    PyErr_Fetch(&kind, &error, &trace)
    try:
        iterated._left(<object>kind if kind is not NULL else None)
    except BaseException:
        PyErr_WriteUnraisable(iterated)
    PyErr_Restore(kind, error, trace)


def hears_how_it_is_left(type iterator):
    """Decorates a class of iterators.  When Python drops one, because its loop has ended, `_left(kind)` is called once.

    `kind` is the type of the error that is on its way through the loop, else None.  The error is still the thread's
    current one while the loop's frame gives up what it has.  `__del__` does not see it, because Python puts it aside
    before it calls `__del__`.  So the slot of the type is taken.  Subclasses in Python do not inherit it.
    """
    (<Finalized *>iterator).tp_finalize = <destructor>_dropped
    return iterator


cdef class OneFrame:
    """The frame in the body of a loop, and how it goes back."""

    __reduce_ex__ = Unique.__reduce_ex__  # no copies, no pickles

    def __init__(self, consumer):
        self.consumer = consumer
        self.slot = None

    def give_back(self):
        """Releases the frame that the body is done with.  After an interrupt `_left` does it."""
        try:
            if self.slot is not None and self.slot.use.open:
                self.slot.release()
        except Exception:
            self.slot = None
            raise
        self.slot = None

    def undo(self):
        """After an error in a step of the loop.  If the body did not have its frame yet, the frame comes again."""
        if self.consumer._ring._header.forked:
            return  # the parent has the frame
        if self.slot is not None and self.slot.use.open and not self.slot._seen:
            self.slot._owner._put_back(self.slot.index)
        self.give_back()

    def _left(self, kind):
        """The loop has ended.  The next acquire, or close, raises FrameTorn for a torn frame."""
        if self.slot is None or not self.slot.use.open or self.slot._peer.is_forked():
            return
        try:
            if kind is None or not self.slot._goes_back(kind):
                self.slot.release()
        except FrameTorn as torn:
            self.consumer._untold += torn.seqs


cdef class Frames(OneFrame):
    """The frames of `for slot in consumer`."""

    def __iter__(self):
        return self

    def __next__(self):
        if self.consumer is None:
            raise StopIteration
        try:
            self.give_back()
            self.slot = self.consumer.acquire()
            return self.slot
        except EndOfStream:
            self.consumer = None  # iterators that have ended stay so
            raise StopIteration from None
        except BaseException:
            self.undo()
            self.consumer = None
            raise

    def close(self):
        """Ends the loop, and releases its frame.  May be called again after an interrupt."""
        self._left(None)
        self.consumer = None

    def __repr__(self):
        return "<Frames, ended>" if self.consumer is None else f"<Frames of {self.consumer!r}>"


hears_how_it_is_left(Frames)
