"""create(memory=ARRAY): the slots lie in memory that the user has allocated on a GPU.

Other processes get it as they get memory that this package has allocated: virtual memory as a
descriptor ("vmm"), and memory of cudaMalloc by its handle ("ipc").  Both stand for a whole
allocation, so a part of one is refused: others would get what else is in it.
"""

from __future__ import annotations

import threading
import weakref

from gpuring.errors import DeviceError
from gpuring.memory import Given, cuda, driver, gpus
from gpuring.native import Driver
from gpuring.native import memory as native_memory
from gpuring.native.gpu import Refused
from gpuring.native.memory import Registered, Slab

_lock = threading.RLock()  # reentrant, because a signal handler may make a ring as well
_rings: weakref.WeakKeyDictionary[Slab | Registered, tuple[int, int, str]] = (
    weakref.WeakKeyDictionary()
)
"""What rings of this process have of such memory: the device, the address, and the ring's name."""


def adopt(given: Given, ring: str, epoch: bytes, slots: int, slot_nbytes: int) -> cuda.CudaMemory:
    """Slots of `ring` at the beginning of it.  Raises ValueError if it is too small or another ring
    has it, and DeviceError if it cannot be shared.  Waits for the GPU."""
    with gpus.current(given.device):
        driver.finish()  # the first frames come behind what was done with it
    with _lock:  # not while it waits: that work may wait for another thread, which opens a ring
        for device, ptr, other in _rings.values():
            if (device, ptr) == (given.device, given.ptr):
                raise ValueError(
                    f"memory= has the slots of ring {other!r} already, and two rings would "
                    "overwrite each other's frames. Close that ring, also in other processes, or "
                    "allocate other memory"
                )
        made = _adopt(given, epoch, slots, slot_nbytes)
        assert made._kept is not None
        _rings[made._kept] = given.device, given.ptr, ring
    return made


def _adopt(given: Given, epoch: bytes, slots: int, slot_nbytes: int) -> cuda.CudaMemory:
    ptr, device = given.ptr, given.device
    if given.nbytes < slots * slot_nbytes:
        raise ValueError(
            f"memory= has {given.nbytes} bytes, and {slots} slots of {slot_nbytes} bytes need "
            f"{slots * slot_nbytes}"
        )
    try:
        with gpus.current(device):
            base, whole = driver.allocation_of(ptr)
            if base != ptr:
                raise DeviceError(
                    f"memory= is a part of an allocation: it begins {ptr - base} bytes after the "
                    f"start of {whole} bytes, and only all of these can be shared. Allocate it "
                    "alone, without a library's pool (in CuPy: cupy.cuda.using_allocator(None))"
                )
            if not given.nbytes <= whole < given.nbytes + native_memory.PAGE_NBYTES:
                raise DeviceError(
                    f"memory= is {given.nbytes} bytes of an allocation of {whole}, and only all of "
                    "it can be shared. Allocate it alone, without a library's pool (in CuPy: "
                    "cupy.cuda.using_allocator(None))"
                )
        slab = native_memory.adopt(Driver(), device, epoch, ptr, whole, given.owner)
    except Refused as error:
        raise DeviceError(
            f"memory= cannot be shared with other processes ({error}). Memory of cudaMalloc can, "
            "and virtual memory that was made to be exported as a file descriptor. That of "
            "cudaMallocAsync, of managed memory and of torch's expandable segments cannot"
        ) from error
    wanted = cuda.Slots(slab.handle, Driver().uuid(device), slots, slot_nbytes, epoch)
    return cuda.CudaMemory(slab, wanted, own=slab.made)
