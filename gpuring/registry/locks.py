"""Bytes of a ring's files that processes hold locked (the bytes of peers: core/lock.c).

The kernel drops a lock when its holder dies, however that dies.  A lock belongs to a descriptor,
and ends with it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

CREATOR_BYTE = 257
"""The byte of a header that its creator holds locked."""
NAME_BYTE = 260
"""The byte that is locked.  In a header a process locks it while it takes the name away or looks
whether it may.  In slots their maker locks it until their ring has its name."""
SETTLING_BYTE = 262
"""The byte of a header that a process locks while it counts what earlier rings owe (earlier.py)."""


def _flock(kind: int, byte: int, nbytes: int = 1) -> bytes:
    """struct flock: l_type, l_whence, l_start, l_len, l_pid."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, nbytes, 0)


def lock_name(fd: int, patience_s: float = 0.0) -> bool:
    """Locks NAME_BYTE of the file until the descriptor is closed.  False if another has locked it.

    Another process has it for microseconds only, unless it was stopped.
    """
    return lock(fd, NAME_BYTE, patience_s)


def lock(fd: int, byte: int, patience_s: float) -> bool:
    """lock_name for another byte."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, byte))
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(0.001)


def lock_creator(fd: int) -> bool:
    """Locks CREATOR_BYTE of a header until the descriptor is closed, as its creator has done who is
    dead.  False if another process has locked it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, CREATOR_BYTE))
    except BlockingIOError:
        return False
    return True


def unlock_name(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, NAME_BYTE))


def name_is_locked(fd: int) -> bool:
    """Whether another process is about to take the name away, or has not given it yet."""
    return _is_locked(fd, _flock(fcntl.F_RDLCK, NAME_BYTE))


def in_use(fd: int) -> bool:
    """Whether a living process has any lock on the file other than that of its name."""
    return _is_locked(fd, _flock(fcntl.F_WRLCK, 0, NAME_BYTE))


def _is_locked(fd: int, like: bytes) -> bool:
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, like)
    return bool(struct.unpack_from("h", found)[0] != fcntl.F_UNLCK)
