"""A bounce buffer in host memory, for bridges over NIXL, which have none there."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpuring.bridge.engines.contract import Slab
from gpuring.bridge.engines.nixl import agent


class HostBounceBuffer:
    """What bounce_buffer.BounceBuffer does, in host memory."""

    def __init__(self, ring: Slab, slots: int) -> None:
        assert ring.gpu is None
        memory = memoryview(mmap.mmap(-1, slots * ring.slot_nbytes))
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.copies = Copies()
        self.slab = replace(ring, pointer=pointer, slots=slots, owner=memory)

    def close(self) -> None:
        self.copies.done()


class Copies:
    """Copies that happen when somebody asks whether they are done."""

    def __init__(self) -> None:
        self._pending: list[tuple[Any, int, int, int]] = []

    def start(self, name: Any, to: int, source: int, nbytes: int) -> None:
        self._pending.append((name, to, source, nbytes))

    @property
    def pending(self) -> bool:
        return bool(self._pending)

    def done(self) -> list[Any]:
        pending, self._pending = self._pending, []
        for _, to, source, nbytes in pending:
            ctypes.memmove(to, source, nbytes)
        return [name for name, *_ in pending]


def always(set_attribute: Callable[[object, str, Any], None] = setattr) -> None:
    """Gives every end of a session of this process a bounce buffer in host memory, from now on."""
    start = agent.End.start

    def bounced(end: agent.End, *, bounced: bool) -> None:
        start(end, bounced=True)

    set_attribute(agent.End, "start", bounced)
    set_attribute(agent, "BounceBuffer", HostBounceBuffer)
