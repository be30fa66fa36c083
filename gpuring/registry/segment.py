"""Names in /dev/shm: which files belong to which ring, and how their names come and go.

A ring NAME has the header `/gpuring.NAME` and, in host memory, its slots in `/gpuring.NAME+EPOCH`.
A ring's name has no `+`, so the two cannot be confused, and a restarted ring never meets the slots
of an earlier one.  A header that is about to take a ring's name, or has lost it and is still needed
(earlier.py), is `/gpuring.NAME+RANDOM.header`.  If a ring's slots are mapped by a descriptor, the
processes that hand it on have sockets in the directory `/gpuring+EPOCH` (sockets.py).

Anybody may put anything under any name there.  So we look at what has a name before we open it
(`look`), and we remove only files of our own.  docs/decisions/0012 has the rest.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import posix_ipc

from gpuring import native
from gpuring.errors import RingError, RingIncompatible, RingNotFound
from gpuring.native import File, Missing, Named
from gpuring.registry import locks

SHM = Path("/dev/shm")
_PREFIX = "gpuring."
_ASIDE = ".header"
_BEHIND = re.compile(rf"[0-9a-f]{{32}}({re.escape(_ASIDE)})?")
ANSWERS = re.compile(r"(.+)\.[0-9a-f]{16}")
"""The name of a ring of answers: that of its service, and the number of the client."""
_MAX_LISTED = 10
"""How many names a message lists."""


class Dead(Missing):
    """There is a ring of that name, and it does not live.  The cause is the error for that."""


def check_name(name: str) -> str:
    """Returns the name if a ring can have it.  Raises TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a ring's name is a str, not {type(name).__name__}")
    native.check_name(name)
    return name


def header_name(name: str) -> str:
    return native.header_path(name).removeprefix(str(SHM))


def slots_name(name: str, epoch: bytes) -> str:
    return native.slots_path(name, epoch).removeprefix(str(SHM))


def aside_name(name: str, number: bytes) -> str:
    """Of a header that does not have its ring's name.  The number is a new one, so that nobody can
    take the name before."""
    return slots_name(name, number) + _ASIDE


def is_aside(segment: str) -> bool:
    return segment.endswith(_ASIDE)


def path_of(segment: str) -> str:
    return f"{SHM}{segment}"


# ---- what is there -----------------------------------------------------------------------------


def listing() -> dict[str, list[str]]:
    """The segments of slots, and the headers that do not have their ring's name, by the name of
    their ring, also if that has no header."""
    return _listing()[1]


def asides(name: str) -> list[str]:
    """The headers that do not have this name and belong to it.  What comes later is not there."""
    return [each for each in listing().get(name, ()) if is_aside(each)]


def names() -> list[str]:
    """The names of this host under which a header could be, sorted."""
    return sorted(_listing()[0])


def _listing() -> tuple[set[str], dict[str, list[str]]]:
    headers: set[str] = set()
    slots: dict[str, list[str]] = {}
    with contextlib.suppress(FileNotFoundError, PermissionError):
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
        return os.stat(path_of(segment), follow_symlinks=False).st_uid  # noqa: PTH116
    except FileNotFoundError:
        return -1


def has_name(path: str, file: os.stat_result) -> bool:
    """Whether `path` means this file.  The caller has it open, so its inode is not a later
    one's."""
    return native.has_name(path, file.st_dev, file.st_ino)


def is_replaced(name: str, fd: int) -> bool:
    """Whether another file has the name of the ring whose header is open as `fd`."""
    path = path_of(header_name(name))
    with contextlib.suppress(OSError):  # -1, or nothing has the name, or nobody may look
        return os.stat(path, follow_symlinks=False).st_ino != os.fstat(fd).st_ino  # noqa: PTH116
    return False


# ---- how names come ----------------------------------------------------------------------------


def unnamed(mode: int) -> File:
    """A new, empty file that has no name yet.  If its maker dies, nothing is left.

    Raises RingError if the directory cannot hold such files, OSError.
    """
    return native.unnamed_file(mode)


def give_name(file: File, segment: str) -> None:
    """Gives this name to the file.  Raises FileExistsError, OSError."""
    native.give_name(file.fd, path_of(segment))


@contextlib.contextmanager
def spare_name(name: str, header: File) -> Iterator[str]:
    """A name for the header of a ring, which `rename` makes its own.  Raises OSError.  A file that
    has lost its only name can get none any more, so it has this one until it has its own.

    It is locked like that of slots that somebody is making.  If who made it is killed, clean()
    finds it.
    """
    spare, heir = aside_name(name, secrets.token_bytes(16)), os.fstat(header.fd)
    locks.lock_name(header.fd)
    try:
        give_name(header, spare)
        yield spare
    finally:
        if has_name(path_of(spare), heir):  # it was not renamed
            unlink(spare)
        # The name is another's by now.  ValueError: after an interrupt the file may be closed.
        with contextlib.suppress(OSError, ValueError):
            locks.unlock_name(header.fd)


def rename(spare: str, name: str, keep: bool = False) -> bool:
    """Makes the header with this spare name the ring's in one step, whatever has its name.  `keep`:
    that one gets the spare name, unless the system cannot exchange names.  False if none has it any
    more.  Raises RingError if somebody has tidied the spare name away."""
    spare, name = path_of(spare), path_of(header_name(name))
    try:
        if not (keep and _exchange(spare, name)):
            os.rename(spare, name)  # noqa: PTH104
    except FileNotFoundError:
        if not os.path.lexists(spare):
            raise _tidied(spare, name) from None
        return False
    return True


def rename_if_free(spare: str, name: str) -> bool:
    """Makes the header with this spare name the ring's, if nothing has its name.  Raises RingError
    if somebody has tidied the spare name away."""
    spare, name = path_of(spare), path_of(header_name(name))
    try:
        if not _done(native.rename_new, spare, name):
            os.link(spare, name)  # it has two names until its spare one is tidied
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise _tidied(spare, name) from None
    return True


def _tidied(spare: str, name: str) -> RingError:
    return RingError(
        f"{spare} was removed while this process was about to give it the name {name}. Create the "
        "ring again"
    )


def _exchange(one: str, other: str) -> bool:
    return _done(native.exchange, one, other)


def _done(how: Callable[[str, str], None], one: str, other: str) -> bool:
    """False if the system cannot do that."""
    try:
        how(one, other)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):  # as a sandbox has it
            raise
        return False
    return True


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


def remove_slots(slots: str, owner: int | None = None) -> bool:
    """Removes a segment of slots if it is a file of `owner` (None: of this process's user).

    The name of such a segment is never used again.  False if it is not there.
    """
    return native.remove_file(path_of(slots), os.geteuid() if owner is None else owner)


def is_left(slots: str) -> bool:
    """Whether a segment of slots is ours, and nobody is making it just now.

    If so, its ring has its name by now or will never have it, so a look at the name tells which.
    """
    try:
        with look(slots) as named:
            if not named.is_ours:
                return False
            with named.open() as file:
                return not locks.name_is_locked(file.fd)
    except OSError:  # it went away, or cannot be opened
        return False


# ---- what to say -------------------------------------------------------------------------------


def not_found(name: str, detail: str = "", waited_s: float = 0.0) -> RingNotFound:
    """`detail`: what is in the way of a ring whose name is there."""
    if detail:
        when = f"after {waited_s:.3g} s" if waited_s else "now"
        return RingNotFound(
            f"ring {name!r} is not there {when}: {detail}. If nobody is removing or replacing it, "
            "`gpuring clean` takes away what is left, once its processes are gone"
        )
    there = set(names())
    known = sorted(
        each for each in there if not ((of := ANSWERS.fullmatch(each)) and of[1] in there)
    )
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    listed = f"{', '.join(known[:_MAX_LISTED])}{more}" if known else "no rings"
    came = f" came within {waited_s:.3g} s" if waited_s else ""
    return RingNotFound(
        f"No ring or service named {name!r}{came}: this host has {listed}. Processes see each "
        f"other's rings only if they share {SHM} (in containers: --ipc)"
    )


def no_ring(named: Named) -> RingIncompatible:
    """The error for what has a ring's name and is `odd`."""
    return RingIncompatible(f"{named.path} is {named.odd}, and no ring")
