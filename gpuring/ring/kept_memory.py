"""Memory of rings that this process has created and closed, and that others may still be reading.

To free GPU memory that others use is undefined.  So it is kept until no other process has the ring.
This is checked whenever a ring is made or closed in this process.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuring.memory import Memory
    from gpuring.native import Header

_kept: list[tuple[Header, Memory]] = []


def keep(header: Header, memory: Memory) -> None:
    """Keeps the memory of a ring that was closed until `free` finds it unused."""
    _kept.append((header, memory))


def free() -> None:
    """Frees what no other process has any more."""
    for entry in list(_kept):
        header, memory = entry
        if header.forked or not header.attached:
            with contextlib.suppress(ValueError):  # another thread was faster
                _kept.remove(entry)
                if not header.forked:
                    memory.close(others=False, then=header.disown)
