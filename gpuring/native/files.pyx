"""Descriptors that no interrupt can lose: of a ring's file (registry/segment.py), and of a directory in which a name is
awaited (registry/new_names.py).  And files that are mapped without a descriptor."""
import os
import weakref

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrnoWithFilenameObject
from libc.errno cimport EINTR, errno
from posix.fcntl cimport open as c_open
from posix.mman cimport munmap
from posix.unistd cimport close as c_close

from gpuring.native.c cimport gh_drain_names, gh_watch_names

_open = weakref.WeakSet()


cdef class File:
    """An open file.  It is closed at the latest when this object goes, so no interrupt can lose the descriptor.  A forked child
    does not have it, and so no lock of its parent's."""

    def __cinit__(self, path, int flags, int mode=0o600):
        """Opens a file as os.open does.  No program that is started inherits it.  Raises OSError."""
        cdef bytes encoded
        self.fd = -1
        if path is None:  # see file_of
            return
        encoded = os.fsencode(path)
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


cdef File file_of(int fd):
    """The same for an open descriptor, which is closed if this raises."""
    cdef File file
    try:
        file = File.__new__(File, None, 0)
    except BaseException:
        c_close(fd)
        raise
    file.fd = fd
    _open.add(file)
    return file


def _close_all():
    for file in list(_open):
        file.close()


os.register_at_fork(after_in_child=_close_all)


cdef class MappedFile:
    """The memory of a file, to read and to write.  It is unmapped when neither this object nor a view of it is left.

    Python's mmap keeps a copy of the descriptor.  Its number may be that of a file of the program, if the program has closed all
    its descriptors, as a daemon does."""

    def __dealloc__(self):
        if self.start != NULL:
            munmap(self.start, self.nbytes)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.start, self.nbytes, 0, flags)


cdef MappedFile mapping_of(void *start, Py_ssize_t nbytes):
    """Takes over what is mapped, which is unmapped if this raises."""
    cdef MappedFile mapped
    try:
        mapped = MappedFile.__new__(MappedFile)
    except BaseException:
        munmap(start, nbytes)
        raise
    mapped.start, mapped.nbytes = start, nbytes
    return mapped


cdef class NameWatch:
    """A descriptor (inotify) that becomes readable when a name comes into a directory, and stays so until `drain`."""

    def __cinit__(self, path):
        """Raises OSError, for example if this user has as many watches as he may (fs.inotify in /proc/sys)."""
        cdef bytes encoded = os.fsencode(path)
        self.fd = gh_watch_names(encoded)
        if self.fd < 0:
            PyErr_SetFromErrnoWithFilenameObject(OSError, path)

    def __dealloc__(self):
        if self.fd >= 0:
            c_close(self.fd)

    def drain(self):
        """Takes what has come so far, at most as much as the kernel keeps."""
        gh_drain_names(self.fd)
