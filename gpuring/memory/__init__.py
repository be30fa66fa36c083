"""Where slots live.  A memory kind allocates all slots of a ring at once and shows them as arrays.

`host.py` and `cuda.py` are the only places of the package that allocate frames, by the C library
(native/host, native/memory), and `kinds.py` chooses among the kinds.  `pinned.py` registers slots
of `host.py` with CUDA.  A kind knows nothing of the protocol: who may touch which slot when is
decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gpuring.slot_layout import Field


class Memory(Protocol):
    """All slots of one ring, mapped into this process."""

    @property
    def kind(self) -> str:
        """ "host", "ipc", "vmm", "pool" or "pinned"."""

    @property
    def handle(self) -> bytes:
        """64 bytes of the header from which other processes open the memory."""

    @property
    def descriptor(self) -> int:
        """A file descriptor that other processes need as well.  It belongs to this object.  -1 if
        they need none."""

    @property
    def device_uuid(self) -> bytes:
        """16 bytes that name the GPU with the slots.  They are zero for host memory."""

    @property
    def device(self) -> int | None:
        """The ordinal of the GPU under which this process uses the slots.  None: by the CPU."""

    @property
    def mapped(self) -> bool:
        """Whether that GPU reaches the slots, so that its arrays are over them, and streams are
        ordered with those of others.  Otherwise arrays are NumPy's."""

    @property
    def read_only(self) -> bool:
        """Whether arrays that were asked for with writable=False cannot be written."""

    def lend(self) -> None:
        """Called before other processes can open the memory.  Its creator keeps it from then on,
        also if nobody has this object any more, until `close`."""

    def array(self, index: int, field: Field, shape: tuple[int, ...], *, writable: bool) -> Any:
        """Returns a C-contiguous array over `field` of slot `index`.  `shape` may be smaller than
        that of the field.

        Copies nothing and enqueues nothing.  The array keeps the mapping alive.
        """

    def close(self, *, others: bool, then: Callable[[], None]) -> None:
        """Gives the mapping up.  Its creator also frees the memory.

        `others` says whether other processes may still use the slots.  `then` is called when the
        last array of this handle is gone, and after what only they kept was undone.  Raises
        nothing.
        """


@dataclass(frozen=True)
class Given:
    """Memory of the user's, on a GPU."""

    ptr: int
    nbytes: int
    device: int
    owner: object
    """Keeps it.  It is kept until nobody uses the ring any more."""
