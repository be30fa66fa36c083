"""What to say when the system gives no memory, or no room in /dev/shm."""

from __future__ import annotations

import errno
import os
import resource

from gpuring.errors import RingError
from gpuring.registry.segment import SHM


def tell(name: str, error: OSError, what: str, nbytes: int) -> None:
    """Raises RingError if `error` says that the system gave no memory or no room."""
    begins = f"ring {name!r}: {what}, {_amount(nbytes)},"
    if error.errno == errno.EROFS:
        raise RingError(
            f"ring {name!r}: {SHM} is read-only here, and who is in a ring writes"
        ) from error
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if error.errno == errno.EFBIG and limit != resource.RLIM_INFINITY:
        raise RingError(
            f"{begins} cannot be made: files of this process have at most {_amount(limit)} "
            "(RLIMIT_FSIZE). Raise it with ulimit -f, or LimitFSIZE= of the service"
        ) from error
    if error.errno == errno.ENOMEM:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        why = "there is no memory left"
        if limit != resource.RLIM_INFINITY:
            why = (
                f"this process may have {_amount(limit)} of address space (RLIMIT_AS). "
                "Raise it with ulimit -v, or LimitAS= of the service"
            )
        raise RingError(f"{begins} cannot be mapped: {why}") from error
    if error.errno in (errno.ENOSPC, errno.EFBIG):
        raise _no_space(name, nbytes, what) from error


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
