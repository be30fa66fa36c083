"""memory="vmm": one allocation of the driver's virtual memory management, as a file descriptor.

The descriptor keeps the memory as long as any process has it open, and whoever has it can hand it
on.  So the ring outlives its creator: as long as one process is in it, others can join.

Each process maps the memory as it uses it: consumers for reading only, and producers for reading
and writing.  A process that does both has two mappings of the same memory.  The GPU enforces this.
A kernel that writes through a read-only mapping fails, and with it its process's context.  The
driver refuses copies and memsets into it, and the memory is untouched.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable

from gpuring._core import Driver
from gpuring.errors import DeviceError, RingIncompatible
from gpuring.memory import driver
from gpuring.memory.cuda import PAGE_NBYTES, CudaMemory, Kept, Mapping, load_cupy, owner_of, rounded

_SIZE_NBYTES = 8
"""The bytes of the handle that have the size."""
_MAX_NBYTES = 1 << 50

_lock = threading.Lock()


class _Slab(Kept):
    """The memory in this process under one device: a descriptor, and up to two mappings."""

    def __init__(self, fd: int, nbytes: int, device: int) -> None:
        super().__init__(device, functools.partial(os.close, fd))
        self.fd = fd
        self.nbytes = nbytes
        self._views: weakref.WeakValueDictionary[bool, Mapping] = weakref.WeakValueDictionary()

    def view(self, writable: bool) -> Mapping:
        with _lock:
            view = self._views.get(writable)
            if view is None:
                view = self._views[writable] = self._mapped(writable)
            return view

    def _mapped(self, writable: bool) -> Mapping:
        runtime = load_cupy().cuda.runtime
        try:
            with load_cupy().cuda.Device(self.device):
                runtime.free(0)  # makes the device's context, if there is none yet
                ptr = driver.map_memory(self.fd, self.nbytes, self.device, writable=writable)
        except (driver.Refused, runtime.CUDARuntimeError) as error:
            use = "reading and writing" if writable else "reading"
            raise DeviceError(
                f"{self.nbytes / 2**20:.0f} MiB of slots cannot be mapped into GPU {self.device} "
                f"for {use} ({error})"
            ) from error
        undo = functools.partial(_unmap, runtime.deviceSynchronize, ptr, self.nbytes)
        return Mapping(ptr, self.device, undo, self)


def _unmap(synchronize: Callable[[], None], ptr: int, nbytes: int) -> None:
    synchronize()  # unlike cudaFree, the driver does not wait for work on what is unmapped
    driver.unmap_memory(ptr, nbytes)


_slabs: weakref.WeakValueDictionary[tuple[bytes, int], _Slab] = weakref.WeakValueDictionary()
"""The memory that this process has, by the epoch of its ring and the device."""


def supported(device: int) -> tuple[bool, str]:
    """Whether GPU `device` can have such memory, and if not, why, in one line."""
    try:
        able = Driver().attribute
        if able(driver.HAS_VIRTUAL_MEMORY, device) and able(driver.HAS_FILE_DESCRIPTORS, device):
            return True, ""
        return False, f"GPU {device} cannot share virtual memory by file descriptors"
    except DeviceError as error:
        return False, str(error)


class VmmMemory(CudaMemory):
    """Slots that other processes map from a descriptor.  `handle` has the size of the memory."""

    kind = "vmm"
    read_only = True
    _kept: _Slab | None

    @property
    def descriptor(self) -> int:
        """What other processes need beside the header.  It belongs to this object."""
        return -1 if self._kept is None else self._kept.fd

    @classmethod
    def create(cls, epoch: bytes, slots: int, slot_nbytes: int, device: int) -> VmmMemory:
        """Allocates slots on GPU `device`.  Raises DeviceError, and leaves nothing behind then."""
        device_uuid = Driver().uuid(device)
        nbytes = 0
        try:
            page = max(PAGE_NBYTES, driver.granularity(device))
            nbytes = rounded(slots * slot_nbytes, page)
            slab = _Slab(driver.allocate(nbytes, device), nbytes, device)
        except driver.Refused as error:
            raise DeviceError(
                f"allocating {nbytes / 2**20:.0f} MiB for the slots on GPU {device} failed "
                f"({error}). Use fewer or smaller slots, stop who else uses that GPU, or take "
                'memory="ipc"'
            ) from error
        with _lock:
            _slabs[epoch, device] = slab
        return cls._over(slab, device_uuid, slots, slot_nbytes, writable=True)

    @classmethod
    def open(
        cls,
        epoch: bytes,
        handle: bytes,
        device_uuid: bytes,
        device: int,
        slots: int,
        slot_nbytes: int,
        *,
        ring: str,
        fetch: Callable[[], int],
    ) -> VmmMemory:
        """Opens the slots of `ring` under GPU `device`.

        `fetch` asks those who are in the ring for the descriptor, which is this object's then.  It
        is not asked if this process has the memory under that device already.  Raises DeviceError
        if `device` cannot reach the GPU of the slots, RingIncompatible, and what `fetch` raises.
        """
        owner_of(device, device_uuid, ring)
        nbytes = int.from_bytes(handle[:_SIZE_NBYTES], "little")
        if not slots * slot_nbytes <= nbytes <= _MAX_NBYTES:
            raise RingIncompatible(
                f"ring {ring!r}: its memory has {nbytes} bytes, not {slots} × {slot_nbytes}"
            )
        slab = _slabs.get((epoch, device))
        if slab is None:
            slab = _Slab(fetch(), nbytes, device)
            with _lock:
                slab = _slabs.setdefault((epoch, device), slab)
        try:
            return cls._over(slab, device_uuid, slots, slot_nbytes, writable=False)
        except DeviceError as error:
            raise DeviceError(f"ring {ring!r}: {error}") from error

    @classmethod
    def _over(
        cls, slab: _Slab, device_uuid: bytes, slots: int, slot_nbytes: int, *, writable: bool
    ) -> VmmMemory:
        handle = slab.nbytes.to_bytes(_SIZE_NBYTES, "little").ljust(64, b"\0")
        memory = cls(slab, handle, device_uuid, slab.device, slots, slot_nbytes)
        memory._memory(writable)  # now, so that nobody gets a ring whose slots cannot be mapped
        return memory
