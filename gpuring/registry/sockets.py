"""Sockets at which the processes of a ring hand its slots on (core/exchange_socket.c)."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat

from gpuring.native import File
from gpuring.registry import segment

_SOCKETS = re.compile(r"gpuring\+[0-9a-f]{32}")


def remove_stale(epoch: bytes | None = None, *, only_look: bool = False) -> list[str]:
    """Removes the sockets of a ring (None: of any) at which nobody listens, which killed processes
    have left.  Returns the names of the directories that are gone with the last one, or would be.

    It looks only into directories of this process's own user.
    """
    if epoch is not None:
        wanted = [f"gpuring+{epoch.hex()}"]
    else:
        wanted = []
        with contextlib.suppress(FileNotFoundError, PermissionError):
            wanted = [each for each in os.listdir(segment.SHM) if _SOCKETS.fullmatch(each)]  # noqa: PTH208
    return [each for each in wanted if _remove_stale_in(segment.path_of(f"/{each}"), only_look)]


def _remove_stale_in(directory: str, only_look: bool) -> bool:
    """False: some of them are in use, or the directory is not there, or is not ours."""
    try:
        place = File(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    with place:
        if os.fstat(place.fd).st_uid != os.geteuid():
            return False
        left = os.listdir(place.fd)  # noqa: PTH208 - a descriptor
        for each in tuple(left):
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(each, dir_fd=place.fd, follow_symlinks=False)
                if stat.S_ISSOCK(found.st_mode) and _is_stale(f"/proc/self/fd/{place.fd}/{each}"):
                    left.remove(each)
                    if not only_look:
                        os.unlink(each, dir_fd=place.fd)
        if only_look:
            return not left
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
