"""A timer as a descriptor.  Python has timerfd since 3.13 only."""
from cpython.exc cimport PyErr_SetFromErrno
from posix.time cimport CLOCK_MONOTONIC, itimerspec
from posix.unistd cimport close

cdef extern from "<sys/timerfd.h>" nogil:
    int TFD_CLOEXEC, TFD_NONBLOCK
    int timerfd_create(int, int)
    int timerfd_settime(int, int, const itimerspec *, itimerspec *)


cdef class Timer:
    """A descriptor that is readable from a time on, if one was set."""

    cdef readonly int fd

    def __cinit__(self):
        """Raises OSError if there is no descriptor left."""
        self.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
        if self.fd < 0:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    def set(self, double seconds):
        """Makes it readable after so many seconds, and not before.  With 0 it is not readable until it is set again."""
        cdef itimerspec when
        when.it_interval.tv_sec = when.it_interval.tv_nsec = 0
        when.it_value.tv_sec = <long>seconds
        when.it_value.tv_nsec = <long>((seconds - <long>seconds) * 1e9)
        if timerfd_settime(self.fd, 0, &when, NULL) < 0:
            PyErr_SetFromErrno(OSError)
