"""Memory that a process frees and will need again."""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt, in <malloc.h>


def keep(nbytes: int, *, below: int) -> None:
    """From now on this process keeps so many bytes of what it frees, of pieces shorter than `below`
    (at most 32 MiB).

    By default the C library gives that memory back, and the system has to clear as many pages again
    for the next piece.
    """
    with contextlib.suppress(AttributeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, nbytes)
        mallopt(_M_MMAP_THRESHOLD, below)
