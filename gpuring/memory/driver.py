"""The CUDA driver by ctypes: memory of every kind.

These calls are made when a ring is created, opened or given up.  native/gpu.pyx has those for
frames.  `import gpuring` loads no driver, and neither does this module.  Names and structures are
those of cuda.h.  Calls need a current context, and gpus.py makes that of a GPU current.

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
from gpuring.native.gpu import Refused

_FILE_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_READ, _READ_WRITE = 1, 3  # CUmemAccess_flags
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
IPC_NBYTES = 64
"""sizeof(CUipcMemHandle)"""
EXPORT_NBYTES = 64
"""sizeof(CUmemPoolPtrExportData)"""

# CUresult
_INVALID_VALUE = 1

# CUdevice_attribute
INTEGRATED, HOST_REGISTER_SUPPORTED, CAN_USE_64_BIT_STREAM_MEM_OPS = 18, 99, 122
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


@functools.cache
def _library() -> Any:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"there is no NVIDIA driver ({error}); use device='host'") from None
    _check(library, "cuInit", library.cuInit(0))
    return library


def check(name: str, status: int) -> None:
    """Raises Refused for a status of the function `name`."""
    _check(_library(), name, status)


def _check(library: Any, name: str, status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        library.cuGetErrorName(status, ctypes.byref(text))
        raise Refused(f"{name}: {(text.value or b'CUresult').decode()} ({status})", status)


def call(name: str, *args: Any) -> None:
    """Calls a function of the driver.  Raises Refused for what it refuses, DeviceError if there is
    no driver."""
    status = ask(name, *args)
    if status:
        check(name, status)


def ask(name: str, *args: Any) -> int:
    """Calls a function of the driver, and returns its CUresult."""
    try:
        function = getattr(_library(), name)
    except AttributeError:
        raise Refused(f"this NVIDIA driver has no {name}") from None
    return int(function(*args))


def finish() -> None:
    """Waits for all work of this process on the current GPU."""
    call("cuCtxSynchronize")


# ---- plain memory --------------------------------------------------------------------------------


class _IpcHandle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * IPC_NBYTES),)


def allocate_plain(nbytes: int) -> int:
    """Memory on the current GPU, as cudaMalloc makes it.  Returns the address."""
    ptr = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(ptr), ctypes.c_size_t(nbytes))
    return ptr.value


def free_plain(ptr: int) -> None:
    """Undoes allocate_plain, behind all GPU work of the device so far."""
    call("cuMemFree_v2", ctypes.c_uint64(ptr))


def export_plain(ptr: int) -> bytes:
    """IPC_NBYTES bytes from which other processes open the allocation at this address."""
    handle = _IpcHandle()
    call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(ptr))
    return bytes(handle)


def allocation_of(ptr: int) -> tuple[int, int]:
    """The address and the size of the allocation, or of the mapping, that an address is in."""
    base, nbytes = ctypes.c_uint64(), ctypes.c_size_t()
    at = ctypes.c_uint64(ptr)
    call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(nbytes), at)
    return base.value, nbytes.value


def open_plain(handle: bytes) -> int:
    """Opens memory of export_plain for the current GPU.  Returns the address."""
    ptr, theirs = ctypes.c_uint64(), _IpcHandle.from_buffer_copy(handle)
    call("cuIpcOpenMemHandle_v2", ctypes.byref(ptr), theirs, ctypes.c_uint(_LAZY_PEER_ACCESS))
    return ptr.value


def close_plain(ptr: int) -> None:
    """Undoes open_plain."""
    call("cuIpcCloseMemHandle", ctypes.c_uint64(ptr))


# ---- what travels as a file descriptor -----------------------------------------------------------


def _prop(device: int) -> _AllocationProp:
    return _AllocationProp(_PINNED, _FILE_DESCRIPTOR, _Location(_DEVICE, device))


def _exported(name: str, of: Any) -> Descriptor:
    """The descriptor of what was allocated.  No program that is started inherits it."""
    fd = ctypes.c_int(-1)
    call(name, *(ctypes.byref(fd), of, _FILE_DESCRIPTOR, ctypes.c_ulonglong(0)))
    descriptor = Descriptor(fd.value)
    os.set_inheritable(descriptor.fd, False)
    return descriptor


# ---- virtual memory ------------------------------------------------------------------------------


def granularity(device: int) -> int:
    """Allocations have a multiple of so many bytes.  Raises Refused, as all of these do."""
    nbytes = ctypes.c_size_t()
    call("cuMemGetAllocationGranularity", ctypes.byref(nbytes), ctypes.byref(_prop(device)), 0)
    return nbytes.value


def allocate(nbytes: int, device: int) -> Descriptor:
    """Memory on a GPU.  Returns its descriptor, which keeps it as long as any process has it open.

    No program that is started inherits the descriptor.
    """
    handle = ctypes.c_uint64()
    prop = _prop(device)
    size = ctypes.c_size_t(nbytes)
    call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(prop), ctypes.c_ulonglong(0))
    try:
        return _exported("cuMemExportToShareableHandle", handle)
    finally:
        call("cuMemRelease", handle)


def export_mapped(ptr: int) -> Descriptor | None:
    """The descriptor of virtual memory that is mapped at this address.  None: it is other memory.
    Raises Refused for virtual memory that was not made to be exported."""
    handle = ctypes.c_uint64()
    status = ask("cuMemRetainAllocationHandle", ctypes.byref(handle), ctypes.c_void_p(ptr))
    if status == _INVALID_VALUE:
        return None
    check("cuMemRetainAllocationHandle", status)
    try:
        return _exported("cuMemExportToShareableHandle", handle)
    finally:
        call("cuMemRelease", handle)


def map_memory(fd: int, nbytes: int, device: int, *, writable: bool) -> int:
    """Maps memory for GPU `device`, whose context is current.  Returns the address."""
    handle, ptr, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t(nbytes)
    none = ctypes.c_ulonglong(0)
    call(
        "cuMemImportFromShareableHandle",
        *(ctypes.byref(handle), ctypes.c_void_p(fd), _FILE_DESCRIPTOR),
    )
    try:
        start = ctypes.c_uint64(0)
        call("cuMemAddressReserve", ctypes.byref(ptr), size, ctypes.c_size_t(0), start, none)
        try:
            call("cuMemMap", ptr, size, ctypes.c_size_t(0), handle, none)
            try:
                access = _Access(_Location(_DEVICE, device), _READ_WRITE if writable else _READ)
                call("cuMemSetAccess", ptr, size, ctypes.byref(access), ctypes.c_size_t(1))
            except BaseException:
                call("cuMemUnmap", ptr, size)
                raise
        except BaseException:
            call("cuMemAddressFree", ptr, size)
            raise
    finally:
        call("cuMemRelease", handle)  # the mapping keeps the memory
    return ptr.value


def unmap_memory(ptr: int, nbytes: int) -> None:
    """Undoes map_memory.  No GPU work on the memory may be left."""
    address, size = ctypes.c_uint64(ptr), ctypes.c_size_t(nbytes)
    call("cuMemUnmap", address, size)
    call("cuMemAddressFree", address, size)


# ---- host memory ---------------------------------------------------------------------------------

_PORTABLE_MAPPED = 1 | 2  # CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP


def register(address: int, nbytes: int) -> int:
    """Locks whole pages of this process, and maps them into the GPU whose context is current.
    Returns their address there."""
    ptr = ctypes.c_uint64()
    where = ctypes.c_void_p(address)
    call("cuMemHostRegister_v2", where, ctypes.c_size_t(nbytes), ctypes.c_uint(_PORTABLE_MAPPED))
    try:
        call("cuMemHostGetDevicePointer_v2", ctypes.byref(ptr), where, ctypes.c_uint(0))
    except BaseException:
        call("cuMemHostUnregister", where)
        raise
    return ptr.value


def unregister(address: int) -> None:
    """Undoes register, behind all GPU work of the device so far."""
    finish()
    call("cuMemHostUnregister", ctypes.c_void_p(address))


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
    call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(props))
    try:
        size = ctypes.c_size_t(nbytes)
        call("cuMemAllocFromPoolAsync", ctypes.byref(ptr), size, pool, _DEFAULT_STREAM)
        call("cuStreamSynchronize", _DEFAULT_STREAM)  # others may use it at once
        descriptor = _exported("cuMemPoolExportToShareableHandle", pool)
        data = (ctypes.c_ubyte * EXPORT_NBYTES)()
        call("cuMemPoolExportPointer", data, ptr)  # refused before the pool itself is exported
        return pool.value or 0, ptr.value, descriptor, bytes(data)
    except BaseException:
        if descriptor is not None:
            descriptor.close()
        if ptr.value:
            call("cuMemFreeAsync", ptr, _DEFAULT_STREAM)
        call("cuMemPoolDestroy", pool)
        raise


def import_pool(fd: int, exported: bytes, device: int) -> tuple[int, int]:
    """Opens memory of allocate_in_pool for GPU `device`, whose context is current.  Returns the
    pool and the address."""
    pool, ptr = ctypes.c_void_p(), ctypes.c_uint64()
    none = ctypes.c_ulonglong(0)
    call(
        "cuMemPoolImportFromShareableHandle",
        *(ctypes.byref(pool), ctypes.c_void_p(fd), _FILE_DESCRIPTOR, none),
    )
    try:
        let_reach_pool(pool.value or 0, device)
        data = (ctypes.c_ubyte * EXPORT_NBYTES).from_buffer_copy(exported)
        call("cuMemPoolImportPointer", ctypes.byref(ptr), pool, data)
        return pool.value or 0, ptr.value
    except BaseException:
        call("cuMemPoolDestroy", pool)
        raise


def let_reach_pool(pool: int, device: int) -> None:
    """Lets GPU `device` read and write the memory of a pool."""
    access = _Access(_Location(_DEVICE, device), _READ_WRITE)
    call("cuMemPoolSetAccess", *(ctypes.c_void_p(pool), ctypes.byref(access), ctypes.c_size_t(1)))


def free_in_pool(pool: int, ptr: int) -> None:
    """Undoes allocate_in_pool or import_pool, behind all GPU work of the device so far."""
    finish()
    call("cuMemFreeAsync", ctypes.c_uint64(ptr), _DEFAULT_STREAM)
    call("cuStreamSynchronize", _DEFAULT_STREAM)
    call("cuMemPoolDestroy", ctypes.c_void_p(pool))
