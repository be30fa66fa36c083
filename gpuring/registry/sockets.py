"""Sockets at which the processes of a ring hand its slots on (core/exchange_socket.c)."""

from __future__ import annotations

import contextlib
import os
import re

from gpuring import native
from gpuring.registry import segment

_SOCKETS = re.compile(r"gpuring\+[0-9a-f]{32}")


def remove_stale(*, only_look: bool = False) -> list[str]:
    """Removes the sockets at which nobody listens, which killed processes have left.  Returns the
    names of the directories that are gone with the last one, or would be.

    It looks only into directories of this process's own user.
    """
    found: list[str] = []
    with contextlib.suppress(FileNotFoundError, PermissionError):
        found = [each for each in os.listdir(segment.SHM) if _SOCKETS.fullmatch(each)]  # noqa: PTH208
    return [
        each
        for each in found
        if native.tidy_sockets(segment.path_of(f"/{each}"), only_look=only_look)
    ]
