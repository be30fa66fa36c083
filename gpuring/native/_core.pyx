# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
# cython: auto_pickle=False
"""Thin binding of core/ and device/: one Python call is one whole transition of the C library.

Only three things are decided here: when the GIL is released (a first try that neither waits nor enqueues keeps it), when
signals are handled (between two slices of a wait), and what a result is in Python.  Refusals come back as negative results,
for which the callers have the words.  Refusals of the driver are raised as DeviceError.

The C library is linked into this module, because it has state of the process.  So this is one module in several files: the
header, the device, peers, and waits for several of them are in those that it includes.  verbs.pyx has the verbs as users call
them, on the slot objects of slots.pyx.  _snapshot.pyx reads a header for people, and _dlpack.pyx has the capsules of DLPack.
"""
import os

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals, PyErr_Occurred, PyErr_SetFromErrno, PyErr_SetFromErrnoWithFilenameObject
from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_INCREF
from libc.errno cimport EAGAIN, EINTR, ENOENT, ESTALE, errno
from libc.stdint cimport INT64_MAX, int64_t, intptr_t, uint8_t, uint32_t, uint64_t
from libc.math cimport INFINITY
from libc.string cimport memcpy, memset
from posix.fcntl cimport open as c_open
from posix.unistd cimport close as c_close, read as c_read, usleep

from gpuring import arguments
from gpuring.native import device_errors
from gpuring.errors import PeerLost, RingError, RingTimeout

cdef extern from "sys/inotify.h" nogil:
    int inotify_init1(int flags)
    int inotify_add_watch(int fd, const char *path, uint32_t mask)
    int IN_NONBLOCK, IN_CLOEXEC, IN_CREATE, IN_MOVED_TO, IN_ONLYDIR

# What a verb returns when it is refused (the negative of the C result).
BLOCKED = -<int>GR_BLOCKED
CLOSED = -<int>GR_CLOSED
ENDED = -<int>GR_ENDED
PEER_LOST = -<int>GR_PEER_LOST
REAPED = -<int>GR_REAPED
FORKED = -<int>GR_FORKED
DAMAGED = -<int>GR_DAMAGED
FULL_PEERS = -<int>GR_FULL_PEERS
FULL_SUBSCRIPTIONS = -<int>GR_FULL_SUBS
MODE_MISMATCH = -<int>GR_MODE_MISMATCH
LOCK_TIMEOUT = -<int>GR_LOCK_TIMEOUT
TORN = -<int>GR_TORN_BEHIND  # frames that this consumer has released turned out torn: Peer.take_torn() names them

# Why a verb is blocked (Peer.culprit[0]).
BY_PRODUCER = <int>GR_BY_PRODUCER
BY_HOLDER = <int>GR_BY_HOLDER
BY_SUBSCRIPTION = <int>GR_BY_SUBSCRIPTION
BY_NO_FRAME = <int>GR_BY_NO_FRAME
BY_FENCE = <int>GR_BY_FENCE

VERSION = GR_VERSION_
MAX_SLOTS = GR_MAX_SLOTS_
MAX_PEERS = GR_MAX_PEERS_
MAX_SUBSCRIPTIONS = GR_MAX_SUBSCRIPTIONS_
MAX_META_NBYTES = GR_MAX_META_
MAX_NDIM = GR_MAX_NDIM
MAX_SPEC_NBYTES = GR_MAX_SPEC
MAX_SLOT_NBYTES = GR_MAX_SLOT_NBYTES
MAX_NAME_NBYTES = 8 * GR_NAME_WORDS
MAX_FAR_NBYTES = 8 * GR_FAR_WORDS
MAX_WAITED = <int>GR_MAX_WAITED

MEMORY_KINDS = ("host", "ipc", "vmm", "pool")
SYNC_KINDS = ("host", "event", "timeline")
GATES = ("stream", "host")

class Damaged(Exception):
    """A header or a frame's record is not one of this build.  The text says what was found."""


class Retired(Damaged):
    """The header was one of this build and was removed.  Its name is gone, or about to go."""


def now_ns() -> int:
    """CLOCK_MONOTONIC in nanoseconds, which is the clock of every time in a header."""
    return gr_now_ns()


def layout_fields():
    """(table, field, offset, nbytes) of every field of the header, for the layout test."""
    fields, k = [], 0
    while gr_fields[k].table != NULL:
        fields.append((gr_fields[k].table.decode(), gr_fields[k].name.decode(),
                       gr_fields[k].offset, gr_fields[k].nbytes))
        k += 1
    return fields


cdef class File:
    """An open file.  It is closed at the latest when this object goes, so no interrupt can lose the descriptor."""

    cdef readonly int fd

    def __cinit__(self, path, int flags, int mode=0o600):
        """Opens a file as os.open does.  No program that is started inherits it.  Raises OSError."""
        cdef bytes encoded = os.fsencode(path)
        self.fd = -1
        while True:
            self.fd = c_open(encoded, flags | os.O_CLOEXEC, mode)
            if self.fd >= 0:
                return
            if errno != EINTR:
                PyErr_SetFromErrnoWithFilenameObject(OSError, path)
            PyErr_CheckSignals()

    def __dealloc__(self):
        self.close()

    cpdef close(self):
        """May be called twice."""
        if self.fd >= 0:
            c_close(self.fd)
        self.fd = -1

    def fileno(self):
        return self.fd

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


cdef class NameWatch:
    """A descriptor (inotify) that becomes readable when a name comes into a directory, and stays so until `drain`."""

    cdef readonly int fd

    def __cinit__(self, path):
        """Raises OSError, for example if this user has as many watches as he may (fs.inotify in /proc/sys)."""
        cdef bytes encoded = os.fsencode(path)
        self.fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
        if self.fd < 0 or inotify_add_watch(self.fd, encoded, IN_CREATE | IN_MOVED_TO | IN_ONLYDIR) < 0:
            PyErr_SetFromErrnoWithFilenameObject(OSError, path)

    def __dealloc__(self):
        if self.fd >= 0:
            c_close(self.fd)

    def fileno(self):
        return self.fd

    def drain(self):
        """Takes what has come so far, at most as much as the kernel keeps."""
        cdef char events[16384]
        cdef int k
        for k in range(64):
            if c_read(self.fd, events, sizeof(events)) <= 0:
                break


include "_core_header.pxi"
include "_core_device.pxi"
include "_core_peer.pxi"
include "_core_waits.pxi"
