"""The descriptor of a ring's slots, which the processes of the ring hand to each other (core/exchange_*.c).

memory/kinds.py says for how long they are asked.
"""
import os

from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EAGAIN, ENOENT, errno
from libc.stdint cimport int64_t
from posix.unistd cimport close as c_close

from gpuring.native.c cimport *
from gpuring.native.clock cimport deadline_of
from gpuring.native.header cimport Header
from gpuring.native.names cimport refuse

from gpuring.errors import RingError


def offer(Header header not None, int fd):
    """Offers the descriptor of the ring's slots to other processes: the process's watchdog hands a copy to each that may
    write the header.  `fd` stays the caller's.  Does not wait.  The offer ends with this handle.  Raises OSError, for
    example if /dev/shm is full, and leaves nothing then."""
    cdef gr_result result
    header.to_write()
    with nogil:
        result = gr_offer(header.ring, fd)
    if result == GR_FORKED:
        raise RingError("this handle belongs to the parent process: open the ring anew in a forked child")
    if result != GR_OK:
        PyErr_SetFromErrno(OSError)


cdef class Descriptor:
    """A descriptor of a ring's slots.  It is closed at the latest when this object goes, so no interrupt can lose it."""

    def __cinit__(self, int fd, *, bint aside=False):
        self.fd = fd
        self.aside = aside

    def __dealloc__(self):
        self.close()

    cdef int give_up(self) noexcept:
        """Whoever gets it closes it."""
        cdef int fd = self.fd
        self.fd = -1
        return fd

    cpdef close(self):
        """May be called twice."""
        cdef int fd = self.fd
        self.fd = -1
        if fd < 0:
            return
        with nogil:
            if self.aside:
                gr_close_aside(fd)
            else:
                c_close(fd)


def fetch(Header header not None, timeout):
    """The descriptor of the ring's slots, from the first process that hands it over: the ring's creator, or one that has a
    peer in the ring.  It is closed aside as long as nobody says otherwise.

    Waits up to `timeout` seconds (None: for ever) without the GIL, and Ctrl-C interrupts it.  Raises PeerLost at once if
    nobody can be asked, RingTimeout if nobody has answered in time (the message says who was asked), OSError (no
    descriptors left), ValueError, TypeError."""
    cdef gr_fetch fetch
    cdef gpuring_error said
    cdef int64_t deadline = deadline_of(timeout), until
    cdef int fd = -1, error = 0
    header.to_write()
    gr_fetch_begin(&fetch, header.ring)
    try:
        while fd < 0:
            if gr_forked(header.ring):  # a signal handler may have forked
                raise RingError("this handle belongs to the parent process: open the ring anew in a forked child")
            until = min(deadline, gr_now_ns() + 50 * 1000 * 1000)
            with nogil:
                fd = gr_fetch_go_on(&fetch, header.ring, until)
                error = errno
            if fd < 0 and error == ENOENT:
                gm_fail_fetch(&said, &fetch, True, 0)
                refuse(&said)
            if fd < 0 and error != EAGAIN:
                raise OSError(error, os.strerror(error))
            if fd < 0 and gr_now_ns() >= deadline:
                gm_fail_fetch(&said, &fetch, False, timeout)
                refuse(&said)
            PyErr_CheckSignals()
        return Descriptor(fd, aside=True)
    except BaseException:
        if fd >= 0:
            gr_close_aside(fd)
        raise
    finally:
        with nogil:
            gr_fetch_end(&fetch)
