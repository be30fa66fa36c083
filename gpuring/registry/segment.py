"""Names in /dev/shm: which files belong to which ring, and how their names come and go.

A ring NAME has the header `/gpuring.NAME` and, in host memory, its slots in `/gpuring.NAME+EPOCH`.
A ring's name has no `+`, so the two cannot be confused, and a restarted ring never meets the slots
of an earlier one.  If its slots are mapped by a descriptor, the processes that hand it on have
sockets in the directory `/gpuring+EPOCH` (core/exchange_socket.c).

Anybody may put anything under any name there.  So we look at what has a name before we open it
(`Named`), and we remove only files of our own.  docs/decisions/0012 has the rest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import resource
import socket
import stat
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

import posix_ipc

from gpuring.errors import RingError, RingIncompatible, RingNotFound
from gpuring.native import File

if TYPE_CHECKING:
    from typing_extensions import Self

SHM = Path("/dev/shm")
CREATOR_BYTE = 257
"""The byte of a header that its creator holds locked."""
NAME_BYTE = 260
"""The byte that is locked.  In a header a process locks it while it takes the name away or looks
whether it may.  In slots their maker locks it until their ring has its name."""
_PREFIX = "gpuring."
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_SEGMENT = re.compile(rf"gpuring\.({_NAME.pattern})(\+[0-9a-f]{{32}})?")
ANSWERS = re.compile(r"(.+)\.[0-9a-f]{16}")
"""The name of a ring of answers: that of its service, and the number of the client."""
_SOCKETS = re.compile(r"gpuring\+[0-9a-f]{32}")
_MAX_LISTED = 10
"""How many names a message lists."""


class Missing(Exception):
    """There is no ring of that name just now, and waiting may help.  The text may say more."""


def check_name(name: str) -> str:
    """Returns the name if a ring can have it.  Raises TypeError, ValueError."""
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


def path_of(segment: str) -> str:
    return f"{SHM}{segment}"


# ---- what is there -----------------------------------------------------------------------------


def listing() -> dict[str, list[str]]:
    """The segments of slots by the name of their ring, also if that has no header."""
    return _listing()[1]


def names() -> list[str]:
    """The names of this host under which a header could be, sorted."""
    return sorted(_listing()[0])


def _listing() -> tuple[set[str], dict[str, list[str]]]:
    headers: set[str] = set()
    slots: dict[str, list[str]] = {}
    with contextlib.suppress(FileNotFoundError, PermissionError):
        for entry in os.listdir(SHM):  # noqa: PTH208 - there may be many thousand names
            if found := _SEGMENT.fullmatch(entry):
                of = slots.setdefault(found[1], [])
                if found[2]:
                    of.append(f"/{entry}")
                else:
                    headers.add(found[1])
    return headers, slots


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Named:
    """The file that has a name now.  It stays this file, whatever becomes of the name.

    The file itself is not opened (O_PATH): no fifo blocks, no device starts, no link is followed.
    Raises OSError.
    """

    def __init__(self, segment: str) -> None:
        self.path = path_of(segment)
        self._place = File(self.path, os.O_PATH | os.O_NOFOLLOW)
        self.stat = os.fstat(self._place.fd)

    @property
    def odd(self) -> str:
        """What it is if it is not a file with this name alone.  Empty if it is one."""
        if self.stat.st_nlink > 1 and stat.S_ISREG(self.stat.st_mode):
            return f"a file with {self.stat.st_nlink} names"
        return _KINDS.get(stat.S_IFMT(self.stat.st_mode), "")

    @property
    def is_ours(self) -> bool:
        """Whether it is a file of this process's own user.  Root, too, leaves those of others
        alone."""
        return stat.S_ISREG(self.stat.st_mode) and self.stat.st_uid == os.geteuid()

    @property
    def owner(self) -> str:
        """The user id and the mode, in words."""
        return f"user {self.stat.st_uid} (mode {stat.S_IMODE(self.stat.st_mode):04o})"

    @property
    def has_name(self) -> bool:
        """Whether the name still means this file."""
        return has_name(self.path, self.stat)

    def open(self, flags: int = os.O_RDONLY) -> File:
        """Raises PermissionError, whose text is a whole sentence, and other kinds of OSError."""
        try:
            return File(f"/proc/self/fd/{self._place.fd}", flags | os.O_NONBLOCK)
        except PermissionError:
            do = "read" if flags & os.O_ACCMODE == os.O_RDONLY else "read and write"
            raise PermissionError(
                f"{self.path} belongs to {self.owner}. This process, of user {os.geteuid()}, may "
                f"not {do} it. The user who creates a ring says with mode= who may: mode=0o660 "
                "lets that user's group in, and mode=0o666 everybody"
            ) from None
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._place.close()


def owner(segment: str) -> int:
    """The user id of the file that has the name.  -1 if none has."""
    try:
        return os.stat(path_of(segment), follow_symlinks=False).st_uid  # noqa: PTH116
    except FileNotFoundError:
        return -1


def has_name(path: str, file: os.stat_result) -> bool:
    """Whether `path` means this file.  The caller has it open, so its inode is not a later
    one's."""
    try:
        now = os.stat(path, follow_symlinks=False)  # noqa: PTH116
    except FileNotFoundError:
        return False
    return (now.st_dev, now.st_ino) == (file.st_dev, file.st_ino)


# ---- how names come ----------------------------------------------------------------------------


def unnamed(mode: int) -> File:
    """A new, empty file that has no name yet.  If its maker dies, nothing is left.

    Raises RingError if the directory cannot hold such files, OSError.
    """
    try:
        file = File(SHM, os.O_TMPFILE | os.O_RDWR, mode)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
        raise RingError(
            f"{SHM} cannot hold files without a name (O_TMPFILE); rings need a tmpfs there"
        ) from error
    os.fchmod(file.fd, mode)  # because the umask has restricted the mode
    return file


def give_name(file: File, segment: str) -> None:
    """Gives this name to the file.  Raises FileExistsError, OSError."""
    # With absolute paths linkat() looks at neither directory.  But without them CPython calls
    # link(), which does not follow the link that /proc has here.
    at = {"src_dir_fd": file.fd, "dst_dir_fd": file.fd}
    os.link(f"/proc/self/fd/{file.fd}", path_of(segment), **at, follow_symlinks=True)


# ---- how names go ------------------------------------------------------------------------------


def unlink(segment: str) -> bool:
    """Removes the name.  Processes that have the file mapped keep it.  False if there was none."""
    try:
        posix_ipc.unlink_shared_memory(segment)
    except posix_ipc.ExistentialError:
        return False
    except posix_ipc.PermissionsError as error:
        raise PermissionError(errno.EACCES, "shared memory of another user", segment) from error
    return True


def remove_slots(slots: str, owner: int | None = None) -> bool:
    """Removes a segment of slots if it is a file of `owner` (None: of this process's user).

    The name of such a segment is never used again.  False if it is not there.
    """
    uid = os.geteuid() if owner is None else owner
    with contextlib.suppress(FileNotFoundError, PermissionError):
        found = os.stat(path_of(slots), follow_symlinks=False)  # noqa: PTH116
        return stat.S_ISREG(found.st_mode) and found.st_uid == uid and unlink(slots)
    return False


def remove_stale_sockets(epoch: bytes | None = None) -> list[str]:
    """Removes the sockets of a ring (None: of any) at which nobody listens, which killed processes
    have left.  Returns the names of the directories that are gone with the last one.

    It looks only into directories of this process's own user.
    """
    if epoch is not None:
        wanted = [f"gpuring+{epoch.hex()}"]
    else:
        wanted = []
        with contextlib.suppress(FileNotFoundError, PermissionError):
            wanted = [each for each in os.listdir(SHM) if _SOCKETS.fullmatch(each)]  # noqa: PTH208
    return [each for each in wanted if _remove_stale_sockets(path_of(f"/{each}"))]


def _remove_stale_sockets(directory: str) -> bool:
    """False: some of them are in use, or the directory is not there, or is not ours."""
    try:
        place = File(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    with place:
        if os.fstat(place.fd).st_uid != os.geteuid():
            return False
        for each in os.listdir(place.fd):  # noqa: PTH208 - a descriptor
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(each, dir_fd=place.fd, follow_symlinks=False)
                if stat.S_ISSOCK(found.st_mode) and _is_stale(f"/proc/self/fd/{place.fd}/{each}"):
                    os.unlink(each, dir_fd=place.fd)
        try:
            os.rmdir(directory)  # noqa: PTH106
        except OSError:
            return False
    return True


def _is_stale(path: str) -> bool:
    """Whether nobody listens at a socket.  This holds in any namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as ours:
        try:
            ours.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:  # it is gone, or busy, or no socket
            pass
    return False


def _flock(kind: int, byte: int, nbytes: int = 1) -> bytes:
    """struct flock: l_type, l_whence, l_start, l_len, l_pid."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, nbytes, 0)


def lock_name(fd: int, patience_s: float = 0.0) -> bool:
    """Locks NAME_BYTE of the file until the descriptor is closed.  False if another has locked it.

    Another process has it for microseconds only, unless it was stopped.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, NAME_BYTE))
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


def is_left(slots: str) -> bool:
    """Whether a segment of slots is ours, and nobody is making it just now.

    If so, its ring has its name by now or will never have it, so a look at the name tells which.
    """
    try:
        with Named(slots) as named:
            if not named.is_ours:
                return False
            with named.open() as file:
                return not name_is_locked(file.fd)
    except OSError:  # it went away, or cannot be opened
        return False


# ---- what to say -------------------------------------------------------------------------------


def not_found(name: str, detail: str = "") -> RingNotFound:
    if detail:
        return RingNotFound(
            f"ring {name!r} is not there now: {detail}. If nobody is removing or replacing it, "
            "`gpuring clean` takes away what is left, once its processes are gone"
        )
    there = set(names())
    known = sorted(
        each for each in there if not ((of := ANSWERS.fullmatch(each)) and of[1] in there)
    )
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    listed = f"{', '.join(known[:_MAX_LISTED])}{more}" if known else "no rings"
    return RingNotFound(
        f"No ring or service named {name!r}: this host has {listed}. Processes see each other's "
        f"rings only if they share {SHM} (in containers: --ipc)"
    )


def no_ring(named: Named) -> RingIncompatible:
    """The error for what has a ring's name and is `odd`."""
    return RingIncompatible(f"{named.path} is {named.odd}, and no ring")


def refused(name: str, error: OSError, what: str, nbytes: int) -> RingError | None:
    """The error for memory or room that the system did not give.  None for other kinds of error."""
    begins = f"ring {name!r}: {what}, {_amount(nbytes)},"
    if error.errno == errno.EROFS:
        return RingError(f"ring {name!r}: {SHM} is read-only here, and who is in a ring writes")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if error.errno == errno.EFBIG and limit != resource.RLIM_INFINITY:
        return RingError(
            f"{begins} cannot be made: files of this process have at most {_amount(limit)} "
            "(RLIMIT_FSIZE). Raise it with ulimit -f, or LimitFSIZE= of the service"
        )
    if error.errno == errno.ENOMEM:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        why = "there is no memory left"
        if limit != resource.RLIM_INFINITY:
            why = (
                f"this process may have {_amount(limit)} of address space (RLIMIT_AS). "
                "Raise it with ulimit -v, or LimitAS= of the service"
            )
        return RingError(f"{begins} cannot be mapped: {why}")
    if error.errno in (errno.ENOSPC, errno.EFBIG):
        return _no_space(name, nbytes, what)
    return None


def _amount(nbytes: float) -> str:
    """A size in the largest unit that is not larger than it."""
    for unit, most in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= most:
            return f"{nbytes / most:.1f} {unit}"
    return f"{nbytes:.0f} bytes"


def _no_space(name: str, nbytes: int, what: str) -> RingError:
    room = os.statvfs(SHM)
    free = room.f_bavail * room.f_frsize
    if room.f_files and not room.f_favail:
        return RingError(
            f"ring {name!r}: no space in {SHM} for {what}: it has as many files as it can hold. "
            "Remove dead rings (gpuring clean) or other files there, or mount it with more "
            "(nr_inodes=)"
        )
    return RingError(
        f"ring {name!r}: no space in {SHM} for {what}: {_amount(nbytes)} are needed, "
        f"{_amount(free)} are free. Use fewer or smaller slots, remove dead rings "
        "(gpuring clean), or enlarge it (docker run --shm-size=…)"
    )
