"""Slots on a GPU shown as arrays, and which GPUs can hold rings.

native/memory.pyx has the memory itself, which C makes, opens and gives back, each kind in its own
way (native/memory/share.h).  This module has the arrays, which keep the memory.  `pinned.py` has
slots in host memory that a GPU reaches.

Memory is given back when the last array over it is gone.  It is not given back at interpreter
shutdown or after fork(): the end of the process does that.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from gpuring.arguments import integer
from gpuring.errors import DeviceError, RingClosed
from gpuring.memory import driver, frameworks, gpus
from gpuring.native import Descriptor, Driver
from gpuring.native import memory as native_memory
from gpuring.native.memory import Registered, Slab

if TYPE_CHECKING:
    from gpuring.memory import Given
    from gpuring.slot_layout import Field

Made = TypeVar("Made")


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
            raise ValueError(f"device must be 'host', 'cuda' or 'cuda:N', not {device!r}")
        device = int(number)
    device = integer(device, "device", "'host', 'cuda', 'cuda:N', a GPU's number or None")
    if device < 0:
        raise ValueError(f"device must be a GPU's number, 0 or more, not {device}")
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
        lacking = native_memory.lacks_timeline(Driver(), device)
    except DeviceError as error:
        lacking = str(error)
    return not lacking, lacking


def lacks(kind: str, device: int) -> str:
    """Why processes cannot share memory of GPU `device` in this way, in one line.  "" if nothing is
    known against it.  Raises DeviceError."""
    release = ""
    with contextlib.suppress(OSError):
        release = Path("/proc/sys/kernel/osrelease").read_text()
    return native_memory.lacks(Driver(), kind, device, release)


def is_there(ordinal: int | None) -> int:
    """The GPU `ordinal`, or the current one, if this process sees it.  Else raises DeviceError."""
    driver = Driver()
    if ordinal is None:
        native_memory.check_gpu(driver, 0)  # there is one at all
        ordinal = frameworks.current_device()
    native_memory.check_gpu(driver, ordinal)
    return ordinal


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
    """The epoch of the ring.  A process finds by it the memory that it has already."""

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_nbytes


def uninterrupted(device: int, make: Callable[[], Made]) -> Made:
    """Calls `make` with GPU `device` current, so that no Ctrl-C can come between an allocation and
    the object that frees it.  Returns what it returns, which has to undo itself when it is dropped.

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


class Mapping:
    """Memory of this process's own on a GPU.  Whoever has it keeps it."""

    def __init__(self, ptr: int, device: int, undo: Callable[[], None]) -> None:
        """`undo` is called with `device` current, and must not refer to this object."""
        self.ptr = ptr
        self._finalizer = weakref.finalize(self, _undo, undo, device, os.getpid())
        self._finalizer.atexit = False


def _undo(undo: Callable[[], None], device: int, pid: int) -> None:
    if os.getpid() == pid:  # after fork() a child may not touch CUDA
        with contextlib.suppress(Exception), gpus.current(device):
            undo()


class _Use:
    """The use of the memory by one handle of a ring.  Every array of the handle keeps it.

    Other handles of the same process may use the same mapping, and each use ends by itself.  The
    creator of a ring waits for that (ring/kept_memory.py).
    """

    def __init__(self) -> None:
        self.kept: list[Slab | Registered] = []
        self.after: list[Callable[[], None]] = []
        """Functions that are called when the last array is gone, and what it kept is given up."""
        self._finalizer = weakref.finalize(self, _end, self.kept, self.after, os.getpid())
        self._finalizer.atexit = False


def _end(kept: list[Slab | Registered], after: list[Callable[[], None]], pid: int) -> None:
    kept.clear()
    if os.getpid() == pid:
        for call in after:
            call()


_owned: set[Slab | Registered] = set()
"""Memory that this process has made, that others may have open, and that CUDA forbids to free while
they have.  It is kept until its rings are closed and unused, or until the process ends."""


class CudaMemory:
    """The slots of a ring that a GPU uses (gpuring.memory.Memory)."""

    mapped: ClassVar[bool] = True

    def __init__(self, kept: Slab | Registered, wanted: Slots, *, own: bool = False) -> None:
        """`own`: this process has made the memory, which others may have open until it is freed."""
        self.kind = kept.kind
        self.read_only = self.kind == "vmm"
        self.handle = wanted.handle
        self.device_uuid = wanted.device_uuid
        self.device = kept.device
        """The ordinal in this process of the device under which the slots are mapped.  The arrays
        are on this device, too."""
        self._slot_nbytes = wanted.slot_nbytes
        self._nbytes = wanted.nbytes
        self._kept: Slab | Registered | None = kept
        self._own = own
        self._use = _Use()
        self._memories: dict[bool, Any] = {}
        """CuPy's memory objects, or without CuPy the addresses, by whether they may be written."""
        self._cupy = frameworks.cupy()

    @classmethod
    def create(
        cls, kind: str, epoch: bytes, slots: int, slot_nbytes: int, device: int
    ) -> CudaMemory:
        """Allocates slots on GPU `device`.  Raises DeviceError, and leaves nothing behind then."""
        driver = Driver()
        uuid = driver.uuid(device)
        slab = native_memory.make(driver, kind, device, epoch, slots * slot_nbytes)
        return cls(slab, Slots(slab.handle, uuid, slots, slot_nbytes, epoch), own=slab.made)

    @classmethod
    def adopt(
        cls, given: Given, ring: str, epoch: bytes, slots: int, slot_nbytes: int
    ) -> CudaMemory:
        """Slots of `ring` at the beginning of memory of the user's.  Waits for the GPU.  Raises
        ValueError if it is too small or another ring has it, DeviceError if it cannot be shared."""
        driver = Driver()
        slab = native_memory.adopt(
            driver, given.device, ring, epoch, given.ptr, given.nbytes, slots, slot_nbytes,
            given.owner,
        )  # fmt: skip
        uuid = driver.uuid(given.device)
        return cls(slab, Slots(slab.handle, uuid, slots, slot_nbytes, epoch), own=slab.made)

    @classmethod
    def open(
        cls, kind: str, wanted: Slots, device: int, *, ring: str, fetch: Callable[[], Descriptor]
    ) -> CudaMemory:
        """Opens the slots of `ring` under GPU `device`.

        `fetch` asks those who are in the ring for the descriptor.  It is not asked if the kind has
        none, or this process has the memory already.  Raises DeviceError if `device` cannot reach
        the GPU of the slots, RingIncompatible, and what `fetch` raises.
        """
        slab = native_memory.open(
            Driver(), kind, device, ring, wanted.epoch, wanted.device_uuid, wanted.handle,
            wanted.slots, wanted.slot_nbytes, fetch,
        )  # fmt: skip
        return cls(slab, wanted)

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
            memory = self._kept.view(writable)
            if not self._use.kept:
                self._use.kept.append(self._kept)
            if self._cupy is not None:
                unowned = self._cupy.cuda.UnownedMemory
                memory = unowned(memory, self._nbytes, self._use, self.device)
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
    return native_memory.ordinal_of(Driver(), device_uuid)
