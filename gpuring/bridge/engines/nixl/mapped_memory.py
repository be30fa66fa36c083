"""GPU memory of other processes that UCX keeps mapped in this one.

UCX opens the memory of a far end once, and keeps it open until the process ends, because opening
takes long.  Only then the memory of a dead far end is free.  So if dead far ends have left too much
of it in a worker, the worker ends, and the next one begins without it.
"""

from __future__ import annotations

import contextlib
import os

from gpuring.bridge.descriptors import readable
from gpuring.errors import RingError

_LIMIT = 1 << 30
"""How many bytes the dead may leave."""

_alive: dict[int, tuple[int, int]] = {}
"""The pidfd of each far process, and how many bytes of it are mapped, by process id."""
_left = 0
"""How many bytes the dead have left."""


def note(pid: int, nbytes: int) -> None:
    """A far end in process `pid` has so much memory that this process will map.

    Raises RingError, with which a worker ends, if the dead have left more than a GiB.
    """
    global _left  # noqa: PLW0603
    for each, (pidfd, mapped) in list(_alive.items()):
        if readable([pidfd], 0):
            os.close(pidfd)
            del _alive[each]
            _left += mapped
    if _left > _LIMIT:
        raise RingError(
            f"{_left >> 20} MiB of GPU memory are still mapped here that belonged to importers "
            "which have died. They are free when this worker has ended"
        )
    if pid not in _alive:
        with contextlib.suppress(OSError):  # it is gone already
            _alive[pid] = os.pidfd_open(pid), nbytes
