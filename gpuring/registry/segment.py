"""Names in /dev/shm: which files belong to which ring, and how their names come and go.

A ring NAME has the header `/gpuring.NAME` and, in host memory, its slots in `/gpuring.NAME+EPOCH`.
A ring's name has no `+`, so the two cannot be confused, and a restarted ring never meets the slots
of an earlier one.  A header that is about to take a ring's name, or has lost it and is still needed
(native/host/debts.h), is `/gpuring.NAME+RANDOM.header`.  If a ring's slots are mapped by a
descriptor, the processes that hand it on have sockets in the directory `/gpuring+EPOCH`
(sockets.py).

Anybody may put anything under any name there.  So we look at what has a name before we open it
(`look`), and we remove only files of our own.  docs/decisions/0012 has the rest.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from pathlib import Path

import posix_ipc

from gpuring import native
from gpuring.native import File, Missing, Named

SHM = Path("/dev/shm")
_PREFIX = "gpuring."
_ASIDE = ".header"
_BEHIND = re.compile(rf"[0-9a-f]{{32}}({re.escape(_ASIDE)})?")
ANSWERS = re.compile(r"(.+)\.[0-9a-f]{16}")
"""The name of a ring of answers: that of its service, and the number of the client."""


class Dead(Missing):
    """There is a ring of that name, and it does not live.  The cause is the error for that."""


def check_name(name: str) -> str:
    """Returns the name if a ring can have it.  Raises TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a ring's name must be a str, not {type(name).__name__}")
    native.check_name(name)
    return name


def header_name(name: str) -> str:
    return native.header_path(name).removeprefix(str(SHM))


def slots_name(name: str, epoch: bytes) -> str:
    return native.slots_path(name, epoch).removeprefix(str(SHM))


def is_aside(segment: str) -> bool:
    return segment.endswith(_ASIDE)


def path_of(segment: str) -> str:
    return f"{SHM}{segment}"


# ---- what is there -----------------------------------------------------------------------------


def listing() -> dict[str, list[str]]:
    """The segments of slots, and the headers that do not have their ring's name, by the name of
    their ring, also if that has no header.  Raises PermissionError, as names() does."""
    return _listing()[1]


def asides(name: str) -> list[str]:
    """The headers that do not have this name and belong to it.  What comes later is not there."""
    return [each for each in listing().get(name, ()) if is_aside(each)]


def names() -> list[str]:
    """The names of this host under which a header could be, sorted.  Raises PermissionError if
    the directory may not be listed."""
    return sorted(_listing()[0])


def _listing() -> tuple[set[str], dict[str, list[str]]]:
    headers: set[str] = set()
    slots: dict[str, list[str]] = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir(SHM):  # noqa: PTH208 - there may be many thousand names
            if entry.startswith(_PREFIX):
                name, plus, behind = entry[len(_PREFIX) :].partition("+")
                if native.is_name(name) and (not plus or _BEHIND.fullmatch(behind)):
                    of = slots.setdefault(name, [])
                    if plus:
                        of.append(f"/{entry}")
                    else:
                        headers.add(name)
    return headers, slots


def look(segment: str) -> Named:
    """The file that has the name now, looked at and not opened.  Raises OSError."""
    return Named(path_of(segment))


def owner(segment: str) -> int:
    """The user id of the file that has the name.  -1 if none has."""
    try:
        return os.lstat(path_of(segment)).st_uid
    except FileNotFoundError:
        return -1


def mode(segment: str) -> int:
    """The permission bits of the file that has the name.  -1 if none has."""
    try:
        return stat.S_IMODE(os.lstat(path_of(segment)).st_mode)
    except FileNotFoundError:
        return -1


def is_replaced(name: str, fd: int) -> bool:
    """Whether another file has the name of the ring whose header is open as `fd`."""
    path = path_of(header_name(name))
    with contextlib.suppress(OSError):  # -1, or no file has the name, or it may not be looked at
        return os.lstat(path).st_ino != os.fstat(fd).st_ino
    return False


# ---- how names come ----------------------------------------------------------------------------


def unnamed(mode: int) -> File:
    """A new, empty file that has no name yet.  If its maker dies, nothing is left.

    Raises RingError if the directory cannot hold such files, OSError.
    """
    return native.unnamed_file(mode)


# ---- how names go ------------------------------------------------------------------------------


def unlink(segment: str) -> bool:
    """Removes the name.  Processes that have the file mapped keep it.  False if there was none."""
    try:
        posix_ipc.unlink_shared_memory(segment)
    except posix_ipc.ExistentialError:
        return False
    except posix_ipc.PermissionsError as error:
        raise PermissionError(errno.EACCES, "shared memory of another user", segment) from error
    except OSError as error:  # posix_ipc names no file
        raise OSError(error.errno, os.strerror(error.errno or 0), segment) from error
    return True


def remove_slots(slots: str) -> bool:
    """Removes a segment of slots if it is a file of this process's user.

    The name of such a segment is never used again.  False if it is not there.
    """
    return native.remove_file(path_of(slots), os.geteuid())


# ---- what to say -------------------------------------------------------------------------------


def as_user(uid: int, command: str) -> str:
    """What root types to run a command of gpuring as another user."""
    return f"`sudo -u '#{uid}' gpuring {command}`"
