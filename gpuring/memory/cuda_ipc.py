"""Slots in one allocation of GPU memory, shared by legacy CUDA IPC and shown as CuPy arrays.

The creator calls cudaMalloc once and puts the 64-byte handle of that memory into the header.  It
does not use CuPy's pool, because a handle stands for a whole allocation.  Others open the handle
once for each process and device, under the device that is current when they attach.  Under another
device it would cost a context of 500 MB.

A `_Mapping` undoes itself when the last array over it is gone.  It does not do so at interpreter
shutdown or after fork(), and the end of the process undoes it as well.  The creator's memory is
freed only after a close() that was told that no other process has it.  Otherwise it stays until the
process ends, because cudaFree is undefined while others have the memory open (CUDA Runtime API,
cudaIpcOpenMemHandle).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuring._core import Driver
from gpuring.errors import DeviceError, RingClosed
from gpuring.integers import integer

if TYPE_CHECKING:
    from gpuring.spec import Field

PAGE_NBYTES = 2 << 20
"""The memory has a multiple of this size.  The driver shares whole pages, so nothing else may be on
them."""

USE_HOST = "Use device='host', or run on a machine with an NVIDIA GPU"

_CAN_USE_64_BIT_STREAM_MEM_OPS = 122  # CUdevice_attribute

# cudaError_t, which CuPy reports as plain numbers.
_INVALID_VALUE, _INITIALIZATION, _INSUFFICIENT_DRIVER, _NO_DEVICE = 1, 3, 35, 100
_DEVICE_UNINITIALIZED, _MAP_FAILED, _INVALID_HANDLE, _PEER_ALREADY_ENABLED = 201, 205, 400, 704
_CREATOR_GONE = (_INVALID_VALUE, _DEVICE_UNINITIALIZED, _MAP_FAILED, _INVALID_HANDLE)


def load_cupy() -> Any:
    """The cupy package.  Raises DeviceError if it cannot be imported."""
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
            why = "CuPy is not installed"
        else:
            lines = [line.strip() for line in str(error).splitlines() if line.strip(" =")]
            why = f"CuPy cannot be imported ({lines[-1] if lines else 'no reason given'})"
        raise DeviceError(
            f"{why}: pip install 'gpuring[cuda12]' or, for a CUDA 13 driver, 'gpuring[cuda13]'; "
            "or use device='host'"
        ) from error


def device_for(device: str | int | None) -> int:
    """The ordinal of the GPU that "cuda", "cuda:1", 1 or None means, if a ring can live on it.

    None and "cuda" are CuPy's current device.  Creates no CUDA context.  Raises DeviceError with
    the fix in its text, TypeError or ValueError for what names no device.
    """
    if device is None or device == "cuda":
        return _usable(None)
    if isinstance(device, str):
        kind, _, number = device.partition(":")
        if kind != "cuda" or not number.isdecimal():
            raise ValueError(f"device is 'host', 'cuda' or 'cuda:N', not {device!r}")
        device = int(number)
    device = integer(device, "device", "'host', 'cuda', 'cuda:N', a GPU's number or None")
    if device < 0:
        raise ValueError(f"device is a GPU's number, 0 or more, not {device}")
    return _usable(device)


def available() -> tuple[bool, str]:
    """Whether this process's current GPU can hold rings, and if not, why, in one line."""
    try:
        device_for(None)
    except DeviceError as error:
        return False, str(error)
    return True, ""


def timeline_supported(device: int) -> tuple[bool, str]:
    """Whether rings on GPU `device` can have a timeline, and if not, why, in one line."""
    try:
        runtime = load_cupy().cuda.runtime
        if not Driver().attribute(_CAN_USE_64_BIT_STREAM_MEM_OPS, device):
            return False, f"GPU {device} has no 64-bit stream waits"
        if not runtime.deviceGetAttribute(runtime.cudaDevAttrHostRegisterSupported, device):
            return False, f"GPU {device} cannot map host memory that CUDA did not allocate"
    except DeviceError as error:
        return False, str(error)
    except RuntimeError as error:  # CuPy's CUDARuntimeError
        return False, f"GPU {device} cannot be asked about stream waits ({error})"
    return True, ""


def _usable(ordinal: int | None) -> int:
    runtime = load_cupy().cuda.runtime
    with contextlib.suppress(OSError):
        if "microsoft" in Path("/proc/sys/kernel/osrelease").read_text().lower():
            raise DeviceError(f"WSL2 does not support CUDA IPC between processes. {USE_HOST}")
    if runtime.is_hip:
        raise DeviceError(f"this CuPy is built for ROCm; gpuring needs CUDA. {USE_HOST}")
    try:
        count = int(runtime.getDeviceCount())
        device = int(runtime.getDevice()) if ordinal is None else ordinal
        if device >= count:
            raise DeviceError(
                f"there is no GPU {device}: this process sees {count}, from 0 on ({_visible()})"
            )
        integrated = runtime.deviceGetAttribute(runtime.cudaDevAttrIntegrated, device)
    except runtime.CUDARuntimeError as error:
        raise _no_gpu(error) from error
    if integrated:
        raise DeviceError(
            f"GPU {device} is integrated (Tegra/Jetson): CUDA IPC does not work there. {USE_HOST}"
        )
    return device


def _no_gpu(error: Any) -> DeviceError:
    why = {
        _INSUFFICIENT_DRIVER: "there is no NVIDIA driver, or one older than CuPy's CUDA",
        _NO_DEVICE: f"the NVIDIA driver shows none ({_visible()})",
        _INITIALIZATION: "CUDA does not start; after fork() it cannot: use the 'spawn' method",
    }.get(error.status, "CUDA does not start")
    return DeviceError(f"no usable GPU: {why} ({error}). {USE_HOST}")


def _visible() -> str:
    return f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}"


class _Mapping:
    """The memory of a ring in this process's address space.  Every array over it keeps it."""

    def __init__(self, ptr: int, device: int, undo: Callable[[int], None]) -> None:
        self.ptr = ptr
        self.device = device
        self.after: list[Callable[[], None]] = []
        """Functions that are called when it is undone."""
        self._finalizer = weakref.finalize(self, _undo, undo, ptr, device, os.getpid(), self.after)
        self._finalizer.atexit = False


def _undo(
    undo: Callable[[int], None], ptr: int, device: int, pid: int, after: list[Callable[[], None]]
) -> None:
    if os.getpid() == pid:  # after fork() a child may not touch CUDA
        with contextlib.suppress(Exception), load_cupy().cuda.Device(device):
            undo(ptr)
        for call in after:
            call()


_lock = threading.Lock()
_created: weakref.WeakValueDictionary[bytes, _Mapping] = weakref.WeakValueDictionary()
_imported: weakref.WeakValueDictionary[tuple[bytes, int], _Mapping] = weakref.WeakValueDictionary()
_kept: dict[bytes, _Mapping] = {}
"""Memory that this process has made and that others may have open.  It is kept until its rings are
closed and unused, or until the process ends."""


class CudaMemory:
    """The slots of a GPU ring (gpuring.memory.Memory)."""

    def __init__(
        self,
        mapping: _Mapping,
        handle: bytes,
        device_uuid: bytes,
        device: int,
        slots: int,
        slot_nbytes: int,
    ) -> None:
        self.handle = handle
        self.device_uuid = device_uuid
        self.device = device
        """The ordinal in this process of the device under which the slots are mapped.  The arrays
        are on this device, too."""
        self._slot_nbytes = slot_nbytes
        self._mapping: _Mapping | None = mapping
        self._created = False
        cupy = load_cupy()
        self._memory = cupy.cuda.UnownedMemory(mapping.ptr, slots * slot_nbytes, mapping, device)
        self._pointer = cupy.cuda.MemoryPointer
        self._array = cupy.ndarray

    @classmethod
    def create(cls, slots: int, slot_nbytes: int, device: int) -> CudaMemory:
        """Allocates slots on GPU `device`.  Raises DeviceError, and leaves nothing behind then."""
        device = _usable(device)
        cuda = load_cupy().cuda
        runtime = cuda.runtime
        nbytes = -(-slots * slot_nbytes // PAGE_NBYTES) * PAGE_NBYTES
        device_uuid = Driver().uuid(device)
        with cuda.Device(device):
            try:
                # As cupy.cuda.Memory does, but without its cudaFree at interpreter shutdown.
                mapping = _Mapping(runtime.malloc(nbytes), device, runtime.free)
            except runtime.CUDARuntimeError as error:
                raise DeviceError(
                    f"allocating {nbytes / 2**20:.0f} MiB for the slots on GPU {device} failed "
                    f"({error}). Use fewer or smaller slots, or stop who else uses that GPU"
                ) from error
            try:
                handle: bytes = runtime.ipcGetMemHandle(mapping.ptr)
            except runtime.CUDARuntimeError as error:
                raise DeviceError(
                    f"GPU {device} cannot share memory between processes by CUDA IPC ({error}). "
                    "Virtualised GPUs and some sandboxes cannot. Use device='host'"
                ) from error
        with _lock:
            _created[handle] = _kept[handle] = mapping
        memory = cls(mapping, handle, device_uuid, device, slots, slot_nbytes)
        memory._created = True
        return memory

    @classmethod
    def open(
        cls, handle: bytes, device_uuid: bytes, slots: int, slot_nbytes: int, *, ring: str
    ) -> CudaMemory:
        """Opens the slots of `ring` under the current device.  The process that created them has
        them already.

        Raises DeviceError if the current device cannot reach that of the slots, or if their creator
        is gone.
        """
        device = _usable(None)
        runtime = load_cupy().cuda.runtime
        try:
            owner = _reachable(runtime, device, device_uuid, ring)
            with _lock:
                mapping = _created.get(handle)
                if mapping is not None:
                    _enable_peer(runtime, device, owner)
                else:
                    mapping = _imported.get((handle, device))
                if mapping is None:
                    ptr = runtime.ipcOpenMemHandle(handle)
                    mapping = _Mapping(ptr, device, runtime.ipcCloseMemHandle)
                    _imported[handle, device] = mapping
        except runtime.CUDARuntimeError as error:
            raise _cannot_open(ring, error) from error
        return cls(mapping, handle, device_uuid, device, slots, slot_nbytes)

    def array(self, index: int, field: Field, shape: tuple[int, ...]) -> Any:
        """A C-contiguous cupy.ndarray over `field` of slot `index`.

        Allocates nothing on the GPU and enqueues nothing.  Raises RingClosed after close().
        """
        if self._mapping is None:
            raise RingClosed("this handle of the ring was closed, its slots cannot be reached")
        offset = index * self._slot_nbytes + field.offset
        pointer = self._pointer(self._memory, offset)
        try:
            return self._array(shape, field.dtype, pointer)
        except (TypeError, ValueError):
            if not field.extended:
                raise
            return self._array(shape, field.bits, pointer)  # CuPy before 14 does not know it

    def close(self, *, others: bool, then: Callable[[], None]) -> None:
        """Gives the slots up: they are unmapped, or freed, when the last array over them is gone.

        That call then waits for this process's GPU work, as cudaFree and cudaIpcCloseMemHandle do.
        The creator's memory is freed only with others=False.  Otherwise it stays until the process
        ends.
        """
        if self._mapping is None:
            return
        self._mapping.after.append(then)
        if self._created and not others:
            with _lock:  # other handles in this process share the mapping and keep it
                _kept.pop(self.handle, None)
        self._mapping = self._memory = None


def _reachable(runtime: Any, device: int, wanted: bytes, ring: str) -> int:
    """The ordinal of the GPU `wanted`, which `device` is or can reach.  Raises DeviceError."""
    mine = Driver().uuid(device)
    if mine == wanted:
        return device
    owner = next((d for d in range(runtime.getDeviceCount()) if Driver().uuid(d) == wanted), None)
    if owner is not None and runtime.deviceCanAccessPeer(device, owner):
        return owner
    how = "cannot be seen" if owner is None else f"is GPU {owner} and cannot be reached"
    raise DeviceError(
        f"ring {ring!r} lives on GPU-{uuid.UUID(bytes=wanted)}, which {how} from this process's "
        f"current GPU {device}, GPU-{uuid.UUID(bytes=mine)} ({_visible()}). Make the ring's GPU "
        "visible, and attach inside `with cupy.cuda.Device(n):` of that GPU or a peer of it"
    )


def _enable_peer(runtime: Any, device: int, owner: int) -> None:
    """Lets `device`, which is current, reach the memory of `owner`.  Opening a handle does this by
    itself."""
    if device == owner:
        return
    try:
        runtime.deviceEnablePeerAccess(owner)
    except runtime.CUDARuntimeError as error:
        if error.status != _PEER_ALREADY_ENABLED:
            raise


def _cannot_open(ring: str, error: Any) -> DeviceError:
    if error.status in _CREATOR_GONE:
        return DeviceError(
            f"ring {ring!r}: its GPU memory cannot be opened ({error}): its creator is probably "
            "gone. Those inside may finish, but nobody new can join. Create it again. "
            "If its creator lives, both processes must share the host's pid and IPC namespaces"
        )
    return DeviceError(f"ring {ring!r}: opening its GPU memory failed ({error})")
