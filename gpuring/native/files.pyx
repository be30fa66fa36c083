"""Descriptors that no interrupt can lose: of a ring's file (registry/segment.py), and of a directory in which a name is
awaited (registry/new_names.py).  And files that are mapped without a descriptor."""
import os
import weakref

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno, PyErr_SetFromErrnoWithFilenameObject
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint32_t
from posix.fcntl cimport open as c_open
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close as c_close, read as c_read

cdef extern from "sys/inotify.h" nogil:
    int inotify_init1(int flags)
    int inotify_add_watch(int fd, const char *path, uint32_t mask)
    int IN_NONBLOCK, IN_CLOEXEC, IN_CREATE, IN_MOVED_TO, IN_ONLYDIR


cdef extern from *:
    """
    #include <fcntl.h>
    #include <stdio.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    /* The C library of old systems has no renameat2, and the kernel has had it since 3.15. */
    static int take_name(const char *file, const char *name, const char *keep) {
        if (syscall(SYS_renameat2, AT_FDCWD, file, AT_FDCWD, name, 2u /* RENAME_EXCHANGE */)) return -1;
        return rename(file, keep);
    }
    """
    int take_name(const char *, const char *, const char *)


_open = weakref.WeakSet()


cdef class File:
    """An open file.  It is closed at the latest when this object goes, so no interrupt can lose the descriptor.  A forked child
    does not have it, and so no lock of its parent's."""

    cdef readonly int fd
    cdef object __weakref__

    def __cinit__(self, path, int flags, int mode=0o600):
        """Opens a file as os.open does.  No program that is started inherits it.  Raises OSError."""
        cdef bytes encoded = os.fsencode(path)
        self.fd = -1
        while True:
            self.fd = c_open(encoded, flags | os.O_CLOEXEC, mode)
            if self.fd >= 0:
                _open.add(self)
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


def exchange(path, name, keep):
    """The file at `path` gets the name of another file in one step, and that one gets the name `keep`.  No interrupt comes in
    between.  Raises OSError: FileNotFoundError if one of the two files is not there."""
    cdef bytes mine = os.fsencode(path), its = os.fsencode(name), kept = os.fsencode(keep)
    if take_name(mine, its, kept):
        PyErr_SetFromErrnoWithFilenameObject(OSError, path)


def _close_all():
    for file in list(_open):
        file.close()


os.register_at_fork(after_in_child=_close_all)


cdef class MappedFile:
    """The memory of a file, to read and to write.  It is unmapped when neither this object nor a view of it is left.

    Python's mmap keeps a copy of the descriptor.  Its number may be that of a file of the program, if the program has closed all
    its descriptors, as a daemon does."""

    cdef void *_start
    cdef Py_ssize_t _nbytes

    def __cinit__(self, int fd, Py_ssize_t nbytes):
        """Maps the first `nbytes` of the file.  Raises ValueError if it is shorter, OSError."""
        cdef struct_stat now
        self._start = MAP_FAILED
        self._nbytes = nbytes
        if fstat(fd, &now) != 0:
            PyErr_SetFromErrno(OSError)
        if now.st_size < nbytes:
            raise ValueError(f"the file has {now.st_size} bytes, not {nbytes}")
        self._start = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if self._start == MAP_FAILED:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        if self._start != MAP_FAILED:
            munmap(self._start, self._nbytes)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._start, self._nbytes, 0, flags)


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

    def drain(self):
        """Takes what has come so far, at most as much as the kernel keeps."""
        cdef char events[16384]
        cdef int k
        for k in range(64):
            if c_read(self.fd, events, sizeof(events)) <= 0:
                break
