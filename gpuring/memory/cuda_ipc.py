"""memory="ipc": one cudaMalloc allocation, shared by legacy CUDA IPC.

The creator puts the 64-byte handle of the memory into the header.  It stands for a whole
allocation, so nothing of a library's pool is used.  Others open the handle once for each process
and device, under the device on which they use the ring.  Under another device it would cost a
context of 500 MB.

The creator's memory is freed only after a close() that was told that no other process has it.
Otherwise it stays until the process ends, because cudaFree is undefined while others have the
memory open (CUDA Runtime API, cudaIpcOpenMemHandle).  Everybody may write it, and when the creator
is dead nobody new can open it.
"""

from __future__ import annotations

import functools
import weakref

from gpuring.errors import DeviceError
from gpuring.memory import cuda, driver, gpus
from gpuring.native import Driver
from gpuring.native.gpu import Refused

_INVALID_VALUE, _INVALID_CONTEXT, _MAP_FAILED, _INVALID_HANDLE = 1, 201, 205, 400  # CUresult
_CREATOR_GONE = (_INVALID_VALUE, _INVALID_CONTEXT, _MAP_FAILED, _INVALID_HANDLE)

_created: weakref.WeakValueDictionary[bytes, cuda.Mapping] = weakref.WeakValueDictionary()
_imported: weakref.WeakValueDictionary[tuple[bytes, int], cuda.Mapping] = (
    weakref.WeakValueDictionary()
)


class IpcMemory(cuda.CudaMemory):
    """Slots that other processes open by the handle in the header."""

    kind = "ipc"

    @classmethod
    def create(cls, slots: int, slot_nbytes: int, device: int) -> IpcMemory:
        """Allocates slots on GPU `device`.  Raises DeviceError, and leaves nothing behind then."""
        nbytes = cuda.rounded(slots * slot_nbytes)
        make = functools.partial(cuda.plain, nbytes, device)
        mapping = cuda.allocated(nbytes, device, make)
        try:
            return cls._exported(mapping, slots, slot_nbytes)
        except Refused as error:
            raise DeviceError(
                f"GPU {device} cannot share memory between processes by CUDA IPC ({error}). "
                "Virtualised GPUs and some sandboxes cannot. Use device='host'"
            ) from error

    @classmethod
    def over(cls, ptr: int, owner: object, slots: int, slot_nbytes: int, device: int) -> IpcMemory:
        """Slots in a whole allocation that `owner` keeps.  Raises Refused, DeviceError."""
        return cls._exported(cuda.Mapping(ptr, device, lambda: None, owner), slots, slot_nbytes)

    @classmethod
    def _exported(cls, mapping: cuda.Mapping, slots: int, slot_nbytes: int) -> IpcMemory:
        device_uuid = Driver().uuid(mapping.device)
        with gpus.current(mapping.device):
            handle = driver.export_plain(mapping.ptr)
        with cuda.lock:
            _created[handle] = mapping
        made = cuda.Slots(handle, device_uuid, slots, slot_nbytes)
        return cls(mapping, made, mapping.device, own=True)

    @classmethod
    def open(cls, wanted: cuda.Slots, device: int, *, ring: str) -> IpcMemory:
        """Opens the slots of `ring` under GPU `device`.  The process that created them has them
        already.

        Raises DeviceError if `device` cannot reach the GPU of the slots, or if their creator is
        gone.
        """
        handle = wanted.handle
        owner = cuda.owner_of(device, wanted.device_uuid, ring)

        def opened() -> cuda.Mapping:
            ptr = driver.open_plain(handle)
            return cuda.Mapping(ptr, device, functools.partial(driver.close_plain, ptr))

        try:
            with cuda.lock:
                mapping = _created.get(handle)
                if mapping is not None:
                    gpus.let_reach(device, owner)
                else:
                    mapping = _imported.get((handle, device))
                if mapping is None:
                    mapping = cuda.uninterrupted(device, opened)
                    _imported[handle, device] = mapping
        except Refused as error:
            raise _cannot_open(ring, error) from error
        return cls(mapping, wanted, device)


def _cannot_open(ring: str, error: Refused) -> DeviceError:
    if error.status in _CREATOR_GONE:
        return DeviceError(
            f"ring {ring!r}: its GPU memory cannot be opened ({error}): its creator is probably "
            "gone. Those inside may finish, but nobody new can join. Create it again. "
            "If its creator lives, both processes must share the host's pid and IPC namespaces, or "
            'the ring must be created with memory="vmm"'
        )
    return DeviceError(f"ring {ring!r}: opening its GPU memory failed ({error})")
