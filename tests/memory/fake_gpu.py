"""Fake GPUs, which only count what they have, and copy at once.

The package calls the driver by ctypes, and its C library by a table of functions.  Both are here.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import sys
import uuid
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from gpuring import native
from gpuring.memory import cuda, driver, frameworks, gpus, pinned
from gpuring.native import Descriptor
from gpuring.ring import ordering
from tests.helpers import raw_verbs

if TYPE_CHECKING:
    import pytest

CONTEXT = 1000
"""The address of the context of GPU 0.  Those of others follow it."""
_p = ctypes.c_void_p
_tables: list[Any] = []
"""The functions of all tables: objects that are dropped late call them."""
UUIDS = [uuid.UUID(int=k).bytes for k in range(1, 3)]


def put(pointer: Any, kind: Any, value: Any) -> None:
    """`pointer`: what ctypes.byref has made, or an address."""
    if hasattr(pointer, "_obj"):
        pointer._obj.value = value
    else:
        ctypes.cast(pointer, ctypes.POINTER(kind))[0] = value


def value_of(argument: Any) -> int:
    return int(getattr(argument, "value", argument) or 0)


class Handle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int))

    @staticmethod
    def at(address: int) -> Access:
        return ctypes.cast(address, ctypes.POINTER(Access))[0]


def forget() -> None:
    """Clears what the package remembers of the driver."""
    gc.collect()
    gpus.gpu.cache_clear()
    frameworks.cupy.cache_clear()


class GpuArray:
    """An array that looks to copies as if it was on a GPU.  Its memory is the host's."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values = values

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.values.__array_interface__ | {"stream": 1}


class Gpu:
    """libcuda.so.1 with two GPUs: what was allocated and mapped, by address, and which device is
    current."""

    def __init__(self) -> None:
        self.has: dict[int, str] = {}
        self.reached: list[int] = []
        """Devices that were let into memory of another one."""
        self.fds: list[int] = []
        self.refuses = -1
        """How many calls succeed before one is refused.  What gives back is not refused."""
        self.full = False
        self.refuses_to_register = 0
        """The CUresult of cuMemHostRegister; 0: it locks the pages."""
        self.lacks = ""
        """Why it has no timeline."""
        self.attributes: dict[int, int] = {}
        """Of each GPU, those that are not 0."""
        self.uuids = UUIDS
        self.reaches = {(0, 1), (1, 0)}
        """Which GPU has access to the memory of which other one."""
        self.waited_for: list[int] = []
        """Streams that the host has waited for."""
        self.called: list[tuple[str, int]] = []
        """Functions, and the device that was current."""
        self._addresses = count(1 << 21, 1 << 21)
        self.stack = [0]
        """The current device, and those before it."""
        functions = {name: self._function(name) for name in raw_verbs.driver_symbols()}
        _tables.append(functions)
        self.table = native.Driver(
            {name: ctypes.cast(each, _p).value or 0 for name, each in functions.items()}
        )

    def _function(self, name: str) -> Any:
        arguments = self.ARGUMENTS.get(name, ())
        return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(getattr(self, name))

    def put_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Makes it the driver of this process.  `forget` has to be called afterwards.

        torch has no current stream then, as if it were built without CUDA.  One with CUDA would ask
        the driver of this machine, which may have none."""
        monkeypatch.setattr(driver, "_library", lambda: self)
        for module in (gpus, cuda, pinned, ordering):
            monkeypatch.setattr(module, "Driver", lambda: self.table)
        if (torch := sys.modules.get("torch._C")) is not None:
            monkeypatch.delattr(torch, "_cuda_getCurrentRawStream", raising=False)
        forget()

    @property
    def device(self) -> int:
        return self.stack[-1]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def called(*args: Any) -> int:
            if name not in self.GIVE_BACK and name not in self.ASK:
                self.refuses -= 1
                if self.refuses == -1:
                    return 2
            self.called.append((name, self.device))
            does = self.CALLS.get(name, Gpu._nothing)
            return does(self, *args) or 0

        return called

    def kept(self) -> list[str]:
        """How many pieces of memory there are of each kind."""
        return [what for what in self.has.values() if what not in ("pool", "mapped")]

    def cupy(self) -> Any:
        """As much of CuPy as the package asks for."""

        class UnownedMemory:
            def __init__(self, ptr: int, nbytes: int, owner: object, device: int) -> None:
                self.ptr, self.nbytes, self.owner, self.device = ptr, nbytes, owner, device

        def ndarray(shape: Any, dtype: Any, pointer: Any) -> Any:
            device = SimpleNamespace(id=pointer.memory.device)
            return SimpleNamespace(shape=shape, dtype=dtype, data=pointer, device=device)

        return SimpleNamespace(
            cuda=SimpleNamespace(
                runtime=SimpleNamespace(is_hip=False, getDevice=lambda: self.device),
                UnownedMemory=UnownedMemory,
                MemoryPointer=lambda memory, offset: SimpleNamespace(
                    memory=memory, offset=offset, ptr=memory.ptr + offset
                ),
                get_current_stream=lambda: SimpleNamespace(ptr=0),
                ExternalStream=lambda _: contextlib.nullcontext(),
                Stream=None,
            ),
            ndarray=ndarray,
            empty=lambda shape, dtype: GpuArray(np.empty(shape, dtype)),
        )

    def torch(self) -> Any:
        """As much of torch as the package asks for."""
        return SimpleNamespace(
            cuda=SimpleNamespace(
                is_initialized=lambda: True,
                device=contextlib.nullcontext,
                stream=contextlib.nullcontext,
                ExternalStream=lambda stream, device: stream,
                default_stream=lambda device: 0,
            ),
            _C=SimpleNamespace(
                _cuda_getDevice=lambda: self.device, _cuda_getCurrentRawStream=lambda device: 0
            ),
            version=SimpleNamespace(cuda="13.0"),
            int32=np.dtype("i4"),
            empty=lambda shape, dtype, device: GpuArray(np.empty(shape, dtype)),
        )

    def descriptor(self) -> Descriptor:
        """A descriptor of the memory, as a process in the ring hands it over."""
        self.fds.append(os.memfd_create("gpuring-test"))
        return Descriptor(self.fds[-1])

    def open_fds(self) -> int:
        return sum(os.path.exists(f"/proc/self/fd/{fd}") for fd in self.fds)  # noqa: PTH110

    # ---- what the functions do -----------------------------------------------------------------

    def _nothing(self, *_: Any) -> None:
        pass

    def _gives(self, out: Any, what: str) -> int:
        if self.full:
            return 2
        address = next(self._addresses)
        put(out, ctypes.c_uint64, address)
        self.has[address] = what
        return 0

    def _imports(self, out: Any, fd: Any, what: str) -> int:
        return self._gives(out, what) if ctypes.c_int(value_of(fd)).value >= 0 else 1

    def _takes(self, value: Any, *_: Any) -> None:
        del self.has[value_of(value)]

    def _maps(self, ptr: int, *_: Any) -> None:
        self.has[ptr + 1] = "mapped"

    def _allows(self, ptr: int, _: Any, access: int, __: Any) -> None:
        allowed = Access.at(access)
        assert allowed.id == self.device
        self.has[ptr] = "mapped to write" if allowed.flags == 3 else "mapped to read"

    def _unmaps(self, ptr: int, *_: Any) -> None:
        del self.has[ptr + 1]

    def _exports(self, out: int, *_: Any) -> None:
        fd = os.memfd_create("gpuring-test")
        put(out, ctypes.c_int, fd)
        self.fds.append(fd)

    def _handle_of(self, out: Any, ptr: Any) -> None:
        at = ctypes.addressof(out._obj) if hasattr(out, "_obj") else out
        put(at, ctypes.c_uint64, value_of(ptr))

    def _registers(self, address: int, nbytes: int, _: Any) -> int:
        assert address % mmap.PAGESIZE == nbytes % mmap.PAGESIZE == 0
        if not self.refuses_to_register:
            self.has[address] = "registered"
        return self.refuses_to_register

    def _points(self, out: int, address: int, _: Any) -> None:
        put(out, ctypes.c_uint64, address)

    def _lets_reach_pool(self, _: Any, access: int, __: Any) -> None:
        allowed = Access.at(access)
        assert allowed.id == self.device
        if self.device:  # the memory is on GPU 0
            self.reached.append(self.device)

    # ---- what those of the table do ------------------------------------------------------------

    def _copies(self, to: int, source: int, nbytes: int, _: int) -> None:
        ctypes.memmove(to, source, nbytes)

    def _waits(self, stream: Any) -> None:
        """Notes a wait for a stream."""
        self.waited_for.append(value_of(stream))

    def _pushes(self, context: int) -> None:
        self.stack.append(context - CONTEXT)

    def _makes(self, out: int, _: int) -> None:
        put(out, _p, next(self._addresses))

    ARGUMENTS: ClassVar[dict[str, tuple[Any, ...]]] = {
        "cuDeviceGetUuid_v2": (_p, ctypes.c_int),
        "cuDevicePrimaryCtxRetain": (_p, ctypes.c_int),
        "cuCtxGetDevice": (_p,),
        "cuCtxPushCurrent_v2": (_p,),
        "cuCtxPopCurrent_v2": (_p,),
        "cuMemcpyAsync": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, _p),
        "cuMemcpy2DAsync_v2": (_p, _p),
        "cuStreamCreate": (_p, ctypes.c_uint),
        "cuEventCreate": (_p, ctypes.c_uint),
        "cuStreamSynchronize": (_p,),
        "cuPointerGetAttribute": (_p, ctypes.c_int, ctypes.c_uint64),
        "cuDeviceGetCount": (_p,),
        "cuDeviceGetAttribute": (_p, ctypes.c_int, ctypes.c_int),
        "cuDeviceCanAccessPeer": (_p, ctypes.c_int, ctypes.c_int),
        "cuCtxEnablePeerAccess": (_p, ctypes.c_uint),
        "cuThreadExchangeStreamCaptureMode": (_p,),
        "cuMemGetAddressRange_v2": (_p, _p, ctypes.c_uint64),
        "cuMemAlloc_v2": (_p, ctypes.c_size_t),
        "cuMemFree_v2": (ctypes.c_uint64,),
        "cuIpcGetMemHandle": (_p, ctypes.c_uint64),
        "cuIpcOpenMemHandle_v2": (_p, Handle, ctypes.c_uint),
        "cuIpcCloseMemHandle": (ctypes.c_uint64,),
        "cuMemGetAllocationGranularity": (_p, _p, ctypes.c_int),
        "cuMemCreate": (_p, ctypes.c_size_t, _p, ctypes.c_ulonglong),
        "cuMemRelease": (ctypes.c_uint64,),
        "cuMemRetainAllocationHandle": (_p, _p),
        "cuMemExportToShareableHandle": (_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_ulonglong),
        "cuMemImportFromShareableHandle": (_p, _p, ctypes.c_int),
        "cuMemAddressReserve": (_p, *[ctypes.c_uint64] * 4),
        "cuMemAddressFree": (ctypes.c_uint64, ctypes.c_size_t),
        "cuMemMap": (*[ctypes.c_uint64] * 5,),
        "cuMemUnmap": (ctypes.c_uint64, ctypes.c_size_t),
        "cuMemSetAccess": (ctypes.c_uint64, ctypes.c_size_t, _p, ctypes.c_size_t),
        "cuMemPoolCreate": (_p, _p),
        "cuMemPoolDestroy": (ctypes.c_uint64,),
        "cuMemAllocFromPoolAsync": (_p, ctypes.c_size_t, _p, _p),
        "cuMemFreeAsync": (ctypes.c_uint64, _p),
        "cuMemPoolExportToShareableHandle": (_p, _p, ctypes.c_int, ctypes.c_ulonglong),
        "cuMemPoolImportFromShareableHandle": (_p, _p, ctypes.c_int, ctypes.c_ulonglong),
        "cuMemPoolImportPointer": (_p, _p, _p),
        "cuMemPoolSetAccess": (_p, _p, ctypes.c_size_t),
        "cuMemHostRegister_v2": (ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint),
        "cuMemHostUnregister": (ctypes.c_uint64,),
        "cuMemHostGetDevicePointer_v2": (_p, ctypes.c_uint64, ctypes.c_uint),
    }
    """Of the functions of the table that do something here."""

    GIVE_BACK: ClassVar[dict[str, Callable[..., int | None]]] = {
        "cuCtxPopCurrent_v2": lambda gpu, _: gpu.stack.pop() and 0,
        "cuMemFree_v2": _takes,
        "cuIpcCloseMemHandle": _takes,
        "cuMemRelease": _takes,
        "cuMemAddressFree": _takes,
        "cuMemFreeAsync": _takes,
        "cuMemPoolDestroy": _takes,
        "cuMemUnmap": _unmaps,
        "cuMemHostUnregister": _takes,
    }
    ASK: ClassVar[dict[str, Callable[..., int | None]]] = {
        "cuInit": _nothing,
        "cuDeviceGetAttribute": lambda gpu, out, number, _: put(
            out, ctypes.c_int, gpu.attributes.get(number, 0)
        ),
        "cuGetErrorName": _nothing,
        "cuDeviceGetCount": lambda gpu, out: put(out, ctypes.c_int, len(gpu.uuids)),
        "cuDeviceCanAccessPeer": lambda gpu, out, *pair: put(
            out, ctypes.c_int, pair in gpu.reaches
        ),
        "cuDeviceGetUuid_v2": lambda gpu, out, k: ctypes.memmove(out, gpu.uuids[k], 16) and 0,
        "cuDevicePrimaryCtxRetain": lambda gpu, out, k: put(out, _p, CONTEXT + k),
        "cuCtxGetDevice": lambda gpu, out: put(out, ctypes.c_int, gpu.device),
    }
    CALLS: ClassVar[dict[str, Callable[..., int | None]]] = {
        "cuCtxPushCurrent_v2": _pushes,
        "cuCtxEnablePeerAccess": lambda gpu, *_: gpu.reached.append(gpu.device),
        "cuMemAlloc_v2": lambda gpu, out, *_: gpu._gives(out, "allocated"),
        "cuIpcGetMemHandle": _handle_of,
        "cuIpcOpenMemHandle_v2": lambda gpu, out, *_: gpu._gives(out, "opened"),
        "cuMemGetAllocationGranularity": lambda gpu, out, *_: put(out, ctypes.c_size_t, 2 << 20),
        "cuMemCreate": lambda gpu, out, *_: gpu._gives(out, "created"),
        "cuMemExportToShareableHandle": _exports,
        "cuMemImportFromShareableHandle": lambda gpu, out, fd, *_: gpu._imports(
            out, fd, "imported"
        ),
        "cuMemAddressReserve": lambda gpu, out, *_: gpu._gives(out, "reserved"),
        "cuMemMap": _maps,
        "cuMemSetAccess": _allows,
        "cuMemPoolCreate": lambda gpu, out, *_: gpu._gives(out, "pool"),
        "cuMemPoolExportToShareableHandle": _exports,
        "cuMemAllocFromPoolAsync": lambda gpu, out, *_: gpu._gives(out, "allocated"),
        "cuMemPoolImportFromShareableHandle": lambda gpu, out, fd, *_: gpu._imports(
            out, fd, "pool"
        ),
        "cuMemPoolImportPointer": lambda gpu, out, *_: gpu._gives(out, "opened"),
        "cuMemPoolSetAccess": _lets_reach_pool,
        "cuMemHostRegister_v2": _registers,
        "cuMemHostGetDevicePointer_v2": _points,
        "cuMemcpyAsync": _copies,
        "cuStreamSynchronize": _waits,
        "cuStreamCreate": _makes,
        "cuEventCreate": _makes,
        **GIVE_BACK,
        **ASK,
    }
