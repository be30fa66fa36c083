"""What the dead have left in /dev/shm: rings without a living peer, slots without a ring, sockets.

The C library decides what is removed, and in which order (native/host/leftovers.c).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gpuring import native
from gpuring.registry import segment, sockets


def clean() -> list[str]:
    """Removes the rings whose creator and peers are all dead.  Returns what it removed.

    It also removes slots without a ring, which a process leaves that is killed while it creates
    one, and sockets that the dead have left.  It leaves alone what belongs to another user, also if
    root calls it.  Raises OSError.
    """
    return tidy(lambda _: True) + sockets.remove_stale()


def tidy(wanted: Callable[[str], object]) -> list[str]:
    """clean() for the names that are wanted.  Does not wait."""
    removed: list[str] = []
    for name, slots in sorted(segment.listing().items()):
        # The second condition saves work: strangers may have put ten thousand names there.
        if wanted(name) and (slots or segment.owner(segment.header_name(name)) == os.geteuid()):
            gone = native.remove_left(name, [segment.path_of(each) for each in slots])
            removed += [name] if gone is None else [Path(each).name for each in gone]
    return removed


def remove_dead(name: str, epoch: bytes | None = None) -> bool:
    """Removes the ring of this name if its creator and its peers are all dead, and if it has this
    `epoch` (None: any).  Does not wait."""
    return native.remove_dead(name, epoch)
