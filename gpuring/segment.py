"""Names in /dev/shm: which segments belong to which ring, and how they come and go.

A ring NAME has the header `/gpuring.NAME` and, in host memory, its slots in `/gpuring.NAME+EPOCH`.
A ring's name has no `+`, so the two cannot be confused, and a restarted ring never meets the slots
of an earlier one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import time
from pathlib import Path

import posix_ipc

from gpuring.errors import RingError, RingExists, RingNotFound

SHM = Path("/dev/shm")
_CREATING_BYTE = 258  # locked while a segment is filled; the header's own lock bytes end at 257
_PATIENCE_S = 2
_PREFIX = "gpuring."
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


def check_name(name: str) -> str:
    """The name itself, if a ring can have it.  Raises TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a ring's name is a str, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a ring: use 1 to 128 letters, digits, '_', '-' or '.', "
            "beginning with a letter, a digit or '_' (so no slash)"
        )
    return name


def header_name(name: str) -> str:
    return f"/{_PREFIX}{name}"


def slots_name(name: str, epoch: bytes) -> str:
    return f"/{_PREFIX}{name}+{epoch.hex()}"


class names_locked:
    """While names come and go: one process of the host at a time, by a lock on /dev/shm itself.

    It keeps a look at a name and its removal together.  Not to be nested.  If somebody keeps it for
    seconds (a stopped process), it is done without: each step is still safe by itself.
    """

    _fd = -1

    def __enter__(self) -> None:
        self._fd = os.open(SHM, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        self.__del__()

    def __del__(self) -> None:  # an interrupt may come before or in __exit__
        if self._fd >= 0:
            fcntl.flock(
                self._fd, fcntl.LOCK_UN
            )  # first: a descriptor that is lost then locks nobody
            fd, self._fd = self._fd, -1
            os.close(fd)


def create(segment: str, mode: int) -> int:
    """A descriptor of a new, empty segment, locked as being filled.  Raises FileExistsError."""
    fd = -1
    try:
        shm = posix_ipc.SharedMemory(segment, posix_ipc.O_CREX, mode=mode)
        fd = int(shm.fd)
        os.fchmod(fd, mode)  # the umask cut the mode
        os.set_inheritable(fd, False)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, _CREATING_BYTE))
        return fd
    except posix_ipc.ExistentialError as error:
        raise FileExistsError(errno.EEXIST, "shared memory exists", segment) from error
    except BaseException:
        if fd >= 0:
            unlink(segment)
            os.close(fd)
        raise


def _flock(kind: int, byte: int) -> bytes:
    """struct flock: l_type, l_whence, l_start, l_len, l_pid."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0)


def open_fd(segment: str) -> int:
    """A descriptor of an existing segment.  Raises FileNotFoundError, PermissionError."""
    try:
        shm = posix_ipc.SharedMemory(segment)
    except posix_ipc.ExistentialError as error:
        raise FileNotFoundError(errno.ENOENT, "no such shared memory", segment) from error
    except posix_ipc.PermissionsError as error:
        raise PermissionError(errno.EACCES, "shared memory is not ours to open", segment) from error
    os.set_inheritable(shm.fd, False)
    return int(shm.fd)


def unlink(segment: str) -> bool:
    """Removes the name; who has it mapped keeps it.  False: there was none."""
    try:
        posix_ipc.unlink_shared_memory(segment)
    except posix_ipc.ExistentialError:
        return False
    except posix_ipc.PermissionsError as error:
        raise PermissionError(errno.EACCES, "shared memory of another user", segment) from error
    return True


def inode(segment: str) -> int:
    """Tells a segment from a later one of the same name; 0 if there is none."""
    try:
        return (SHM / segment[1:]).stat().st_ino
    except FileNotFoundError:
        return 0


def names() -> list[str]:
    """The rings that have a header on this host, sorted."""
    return sorted(
        path.name[len(_PREFIX) :] for path in SHM.glob(f"{_PREFIX}*") if "+" not in path.name
    )


def orphans() -> list[str]:
    """Slot segments whose ring has no header any more: what a creator killed half-way leaves."""
    stray = [path.name for path in SHM.glob(f"{_PREFIX}*+*")]
    rings = set(names())  # looked at second: a header comes before its slots
    return sorted(f"/{n}" for n in stray if n[len(_PREFIX) :].split("+")[0] not in rings)


def unlink_slots(name: str, epoch: bytes | None = None) -> None:
    """Removes a ring's host slots, if it has any: of one epoch, or of all."""
    for path in SHM.glob(slots_name(name, epoch)[1:] if epoch else f"{_PREFIX}{name}+*"):
        unlink(f"/{path.name}")


def no_space(name: str, nbytes: int, what: str) -> RingError:
    stat = os.statvfs(SHM)
    free = stat.f_bavail * stat.f_frsize
    return RingError(
        f"ring {name!r}: no space in {SHM} for {what}: {nbytes / 2**20:.1f} MiB are needed, "
        f"{free / 2**20:.1f} MiB are free. Use fewer or smaller slots, remove dead rings "
        "(gpuring clean), or enlarge it (docker run --shm-size=…)"
    )


def not_found(name: str) -> RingNotFound:
    known = names()
    listed = f"; there are: {', '.join(known)}" if known else "; there is none at all"
    return RingNotFound(
        f"there is no ring {name!r} on this host{listed}. Processes see each other's rings only if "
        f"they share {SHM} (in containers: --ipc)"
    )


def exists(name: str, detail: str) -> RingExists:
    return RingExists(
        f"a ring {name!r} exists: {detail}. Attach to it, choose another name, remove it with "
        "`gpuring clean` if its processes are dead, or pass replace=True"
    )


def in_use(segment: str) -> bool:
    """Whether a living process holds a lock on the segment, if only to fill it."""
    try:
        fd = open_fd(segment)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
