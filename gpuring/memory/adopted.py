"""create(memory=ARRAY): the slots lie in memory that the user has allocated on a GPU.

Other processes get it as they get memory that this package has allocated: virtual memory as a
descriptor ("vmm"), and memory of cudaMalloc by its handle ("ipc").  Both stand for a whole
allocation, so a part of one is refused: others would get what else is in it.
"""

from __future__ import annotations

from gpuring.errors import DeviceError
from gpuring.memory import Given, cuda, driver, gpus
from gpuring.memory.cuda_ipc import IpcMemory
from gpuring.memory.cuda_vmm import VmmMemory
from gpuring.native.gpu import Refused


def adopt(given: Given, epoch: bytes, slots: int, slot_nbytes: int) -> cuda.CudaMemory:
    """Slots at the beginning of it.  Raises ValueError if it is too small, and DeviceError if it
    cannot be shared."""
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
                    f"memory= is a part of an allocation: it begins {ptr - base} bytes behind the "
                    f"begin of {whole} bytes, and only all of these can be shared. Allocate it "
                    "alone, without a library's pool (in CuPy: cupy.cuda.using_allocator(None))"
                )
            if not given.nbytes <= whole < given.nbytes + cuda.PAGE_NBYTES:
                raise DeviceError(
                    f"memory= is {given.nbytes} bytes of an allocation of {whole}, and only all of "
                    "it can be shared. Allocate it alone, without a library's pool (in CuPy: "
                    "cupy.cuda.using_allocator(None))"
                )
            driver.finish()  # the first frames come behind what was done with it
        mapped = VmmMemory.over(ptr, whole, epoch, slots, slot_nbytes, device)
        return mapped or IpcMemory.over(ptr, given.owner, slots, slot_nbytes, device)
    except Refused as error:
        raise DeviceError(
            f"memory= cannot be shared with other processes ({error}). Memory of cudaMalloc can, "
            "and virtual memory that was made to be exported as a file descriptor. That of "
            "cudaMallocAsync, of managed memory and of torch's expandable segments cannot"
        ) from error
