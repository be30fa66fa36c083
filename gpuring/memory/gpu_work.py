"""What the package itself enqueues on a GPU: copies and fills, by the driver's functions.

A stream is the handle of a CUstream as an int.  That of a default stream means the one of the
current device, so each call is made where the device of its stream is current (`driver.current`).
All of them raise Refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from typing import Any

from gpuring.memory import driver
from gpuring.memory.driver import call

_UNIFIED = 4  # CU_MEMORYTYPE_UNIFIED: the driver finds out where an address is
_NON_BLOCKING, _NO_TIMING = 1, 2  # CU_STREAM_NON_BLOCKING, CU_EVENT_DISABLE_TIMING
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

DONE, NOT_READY = 0, 600
"""CUresults of a query.  Any other one, also while another thread's capture forbids to ask, says
nothing of the work."""


def _side(name: str) -> list[tuple[str, Any]]:
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    fields = [("x", size), ("y", size), ("type", ctypes.c_int), ("host", pointer)]
    fields += [("device", ctypes.c_uint64), ("array", pointer), ("pitch", size)]
    return [(f"{name}_{field}", kind) for field, kind in fields]


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D"""

    _fields_ = (
        *_side("source"),
        *_side("to"),
        ("width", ctypes.c_size_t),
        ("rows", ctypes.c_size_t),
    )


def copy(to: int, source: int, nbytes: int, stream: int) -> None:
    """Enqueues a copy from address to address.  The driver finds out where the two are, and copies
    between GPUs without peer access through the host."""
    sized = ctypes.c_size_t(nbytes)
    call("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(source), sized, _stream(stream))


def copy_rows(
    to: int, to_pitch: int, source: int, source_pitch: int, width: int, rows: int, stream: int
) -> None:
    """The same for rows of `width` bytes, each `pitch` bytes behind the one before."""
    what = _Copy2D(source_type=_UNIFIED, source_device=source, source_pitch=source_pitch)
    what.to_type, what.to_device, what.to_pitch = _UNIFIED, to, to_pitch
    what.width, what.rows = width, rows
    call("cuMemcpy2DAsync_v2", ctypes.byref(what), _stream(stream))


def fill(ptr: int, value: int, nbytes: int, stream: int) -> None:
    """Enqueues that every byte becomes `value`."""
    sized = ctypes.c_size_t(nbytes)
    call("cuMemsetD8Async", ctypes.c_uint64(ptr), ctypes.c_ubyte(value), sized, _stream(stream))


def synchronize(stream: int) -> None:
    """Waits for all work so far on a stream."""
    call("cuStreamSynchronize", _stream(stream))


def device_of(ptr: int) -> int:
    """The GPU that an address belongs to."""
    device = ctypes.c_int()
    address = ctypes.c_uint64(ptr)
    call("cuPointerGetAttribute", ctypes.byref(device), ctypes.c_int(_DEVICE_ORDINAL), address)
    return device.value


def _stream(handle: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(handle)


class _Owned:
    """A handle of the driver's on GPU `device`, which is current when it is made.  It is given back
    when this object is gone, but not at interpreter shutdown or after fork()."""

    def __init__(self, device: int, handle: int, destroy: str) -> None:
        self.device, self.handle = device, handle
        self._finalizer = weakref.finalize(self, _destroy, destroy, handle, device, os.getpid())
        self._finalizer.atexit = False


def _destroy(name: str, handle: int, device: int, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(Exception), driver.current(device):
            call(name, ctypes.c_void_p(handle))


class Stream(_Owned):
    """A stream.  The default streams do not wait for it, nor it for them."""

    def __init__(self, device: int) -> None:
        made = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(made), ctypes.c_uint(_NON_BLOCKING))
        super().__init__(device, made.value or 0, "cuStreamDestroy_v2")


class Event(_Owned):
    """An event."""

    def __init__(self, device: int) -> None:
        made = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(made), ctypes.c_uint(_NO_TIMING))
        super().__init__(device, made.value or 0, "cuEventDestroy_v2")

    def record(self, stream: int) -> None:
        """The event is complete when all work so far on a stream of its device is."""
        call("cuEventRecord", self._raw, _stream(stream))

    def hold(self, stream: int) -> None:
        """Makes a stream of the current device wait for the event."""
        call("cuStreamWaitEvent", _stream(stream), self._raw, ctypes.c_uint(0))

    def query(self) -> int:
        """DONE, NOT_READY or another CUresult."""
        return driver.ask("cuEventQuery", self._raw)

    def synchronize(self) -> None:
        """Waits until the event is complete."""
        call("cuEventSynchronize", self._raw)

    @property
    def _raw(self) -> Any:
        return ctypes.c_void_p(self.handle)


class PinnedBuffer(_Owned):
    """Memory of the host that the GPU copies to and from by itself."""

    def __init__(self, device: int, nbytes: int) -> None:
        made = ctypes.c_void_p()
        call("cuMemAllocHost_v2", ctypes.byref(made), ctypes.c_size_t(nbytes))
        super().__init__(device, made.value or 0, "cuMemFreeHost")
        self.bytes = (ctypes.c_ubyte * nbytes).from_address(self.handle)
        """Only as long as this object is there."""
