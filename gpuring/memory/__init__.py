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
    """16 bytes naming the GPU that holds the slots; zeros for host memory."""

    def array(self, index: int, field: Field, shape: tuple[int, ...]) -> Any:
        """An array over `field` of slot `index`, C-contiguous; `shape` may be smaller than the
        field's.

        No copy, no work on any stream.  The array keeps the mapping alive.
        """

    def close(self, *, others: bool, then: Callable[[], None]) -> None:
        """Gives the mapping up; its creator also frees the memory.

        `others`: whether other processes may still use the slots.  `then` is called when the
        mapping is gone, with the last array over it.  Never blocks; raises nothing.
        """
