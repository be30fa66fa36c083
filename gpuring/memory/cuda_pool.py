"""memory="pool": one allocation of a stream-ordered pool (cudaMallocAsync), as a file descriptor.

The descriptor is that of the pool, and the handle in the header says where the allocation is in it.
Whoever has the descriptor can hand it on.  There is no read-only access, so everybody may write.

Importers have to free the allocation before its creator does (CUDA Runtime API, memory pools).  So
the creator keeps it until no other process has it, or until the process ends.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

from gpuring.errors import DeviceError
from gpuring.memory import cuda, driver, gpus
from gpuring.native import Descriptor, Driver
from gpuring.native.gpu import Refused


class _Allocation(cuda.Mapping):
    """The allocation in this process under one device, and the descriptor of its pool."""

    def __init__(
        self,
        pool: int,
        ptr: int,
        descriptor: Descriptor,
        device: int,
        of: _Allocation | None = None,
    ) -> None:
        """`of` is the same allocation under another device.  It is kept, and is what is freed."""
        # Whoever frees the memory waits for its own device only.
        undo = driver.finish if of else functools.partial(_free, pool, ptr, descriptor)
        super().__init__(ptr, device, undo, of)
        self.pool = pool
        self.descriptor = descriptor
        self.fd = descriptor.fd


def _free(pool: int, ptr: int, descriptor: Descriptor) -> None:
    try:
        driver.free_in_pool(pool, ptr)
    finally:
        descriptor.close()


_allocations: weakref.WeakValueDictionary[tuple[bytes, int], _Allocation] = (
    weakref.WeakValueDictionary()
)
"""The memory that this process has, by the epoch of its ring and the device."""


def lacks(device: int) -> str:
    """Why GPU `device` cannot have such memory, in one line.  "" if it can.  Raises DeviceError."""
    if Driver().attribute(driver.POOL_HANDLE_TYPES, device) & 1:
        return ""
    return f"GPU {device} cannot share memory pools by file descriptors"


class PoolMemory(cuda.CudaMemory):
    """Slots in a memory pool that other processes import."""

    kind = "pool"

    @classmethod
    def create(cls, epoch: bytes, slots: int, slot_nbytes: int, device: int) -> PoolMemory:
        """Allocates slots on GPU `device`.  Raises DeviceError, and leaves nothing behind then."""
        nbytes = cuda.rounded(slots * slot_nbytes)
        device_uuid = Driver().uuid(device)

        def make() -> tuple[_Allocation, bytes]:
            pool, ptr, descriptor, handle = driver.allocate_in_pool(nbytes, device)
            return _Allocation(pool, ptr, descriptor, device), handle

        allocation, handle = cuda.allocated(nbytes, device, make, 'take memory="ipc"')
        with cuda.lock:
            _allocations[epoch, device] = allocation
        made = cuda.Slots(handle, device_uuid, slots, slot_nbytes, epoch)
        return cls(allocation, made, device, own=True)

    @classmethod
    def open(
        cls, wanted: cuda.Slots, device: int, *, ring: str, fetch: Callable[[], Descriptor]
    ) -> PoolMemory:
        """Opens the slots of `ring` under GPU `device`.

        `fetch` asks those who are in the ring for the descriptor.  It is not asked if this process
        has the memory already.  Raises DeviceError if `device` cannot reach the GPU of the slots,
        and what `fetch` raises.
        """
        cuda.owner_of(device, wanted.device_uuid, ring)
        epoch = wanted.epoch
        found = _allocations.get((epoch, device))
        if found is None:
            with cuda.lock:
                here = [each for (of, _), each in _allocations.items() if of == epoch]
            if here:
                found = _reached(here[0], device, ring)
            else:
                found = _imported(fetch(), wanted.handle, device, ring)
            with cuda.lock:
                found = _allocations.setdefault((epoch, device), found)
        return cls(found, wanted, device)


def _reached(here: _Allocation, device: int, ring: str) -> _Allocation:
    """The allocation that this process has under one device, under another one as well."""
    try:
        with gpus.current(device):
            driver.let_reach_pool(here.pool, device)
    except Refused as error:
        raise DeviceError(f"ring {ring!r}: opening its GPU memory failed ({error})") from error
    return _Allocation(here.pool, here.ptr, here.descriptor, device, here)


def _imported(descriptor: Descriptor, handle: bytes, device: int, ring: str) -> _Allocation:
    def imported() -> _Allocation:
        pool, ptr = driver.import_pool(descriptor.fd, handle, device)
        descriptor.aside = False
        return _Allocation(pool, ptr, descriptor, device)

    try:
        return cuda.uninterrupted(device, imported)
    except Refused as error:
        descriptor.close()
        raise DeviceError(f"ring {ring!r}: opening its GPU memory failed ({error})") from error
