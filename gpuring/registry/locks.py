"""Bytes of a ring's files that processes hold locked: core/lock.h says which.

The kernel drops a lock when its holder dies, however that dies.  A lock belongs to a descriptor,
and ends with it.
"""

from __future__ import annotations

import time

from gpuring import native
from gpuring.native import CREATOR_BYTE, NAME_BYTE, SETTLING_BYTE, in_use, name_is_locked

__all__ = [
    "NAME_BYTE", "SETTLING_BYTE", "in_use", "lock", "lock_creator", "lock_name", "name_is_locked",
    "unlock_name",
]  # fmt: skip


def lock_name(fd: int, patience_s: float = 0.0) -> bool:
    """Locks NAME_BYTE of the file until the descriptor is closed.  False if another has locked it.

    Another process has it for microseconds only, unless it was stopped.
    """
    return lock(fd, NAME_BYTE, patience_s)


def lock(fd: int, byte: int, patience_s: float) -> bool:
    """lock_name for another byte."""
    deadline = time.monotonic() + patience_s
    while not native.lock(fd, byte):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.001)
    return True


def lock_creator(fd: int) -> bool:
    """Locks CREATOR_BYTE of a header until the descriptor is closed, as its creator has done who is
    dead.  False if another process has locked it."""
    return native.lock(fd, CREATOR_BYTE)


def unlock_name(fd: int) -> None:
    native.unlock(fd, NAME_BYTE)
