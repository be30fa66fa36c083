"""The CUDA driver by ctypes: memory of the package's own.

native/memory has that of rings, and native/gpu.pyx the calls for frames.  `import gpuring` loads no
driver, and neither does this module.  Names and structures are those of cuda.h.  Calls need a
current context, and gpus.py makes that of a GPU current.

A function that allocates or maps leaves nothing behind if it raises.  But a Ctrl-C in the middle of
it would, so it is called within `uninterrupted` (cuda.py).
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from gpuring.native import Driver
from gpuring.native.gpu import Refused

IPC_NBYTES = 64
"""sizeof(CUipcMemHandle)"""


@functools.cache
def _library() -> Any:
    Driver()  # says what is missing
    library = ctypes.CDLL("libcuda.so.1")
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
