"""The CUDA driver's calls for memory that travels as a file descriptor, by ctypes.

They are made when a ring is created, opened or given up, and never for a frame.  `import gpuring`
loads no driver, and neither does this module.  Names and structures are those of cuda.h.

What allocates or maps leaves nothing behind if it raises.  But a Ctrl-C in the middle of it would,
so it is called within `uninterrupted` (cuda.py).
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

from gpuring.errors import DeviceError
from gpuring.native import Descriptor

_FILE_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_READ, _READ_WRITE = 1, 3  # CUmemAccess_flags
EXPORT_NBYTES = 64
"""sizeof(CUmemPoolPtrExportData)"""

# CUdevice_attribute
HAS_VIRTUAL_MEMORY, HAS_FILE_DESCRIPTORS, POOL_HANDLE_TYPES = 102, 103, 119


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _AllocationProp(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _PoolProps(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("max_nbytes", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


class Refused(Exception):
    """The driver refused a call.  The text names the call and the status."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status
        """The CUresult.  0: the driver has no such call."""


@functools.cache
def _library() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"there is no NVIDIA driver ({error}); use device='host'") from None


def _call(name: str, *args: Any) -> None:
    library = _library()
    try:
        function = getattr(library, name)
    except AttributeError:
        raise Refused(f"this NVIDIA driver has no {name}") from None
    status = function(*args)
    if status:
        text = ctypes.c_char_p()
        library.cuGetErrorName(status, ctypes.byref(text))
        raise Refused(f"{name}: {(text.value or b'CUresult').decode()} ({status})", status)


def _prop(device: int) -> _AllocationProp:
    return _AllocationProp(_PINNED, _FILE_DESCRIPTOR, _Location(_DEVICE, device))


def _exported(name: str, of: Any) -> Descriptor:
    """The descriptor of what was allocated.  No program that is started inherits it."""
    fd = ctypes.c_int(-1)
    _call(name, *(ctypes.byref(fd), of, _FILE_DESCRIPTOR, ctypes.c_ulonglong(0)))
    descriptor = Descriptor(fd.value)
    os.set_inheritable(descriptor.fd, False)
    return descriptor


# ---- virtual memory ------------------------------------------------------------------------------


def granularity(device: int) -> int:
    """Allocations have a multiple of so many bytes.  Raises Refused, as all of these do."""
    nbytes = ctypes.c_size_t()
    _call("cuMemGetAllocationGranularity", ctypes.byref(nbytes), ctypes.byref(_prop(device)), 0)
    return nbytes.value


def allocate(nbytes: int, device: int) -> Descriptor:
    """Memory on a GPU.  Returns its descriptor, which keeps it as long as any process has it open.

    No program that is started inherits the descriptor.
    """
    handle = ctypes.c_uint64()
    prop = _prop(device)
    size = ctypes.c_size_t(nbytes)
    _call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(prop), ctypes.c_ulonglong(0))
    try:
        return _exported("cuMemExportToShareableHandle", handle)
    finally:
        _call("cuMemRelease", handle)


def map_memory(fd: int, nbytes: int, device: int, *, writable: bool) -> int:
    """Maps memory for GPU `device`, whose context is current.  Returns the address."""
    handle, ptr, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t(nbytes)
    none = ctypes.c_ulonglong(0)
    _call(
        "cuMemImportFromShareableHandle",
        *(ctypes.byref(handle), ctypes.c_void_p(fd), _FILE_DESCRIPTOR),
    )
    try:
        start = ctypes.c_uint64(0)
        _call("cuMemAddressReserve", ctypes.byref(ptr), size, ctypes.c_size_t(0), start, none)
        try:
            _call("cuMemMap", ptr, size, ctypes.c_size_t(0), handle, none)
            try:
                access = _Access(_Location(_DEVICE, device), _READ_WRITE if writable else _READ)
                _call("cuMemSetAccess", ptr, size, ctypes.byref(access), ctypes.c_size_t(1))
            except BaseException:
                _call("cuMemUnmap", ptr, size)
                raise
        except BaseException:
            _call("cuMemAddressFree", ptr, size)
            raise
    finally:
        _call("cuMemRelease", handle)  # the mapping keeps the memory
    return ptr.value


def unmap_memory(ptr: int, nbytes: int) -> None:
    """Undoes map_memory.  No GPU work on the memory may be left."""
    address, size = ctypes.c_uint64(ptr), ctypes.c_size_t(nbytes)
    _call("cuMemUnmap", address, size)
    _call("cuMemAddressFree", address, size)


# ---- host memory ---------------------------------------------------------------------------------

_PORTABLE_MAPPED = 1 | 2  # CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP


def register(address: int, nbytes: int) -> int:
    """Locks whole pages of this process, and maps them into the GPU whose context is current.
    Returns their address there."""
    ptr = ctypes.c_uint64()
    where = ctypes.c_void_p(address)
    _call("cuMemHostRegister_v2", where, ctypes.c_size_t(nbytes), ctypes.c_uint(_PORTABLE_MAPPED))
    try:
        _call("cuMemHostGetDevicePointer_v2", ctypes.byref(ptr), where, ctypes.c_uint(0))
    except BaseException:
        _call("cuMemHostUnregister", where)
        raise
    return ptr.value


def unregister(address: int) -> None:
    """Undoes register, behind all GPU work of the device so far."""
    _call("cuCtxSynchronize")
    _call("cuMemHostUnregister", ctypes.c_void_p(address))


# ---- stream-ordered pools ------------------------------------------------------------------------

_DEFAULT_STREAM = ctypes.c_void_p(0)


def allocate_in_pool(nbytes: int, device: int) -> tuple[int, int, Descriptor, bytes]:
    """Memory in a new pool of GPU `device`, whose context is current.

    Returns the pool, the address, the descriptor of the pool, and EXPORT_NBYTES bytes that say
    where the memory is in it.  No program that is started inherits the descriptor.
    """
    pool, ptr = ctypes.c_void_p(), ctypes.c_uint64()
    descriptor: Descriptor | None = None
    props = _PoolProps(_PINNED, _FILE_DESCRIPTOR, _Location(_DEVICE, device))
    _call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(props))
    try:
        size = ctypes.c_size_t(nbytes)
        _call("cuMemAllocFromPoolAsync", ctypes.byref(ptr), size, pool, _DEFAULT_STREAM)
        _call("cuStreamSynchronize", _DEFAULT_STREAM)  # others may use it at once
        descriptor = _exported("cuMemPoolExportToShareableHandle", pool)
        data = (ctypes.c_ubyte * EXPORT_NBYTES)()
        _call("cuMemPoolExportPointer", data, ptr)  # refused before the pool itself is exported
        return pool.value or 0, ptr.value, descriptor, bytes(data)
    except BaseException:
        if descriptor is not None:
            descriptor.close()
        if ptr.value:
            _call("cuMemFreeAsync", ptr, _DEFAULT_STREAM)
        _call("cuMemPoolDestroy", pool)
        raise


def import_pool(fd: int, exported: bytes, device: int) -> tuple[int, int]:
    """Opens memory of allocate_in_pool for GPU `device`, whose context is current.  Returns the
    pool and the address."""
    pool, ptr = ctypes.c_void_p(), ctypes.c_uint64()
    none = ctypes.c_ulonglong(0)
    _call(
        "cuMemPoolImportFromShareableHandle",
        *(ctypes.byref(pool), ctypes.c_void_p(fd), _FILE_DESCRIPTOR, none),
    )
    try:
        let_reach_pool(pool.value or 0, device)
        data = (ctypes.c_ubyte * EXPORT_NBYTES).from_buffer_copy(exported)
        _call("cuMemPoolImportPointer", ctypes.byref(ptr), pool, data)
        return pool.value or 0, ptr.value
    except BaseException:
        _call("cuMemPoolDestroy", pool)
        raise


def let_reach_pool(pool: int, device: int) -> None:
    """Lets GPU `device` read and write the memory of a pool."""
    access = _Access(_Location(_DEVICE, device), _READ_WRITE)
    _call("cuMemPoolSetAccess", *(ctypes.c_void_p(pool), ctypes.byref(access), ctypes.c_size_t(1)))


def free_in_pool(pool: int, ptr: int) -> None:
    """Undoes allocate_in_pool or import_pool, behind all GPU work of the device so far."""
    _call("cuCtxSynchronize")
    _call("cuMemFreeAsync", ctypes.c_uint64(ptr), _DEFAULT_STREAM)
    _call("cuStreamSynchronize", _DEFAULT_STREAM)
    _call("cuMemPoolDestroy", ctypes.c_void_p(pool))
