"""What every kind of GPU memory has: the GPUs that can hold rings, and slots shown as arrays.

`cuda_ipc.py`, `cuda_vmm.py` and `cuda_pool.py` have the kinds.  They differ in how one allocation
comes into other processes, and in what these may do with it.  `pinned.py` has slots of the host
that a GPU reaches.

A `Mapping` undoes itself when the last array over it is gone.  It does not do so at interpreter
shutdown or after fork(), and the end of the process undoes it as well.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from gpuring.arguments import integer
from gpuring.errors import DeviceError, RingClosed
from gpuring.memory import driver, frameworks, gpus
from gpuring.native import Driver
from gpuring.native.gpu import Refused

if TYPE_CHECKING:
    from gpuring.slot_layout import Field

Made = TypeVar("Made")

lock = threading.RLock()  # reentrant, because a signal handler may attach as well
"""For what the kinds note of the memory that this process has."""

PAGE_NBYTES = 2 << 20
"""The memory of a ring has a multiple of this size.  The driver shares whole pages, so nothing else
may be on them."""


def rounded(nbytes: int, to: int = PAGE_NBYTES) -> int:
    """`nbytes`, or the next multiple of `to`."""
    return -(-nbytes // to) * to


USE_HOST = "Use device='host', or run on a machine with an NVIDIA GPU"

_NOT_INITIALIZED, _NO_DEVICE = 3, 100  # CUresult


def device_for(device: str | int | None) -> int:
    """The ordinal of the GPU that "cuda", "cuda:1", 1 or None means, if this process sees it.

    None and "cuda" are the current device (frameworks.py).  Creates no CUDA context.  Raises
    DeviceError with the fix in its text, TypeError or ValueError for what names no device.
    """
    if device is None or device == "cuda":
        return is_there(None)
    if isinstance(device, str):
        kind, _, number = device.partition(":")
        if kind != "cuda" or not number.isdecimal():
            raise ValueError(f"device is 'host', 'cuda' or 'cuda:N', not {device!r}")
        device = int(number)
    device = integer(device, "device", "'host', 'cuda', 'cuda:N', a GPU's number or None")
    if device < 0:
        raise ValueError(f"device is a GPU's number, 0 or more, not {device}")
    return is_there(device)


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
        able = Driver().attribute
        if not able(driver.CAN_USE_64_BIT_STREAM_MEM_OPS, device):
            return False, f"GPU {device} has no 64-bit stream waits"
        if not able(driver.HOST_REGISTER_SUPPORTED, device):
            return False, f"GPU {device} cannot map host memory that CUDA did not allocate"
    except DeviceError as error:
        return False, str(error)
    return True, ""


def lacks_ipc(device: int) -> str:
    """Why processes cannot share memory of GPU `device` by legacy CUDA IPC, in one line.  "" if
    nothing is known against it.  Raises DeviceError."""
    with contextlib.suppress(OSError):
        if "microsoft" in Path("/proc/sys/kernel/osrelease").read_text().lower():
            return "WSL2 has no legacy CUDA IPC between processes"
    if is_integrated(device):
        return f"GPU {device} is integrated (Tegra, Jetson), and has no legacy CUDA IPC"
    return ""


def is_integrated(device: int) -> bool:
    """Whether a GPU has the memory of the host.  Raises DeviceError."""
    return bool(Driver().attribute(driver.INTEGRATED, device))


def is_there(ordinal: int | None) -> int:
    """The GPU `ordinal`, or the current one, if this process sees it.  Else raises DeviceError."""
    try:
        count = gpus.count()
        device = frameworks.current_device() if ordinal is None else ordinal
    except Refused as error:
        raise _no_gpu(error) from None
    if device >= count:
        raise DeviceError(
            f"there is no GPU {device}: this process sees {count}, from 0 on ({_visible()})"
        )
    return device


def _no_gpu(error: Refused) -> DeviceError:
    why = {
        _NO_DEVICE: f"the NVIDIA driver shows none ({_visible()})",
        _NOT_INITIALIZED: "CUDA does not start; after fork() it cannot: use the 'spawn' method",
    }.get(error.status, "CUDA does not start")
    return DeviceError(f"no usable GPU: {why} ({error}). {USE_HOST}")


def _visible() -> str:
    return f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}"


@dataclass(frozen=True)
class Slots:
    """What the header of a ring says of its slots on a GPU."""

    handle: bytes
    """64 bytes from which other processes open the memory."""
    device_uuid: bytes
    """The GPU that has the memory."""
    slots: int
    slot_nbytes: int
    epoch: bytes = b""
    """That of the ring.  A process finds by it what it has, unless the handle says it."""

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_nbytes


def uninterrupted(device: int, make: Callable[[], Made]) -> Made:
    """Calls `make` where no Ctrl-C can come between an allocation and who frees it, with GPU
    `device` current.  Returns what it returns, which has to undo itself when it is dropped.

    Python runs signal handlers in the main thread only.  So another thread makes it, and this one
    waits.  If the wait is interrupted, what was made is dropped.
    """

    def on_device() -> Made:
        with gpus.current(device):
            return make()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(on_device).result()


def plain(nbytes: int, device: int) -> Mapping:
    """Memory as cudaMalloc makes it, on GPU `device`, which is current.  To be called by
    `uninterrupted`."""
    ptr = driver.allocate_plain(nbytes)
    return Mapping(ptr, device, functools.partial(driver.free_plain, ptr))


def allocated(nbytes: int, device: int, make: Callable[[], Made], instead: str = "") -> Made:
    """`uninterrupted` for the slots of a new ring.  Raises DeviceError if CUDA refuses them, and
    says then what to do.  `instead` is one more thing."""
    try:
        return uninterrupted(device, make)
    except Refused as error:
        stop = "stop who else uses that GPU"
        raise DeviceError(
            f"allocating {nbytes / 2**20:.0f} MiB for the slots on GPU {device} failed ({error}). "
            f"Use fewer or smaller slots, {f'{stop}, or {instead}' if instead else f'or {stop}'}"
        ) from error


class Kept:
    """What this process has of a ring's memory.  When nobody keeps it any more, it is undone."""

    fd = -1
    """A file descriptor that other processes need to open the memory.  -1 if they need none."""

    def __init__(self, device: int, undo: Callable[[], None]) -> None:
        """`undo` is called with `device` current, and must not refer to this object."""
        self.device = device
        self._finalizer = weakref.finalize(self, _undo, undo, device, os.getpid())
        self._finalizer.atexit = False

    def view(self, writable: bool) -> Mapping:
        """The mapping for arrays that their user may write, or only read."""
        raise AssertionError("each kind has its own")


class Mapping(Kept):
    """The memory of a ring in this process's address space.  Every array over it keeps it."""

    def __init__(self, ptr: int, device: int, undo: Callable[[], None], of: object = None) -> None:
        """`of` is kept as long as the mapping."""
        super().__init__(device, undo)
        self.ptr = ptr
        self._of = of

    def view(self, writable: bool) -> Mapping:
        return self


def _undo(undo: Callable[[], None], device: int, pid: int) -> None:
    if os.getpid() == pid:  # after fork() a child may not touch CUDA
        with contextlib.suppress(Exception), gpus.current(device):
            undo()


class _Use:
    """The use that one handle of a ring makes of the memory.  Every array of the handle keeps it.

    Other handles of the same process may use the same mapping, and each tells for itself when it
    has ended.  The creator of a ring waits for that (lingering.py).
    """

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        self.after: list[Callable[[], None]] = []
        """Functions that are called when the last array is gone, and what it kept is given up."""
        self._finalizer = weakref.finalize(self, _end, self.kept, self.after, os.getpid())
        self._finalizer.atexit = False


def _end(kept: list[Kept], after: list[Callable[[], None]], pid: int) -> None:
    kept.clear()
    if os.getpid() == pid:
        for call in after:
            call()


_owned: set[Kept] = set()
"""Memory that this process has made, that others may have open, and that CUDA forbids to free while
they have.  It is kept until its rings are closed and unused, or until the process ends."""


class CudaMemory:
    """The slots of a GPU ring (gpuring.memory.Memory).  Each kind has a class that derives from
    this."""

    kind: ClassVar[str]
    mapped: ClassVar[bool] = True
    read_only: ClassVar[bool] = False

    def __init__(self, kept: Kept, wanted: Slots, device: int, *, own: bool = False) -> None:
        """`own`: this process has made the memory."""
        self.handle = wanted.handle
        self.device_uuid = wanted.device_uuid
        self.device = device
        """The ordinal in this process of the device under which the slots are mapped.  The arrays
        are on this device, too."""
        self._slot_nbytes = wanted.slot_nbytes
        self._nbytes = wanted.nbytes
        self._kept: Kept | None = kept
        self._own = own
        self._use = _Use()
        self._memories: dict[bool, Any] = {}
        """CuPy's memory objects, or without CuPy the addresses, by whether they may be written."""
        self._cupy = frameworks.cupy()

    @property
    def descriptor(self) -> int:
        """A file descriptor that other processes need to open the slots.  It belongs to this
        object.  -1 if they need none."""
        return -1 if self._kept is None else self._kept.fd

    def lend(self) -> None:
        """From now on other processes may open the memory.  If this process has made it, it keeps
        it until close(others=False)."""
        if self._own and self._kept is not None:
            _owned.add(self._kept)

    def _memory(self, writable: bool) -> Any:
        memory = self._memories.get(writable)
        if memory is None:
            assert self._kept is not None
            mapping = self._kept.view(writable)
            self._use.kept.append(mapping)
            memory = mapping.ptr
            if self._cupy is not None:
                unowned = self._cupy.cuda.UnownedMemory
                memory = unowned(mapping.ptr, self._nbytes, self._use, self.device)
            self._memories[writable] = memory
        return memory

    def array(self, index: int, field: Field, shape: tuple[int, ...], *, writable: bool) -> Any:
        """A C-contiguous cupy.ndarray over `field` of slot `index`.  Without CuPy it is a Span.

        Allocates nothing on the GPU and enqueues nothing.  Raises RingClosed after close(), and
        DeviceError if the slots cannot be mapped for this use.
        """
        if self._kept is None:
            raise RingClosed("this handle of the ring was closed, its slots cannot be reached")
        memory, offset = self._memory(writable), index * self._slot_nbytes + field.offset
        if self._cupy is None:
            return frameworks.Span(memory + offset, shape, field.dtype, self.device, self._use)
        pointer = self._cupy.cuda.MemoryPointer(memory, offset)
        try:
            return self._cupy.ndarray(shape, field.dtype, pointer)
        except (TypeError, ValueError):
            if not field.extended:
                raise
            return self._cupy.ndarray(shape, field.bits, pointer)  # CuPy before 14 has no bfloat16

    def close(self, *, others: bool, then: Callable[[], None]) -> None:
        """Gives the slots up: they are unmapped, or freed, when the last array over them is gone.
        With others=True memory that is owned stays until the process ends.

        That call then waits for this process's GPU work.
        """
        if self._kept is None:
            return
        if self._own and not others:  # other handles in this process share the memory and keep it
            _owned.discard(self._kept)
        self._use.after.append(then)
        self._kept = None
        self._memories = {}
        del self._use


def ordinal_of(device_uuid: bytes) -> int | None:
    """The GPU of this UUID.  None: this process does not see it."""
    return next((d for d in range(gpus.count()) if Driver().uuid(d) == device_uuid), None)


def owner_of(device: int, wanted: bytes, ring: str) -> int:
    """The ordinal of the GPU `wanted`, which `device` is or can reach.  Raises DeviceError."""
    mine = Driver().uuid(device)
    if mine == wanted:
        return device
    owner = ordinal_of(wanted)
    if owner is not None and gpus.can_reach(device, owner):
        return owner
    if owner is None:
        how, fix = "cannot be seen", "Make that GPU visible to this process"
    else:
        how = f"is GPU {owner} and cannot be reached"
        fix = f"Attach under GPU {owner}, attach({ring!r}, device={owner})"
    raise DeviceError(
        f"ring {ring!r} lives on GPU-{uuid.UUID(bytes=wanted)}, which {how} from GPU {device}, "
        f"GPU-{uuid.UUID(bytes=mine)} ({_visible()}). {fix}, and copy frames to other GPUs with "
        "slot.copy_to(out)"
    )
