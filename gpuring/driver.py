"""The CUDA driver's functions that CuPy lacks, from libcuda itself.  Loaded on first use."""

from __future__ import annotations

import ctypes
from functools import cache

from gpuring.errors import DeviceError

CAN_USE_64_BIT_STREAM_MEM_OPS = 122
"""CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS."""


@cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"there is no NVIDIA driver ({error}); use device='host'") from error


def function(name: str) -> int:
    """The address of a driver function, by its name in the library.  Raises DeviceError."""
    try:
        found = getattr(_library(), name)
    except AttributeError:
        raise DeviceError(
            f"this NVIDIA driver has no {name}: CUDA 12 or later is needed; update the driver"
        ) from None
    return ctypes.cast(found, ctypes.c_void_p).value or 0


def status_name(status: int) -> str:
    """ "CUDA_ERROR_INVALID_VALUE"."""
    name = ctypes.c_char_p()
    _library().cuGetErrorName(status, ctypes.byref(name))
    return name.value.decode() if name.value else f"CUresult {status}"


def attribute(number: int, device: int) -> int:
    """A device's attribute (CUdevice_attribute).  Raises DeviceError."""
    value = ctypes.c_int()
    status = _library().cuInit(0) or _library().cuDeviceGetAttribute(
        ctypes.byref(value), number, device
    )
    if status:
        raise DeviceError(
            f"GPU {device} cannot be asked for attribute {number}: {status_name(status)}"
        )
    return value.value


def uuid_of(device: int) -> bytes:
    """The 16 bytes that name a GPU (or MIG instance) in every process, whatever its ordinal there.

    Asked from the driver itself: CuPy's device properties cut the UUID at a zero byte.
    """
    name = ctypes.create_string_buffer(16)
    status = _library().cuInit(0) or _library().cuDeviceGetUuid_v2(name, device)
    if status:
        raise DeviceError(
            f"the driver does not tell the UUID of GPU {device}: {status_name(status)}"
        )
    return name.raw


def address_on_device(host_address: int) -> int:
    """Where the current device has host memory that is registered.  Raises DeviceError."""
    address = ctypes.c_uint64()
    status = _library().cuMemHostGetDevicePointer_v2(
        ctypes.byref(address), ctypes.c_void_p(host_address), 0
    )
    if status:
        raise DeviceError(f"the GPU has no address for the ring's header: {status_name(status)}")
    return address.value
