"""memory="ipc": one cudaMalloc allocation, shared by legacy CUDA IPC.

The creator puts the 64-byte handle of the memory into the header.  It does not use CuPy's pool,
because a handle stands for a whole allocation.  Others open the handle once for each process and
device, under the device on which they use the ring.  Under another device it would cost a context
of 500 MB.

The creator's memory is freed only after a close() that was told that no other process has it.
Otherwise it stays until the process ends, because cudaFree is undefined while others have the
memory open (CUDA Runtime API, cudaIpcOpenMemHandle).  Everybody may write it, and when the creator
is dead nobody new can open it.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from gpuring.errors import DeviceError
from gpuring.memory import cuda
from gpuring.native import Driver

# cudaError_t, which CuPy reports as plain numbers.
_INVALID_VALUE, _DEVICE_UNINITIALIZED, _MAP_FAILED, _INVALID_HANDLE = 1, 201, 205, 400
_CREATOR_GONE = (_INVALID_VALUE, _DEVICE_UNINITIALIZED, _MAP_FAILED, _INVALID_HANDLE)
_PEER_ALREADY_ENABLED = 704

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
        gpu = cuda.load_cupy().cuda
        runtime = gpu.runtime
        nbytes = cuda.rounded(slots * slot_nbytes)
        device_uuid = Driver().uuid(device)

        def make() -> cuda.Mapping:
            # As cupy.cuda.Memory does, but without its cudaFree at interpreter shutdown.
            ptr = runtime.malloc(nbytes)
            return cuda.Mapping(ptr, device, functools.partial(runtime.free, ptr))

        with gpu.Device(device):
            mapping = cuda.allocated(nbytes, device, make)
            try:
                handle: bytes = runtime.ipcGetMemHandle(mapping.ptr)
            except runtime.CUDARuntimeError as error:
                raise DeviceError(
                    f"GPU {device} cannot share memory between processes by CUDA IPC ({error}). "
                    "Virtualised GPUs and some sandboxes cannot. Use device='host'"
                ) from error
        with cuda.lock:
            _created[handle] = mapping
        made = cuda.Slots(handle, device_uuid, slots, slot_nbytes)
        return cls(mapping, made, device, own=True)

    @classmethod
    def open(cls, wanted: cuda.Slots, device: int, *, ring: str) -> IpcMemory:
        """Opens the slots of `ring` under GPU `device`.  The process that created them has them
        already.

        Raises DeviceError if `device` cannot reach the GPU of the slots, or if their creator is
        gone.
        """
        gpu = cuda.load_cupy().cuda
        runtime, handle = gpu.runtime, wanted.handle

        def opened() -> cuda.Mapping:
            ptr = runtime.ipcOpenMemHandle(handle)
            return cuda.Mapping(ptr, device, functools.partial(runtime.ipcCloseMemHandle, ptr))

        try:
            owner = cuda.owner_of(device, wanted.device_uuid, ring)
            with cuda.lock, gpu.Device(device):
                mapping = _created.get(handle)
                if mapping is not None:
                    _enable_peer(runtime, device, owner)
                else:
                    mapping = _imported.get((handle, device))
                if mapping is None:
                    mapping = cuda.uninterrupted(device, opened)
                    _imported[handle, device] = mapping
        except runtime.CUDARuntimeError as error:
            raise _cannot_open(ring, error) from error
        return cls(mapping, wanted, device)


def _enable_peer(runtime: Any, device: int, owner: int) -> None:
    """Lets `device`, which is current, reach the memory of `owner`.  Opening a handle does this by
    itself."""
    if device == owner:
        return
    try:
        runtime.deviceEnablePeerAccess(owner)
    except runtime.CUDARuntimeError as error:
        if error.status != _PEER_ALREADY_ENABLED:
            raise


def _cannot_open(ring: str, error: Any) -> DeviceError:
    if error.status in _CREATOR_GONE:
        return DeviceError(
            f"ring {ring!r}: its GPU memory cannot be opened ({error}): its creator is probably "
            "gone. Those inside may finish, but nobody new can join. Create it again. "
            "If its creator lives, both processes must share the host's pid and IPC namespaces, or "
            'the ring must be created with memory="vmm"'
        )
    return DeviceError(f"ring {ring!r}: opening its GPU memory failed ({error})")
