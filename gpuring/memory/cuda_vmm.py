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
import weakref
from collections.abc import Callable

from gpuring.errors import DeviceError, RingIncompatible
from gpuring.memory import cuda, driver
from gpuring.native import Descriptor, Driver
from gpuring.native.gpu import Refused

_SIZE_NBYTES = 8
"""The bytes of the handle that have the size."""
_MAX_NBYTES = 1 << 50


class _Slab(cuda.Kept):
    """The memory in this process under one device: a descriptor, and up to two mappings."""

    def __init__(self, descriptor: Descriptor, nbytes: int, device: int) -> None:
        super().__init__(device, descriptor.close)
        self._descriptor = descriptor
        self.fd = descriptor.fd
        self.nbytes = nbytes
        self._views: weakref.WeakValueDictionary[bool, cuda.Mapping] = weakref.WeakValueDictionary()

    def view(self, writable: bool) -> cuda.Mapping:
        with cuda.lock:
            view = self._views.get(writable)
            if view is None:
                view = self._views[writable] = self._mapped(writable)
            return view

    def _mapped(self, writable: bool) -> cuda.Mapping:
        def mapped() -> cuda.Mapping:
            ptr = driver.map_memory(self.fd, self.nbytes, self.device, writable=writable)
            undo = functools.partial(_unmap, ptr, self.nbytes)
            return cuda.Mapping(ptr, self.device, undo, self)

        try:
            mapping = cuda.uninterrupted(self.device, mapped)
        except Refused as error:
            use = "reading and writing" if writable else "reading"
            raise DeviceError(
                f"{self.nbytes / 2**20:.0f} MiB of slots cannot be mapped into GPU {self.device} "
                f"for {use} ({error})"
            ) from error
        # The driver knows it as memory of a GPU, so nobody has lied who handed it over.  A close
        # that waits has freed the memory when it returns.
        self._descriptor.aside = False
        return mapping


def _unmap(ptr: int, nbytes: int) -> None:
    driver.finish()  # unlike cuMemFree, the driver does not wait for work on what is unmapped
    driver.unmap_memory(ptr, nbytes)


_slabs: weakref.WeakValueDictionary[tuple[bytes, int], _Slab] = weakref.WeakValueDictionary()
"""The memory that this process has, by the epoch of its ring and the device."""


def lacks(device: int) -> str:
    """Why GPU `device` cannot have such memory, in one line.  "" if it can.  Raises DeviceError."""
    able = Driver().attribute
    if able(driver.HAS_VIRTUAL_MEMORY, device) and able(driver.HAS_FILE_DESCRIPTORS, device):
        return ""
    return f"GPU {device} cannot share virtual memory by file descriptors"


class VmmMemory(cuda.CudaMemory):
    """Slots that other processes map from a descriptor.  `handle` has the size of the memory."""

    kind = "vmm"
    read_only = True

    @classmethod
    def create(cls, epoch: bytes, slots: int, slot_nbytes: int, device: int) -> VmmMemory:
        """Allocates slots on GPU `device`.  Raises DeviceError, and leaves nothing behind then."""
        nbytes = cuda.rounded(slots * slot_nbytes)

        def make() -> _Slab:
            whole = cuda.rounded(nbytes, max(cuda.PAGE_NBYTES, driver.granularity(device)))
            return _Slab(driver.allocate(whole, device), whole, device)

        slab = cuda.allocated(nbytes, device, make, 'take memory="ipc"')
        return cls._of(slab, epoch, slots, slot_nbytes)

    @classmethod
    def over(
        cls, ptr: int, nbytes: int, epoch: bytes, slots: int, slot_nbytes: int, device: int
    ) -> VmmMemory | None:
        """Slots in virtual memory of `nbytes` bytes at an address.  None: it is other memory.
        Raises Refused, DeviceError."""

        def exported() -> _Slab | None:
            descriptor = driver.export_mapped(ptr)
            return None if descriptor is None else _Slab(descriptor, nbytes, device)

        slab = cuda.uninterrupted(device, exported)
        return None if slab is None else cls._of(slab, epoch, slots, slot_nbytes)

    @classmethod
    def _of(cls, slab: _Slab, epoch: bytes, slots: int, slot_nbytes: int) -> VmmMemory:
        device_uuid = Driver().uuid(slab.device)
        with cuda.lock:
            _slabs[epoch, slab.device] = slab
        handle = slab.nbytes.to_bytes(_SIZE_NBYTES, "little").ljust(64, b"\0")
        made = cuda.Slots(handle, device_uuid, slots, slot_nbytes, epoch)
        return cls._over(slab, made, writable=True)

    @classmethod
    def open(
        cls, wanted: cuda.Slots, device: int, *, ring: str, fetch: Callable[[], Descriptor]
    ) -> VmmMemory:
        """Opens the slots of `ring` under GPU `device`.

        `fetch` asks those who are in the ring for the descriptor.  It is not asked if this process
        has the memory under that device already.  Raises DeviceError if `device` cannot reach the
        GPU of the slots, RingIncompatible, and what `fetch` raises.
        """
        cuda.owner_of(device, wanted.device_uuid, ring)
        nbytes = int.from_bytes(wanted.handle[:_SIZE_NBYTES], "little")
        if not wanted.nbytes <= nbytes <= _MAX_NBYTES:
            raise RingIncompatible(
                f"ring {ring!r}: its memory has {nbytes} bytes, not "
                f"{wanted.slots} × {wanted.slot_nbytes}"
            )
        slab = _slabs.get((wanted.epoch, device))
        if slab is None:
            slab = _Slab(fetch(), nbytes, device)
            with cuda.lock:
                slab = _slabs.setdefault((wanted.epoch, device), slab)
        try:
            return cls._over(slab, wanted, writable=False)
        except DeviceError as error:
            raise DeviceError(f"ring {ring!r}: {error}") from error

    @classmethod
    def _over(cls, slab: _Slab, slots: cuda.Slots, *, writable: bool) -> VmmMemory:
        memory = cls(slab, slots, slab.device)
        memory._memory(writable)  # now, so that nobody gets a ring whose slots cannot be mapped
        return memory
