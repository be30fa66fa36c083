"""Where slots live.  A memory kind allocates all slots of a ring at once and shows them as arrays.

`host.py` and `cuda_ipc.py` are the only places of the package that allocate frames.  A kind knows
nothing of the protocol: who may touch which slot when is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gpuring.spec import Field


class Memory(Protocol):
    """All slots of one ring, mapped into this process."""

    handle: bytes
    """64 bytes of the header from which other processes open the memory."""
    device_uuid: bytes
    """16 bytes that name the GPU with the slots.  They are zero for host memory."""

    def array(self, index: int, field: Field, shape: tuple[int, ...]) -> Any:
        """Returns a C-contiguous array over `field` of slot `index`.  `shape` may be smaller than
        that of the field.

        Copies nothing and enqueues nothing.  The array keeps the mapping alive.
        """

    def close(self, *, others: bool, then: Callable[[], None]) -> None:
        """Gives the mapping up.  Its creator also frees the memory.

        `others` says whether other processes may still use the slots.  `then` is called when the
        mapping is gone, which is when the last array over it is gone.  Raises nothing.
        """
