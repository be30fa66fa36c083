"""memory="pinned": the segment of a host ring, which each process that uses a GPU registers with
CUDA.

A process that attaches without a device uses the slots by the CPU and never touches CUDA.  One that
attaches with a device locks the pages and maps them into its GPU.  Its arrays are over that
mapping, and the GPU copies there and back in stream order.

Where the GPU or the system refuses that, the slots are used without it.  Then arrays are NumPy's,
and the calling thread waits for each copy to or from the GPU.  `ring/ordering.py` tries it and
decides.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuring.memory import cuda
from gpuring.memory.host import HostMemory
from gpuring.native import Driver, File
from gpuring.native.gpu import Refused
from gpuring.native.memory import NOT_SUPPORTED, Registered

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer, Self


class PinnedMemory(HostMemory):
    """The slots of a pinned ring, for a process that uses them by the CPU."""

    kind = "pinned"

    def __init__(self, mapping: Buffer, slot_nbytes: int, file: File | None = None) -> None:
        super().__init__(mapping, slot_nbytes)
        self.file = file
        """The segment.  It is offered, although others open it by its name.  On that way processes
        of other pid namespaces learn that a process and its copies are gone (exchange_message.c).
        """

    @classmethod
    def _opened(cls, mapping: Buffer, file: File, slot_nbytes: int) -> Self:
        memory = super()._opened(mapping, file, slot_nbytes)
        memory.file = File(f"/proc/self/fd/{file.fd}", os.O_RDWR)
        return memory

    @property
    def descriptor(self) -> int:  # type: ignore[override]
        return -1 if self.file is None else self.file.fd

    def under(self, device: str | int) -> PinnedMemory | RegisteredMemory:
        """The same slots for GPU `device`.  This object is not used any more.  Raises DeviceError
        if there is no such GPU, TypeError or ValueError for what names none."""
        device = cuda.device_for(device)
        assert self._mapping is not None
        able, why = cuda.timeline_supported(device)
        if not able:
            return self.unregistered(device, NOT_SUPPORTED, why)
        try:
            registered = Registered(Driver(), device, self._mapping)
        except Refused as error:
            return self.unregistered(device, error.status or NOT_SUPPORTED, str(error))
        return RegisteredMemory(self, registered, self._mapping.nbytes, self._slot_nbytes)

    def unregistered(self, device: int, status: int, why: str) -> UnregisteredMemory:
        """The same slots for GPU `device`, which does not reach them."""
        assert self._mapping is not None
        return UnregisteredMemory(self._mapping, self._slot_nbytes, self.file, device, status, why)

    def close(self, *, others: bool, then: Callable[[], None]) -> None:
        if self.file is not None:
            self.file.close()
        super().close(others=others, then=then)


class UnregisteredMemory(PinnedMemory):
    """… for a process that uses a GPU with which they are not registered."""

    def __init__(
        self,
        mapping: Buffer,
        slot_nbytes: int,
        file: File | None,
        device: int,
        status: int,
        why: str,
    ) -> None:
        super().__init__(mapping, slot_nbytes, file)
        self.device = device
        self.status, self.why = status, why
        """The CUresult, and what it is about, for people."""


class RegisteredMemory(cuda.CudaMemory):
    """… for a process whose GPU reaches them."""

    def __init__(
        self, host: PinnedMemory, registered: Registered, nbytes: int, slot_nbytes: int
    ) -> None:
        nobody = cuda.Slots(host.handle, host.device_uuid, nbytes // slot_nbytes, slot_nbytes)
        super().__init__(registered, nobody)
        self._host = host

    @property
    def host(self) -> PinnedMemory:
        """The same slots, for copies that take the CPU's addresses."""
        return self._host

    @property
    def descriptor(self) -> int:
        return self._host.descriptor

    def unregistered(self, status: int, why: str) -> UnregisteredMemory:
        """The same slots, if the header cannot be registered."""
        host = self._host.unregistered(self.device, status, why)
        super().close(others=True, then=lambda: None)
        return host

    def close(self, *, others: bool, then: Callable[[], None]) -> None:
        super().close(others=others, then=then)
        self._host.close(others=others, then=lambda: None)
