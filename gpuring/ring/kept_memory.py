"""Rings that were closed in this process, and whose handle and memory have to stay for a while.

* Others may still be reading a ring that this process has created.  To free GPU memory that others
  use is undefined.  So it is kept until no other process has the ring.
* A peer that was dropped may not have left yet, because another process has the membership lock.
  Without the locks of its handle it would be taken for dead.

This is checked whenever a ring is made or closed in this process.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuring.memory import Memory
    from gpuring.native import Header

_kept: list[tuple[Header, Memory, bool]] = []
"""The bool: whether this process has created the ring."""


def keep(header: Header, memory: Memory, *, created: bool) -> None:
    """Keeps what belongs to a ring that was closed until `free` finds that nobody needs it."""
    _kept.append((header, memory, created))


def free() -> None:
    """Frees what nobody needs any more."""
    for entry in list(_kept):
        header, memory, created = entry
        if header.forked or not (header.leave_late() or (created and header.attached)):
            with contextlib.suppress(ValueError):  # another thread was faster
                _kept.remove(entry)
                if not header.forked:
                    memory.close(others=not created, then=header.disown)
