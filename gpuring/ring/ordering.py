"""What orders the streams of this process with those of others, for one handle of a ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuring.errors import DeviceError
from gpuring.memory.frameworks import current_stream
from gpuring.memory.pinned import RegisteredMemory, UnregisteredMemory
from gpuring.native import Device, Driver
from gpuring.native.memory import NOT_SUPPORTED
from gpuring.ring import caller

if TYPE_CHECKING:
    from gpuring.memory import Memory
    from gpuring.native import Header


def begin(name: str, header: Header, memory: Memory) -> tuple[Memory, Device | None]:
    """`memory` as this process uses it from now on, and its device order.  That is None where the
    CPU uses the slots.

    If a pinned ring cannot be registered, one warning says why, and copies to and from the GPU are
    waited for.  Raises DeviceError.
    """
    device: Device | None = None
    if memory.mapped:
        assert memory.device is not None
        current, capsule = current_stream(memory.device)
        try:
            device = Device(header, memory.device, current, capsule)
        except DeviceError as error:
            if not isinstance(memory, RegisteredMemory):
                raise
            memory = memory.unregistered(NOT_SUPPORTED, str(error))
    if isinstance(memory, UnregisteredMemory):
        assert memory.device is not None
        header.uses_gpu(Driver().uuid(memory.device), memory.status)
        caller.warn(
            f"ring {name!r}: its slots are not registered with GPU {memory.device} ({memory.why}). "
            "It works, but each upload and each copy from the GPU is waited for, and slot.array is "
            "NumPy's. `gpuring doctor` says what to do",
            RuntimeWarning,
        )
    return memory, device
