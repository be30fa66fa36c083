"""The kinds of memory of a ring: which one a new ring gets, and how the slots of a ring are opened.

The decisions about GPUs are made in C (native/memory), so that programs in C have the same.

This module imports the kinds of GPU memory only when a ring on a GPU is made or opened.

Whoever adds a kind also names it in native/core/layout.h (the enum, and its bound in layout.c), in
MEMORY_KINDS of native/header.pyx, in include/gpuring.h, and in the options of ring/creation.py and
service/opening.py.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gpuring import native
from gpuring.errors import DeviceError, PeerLost, RingTimeout
from gpuring.memory.host import HostMemory
from gpuring.memory.pinned import PinnedMemory
from gpuring.native import memory as native_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuring.memory import Given, Memory
    from gpuring.memory.cuda import CudaMemory
    from gpuring.native import Header

ON_GPU = ("ipc", "vmm", "pool")

ON_HOST = ("host", "pinned")
"""Kinds whose slots are a segment of /dev/shm."""

OUTLIVE = frozenset({*ON_HOST, "vmm", "pool"})
"""Kinds that new peers can open when the creator of their ring is dead."""


def supported(kind: str, device: int) -> tuple[bool, str]:
    """Whether a ring on GPU `device` can have this kind, and if not, why, in one line."""
    from gpuring.memory import cuda

    try:
        lacking = cuda.lacks(kind, device)
    except DeviceError as error:
        lacking = str(error)
    return not lacking, lacking


def choose(memory: str, device: int) -> tuple[str, str]:
    """The kind that a new ring on GPU `device` gets for `memory=`, and why, in one line.

    Raises DeviceError for a kind that was asked for by name and that the GPU does not have.
    """
    if memory == "auto":
        return auto(in_container(), lambda kind: supported(kind, device))
    able, reason = supported(memory, device)
    if not able:
        raise DeviceError(f'memory="{memory}": {reason}. Use memory="auto"')
    return memory, "it was asked for"


def auto(contained: bool, supported: Callable[[str], tuple[bool, str]]) -> tuple[str, str]:
    """What memory="auto" takes for a creator that is in a container or not, and why.  `supported`
    says of a kind whether the GPU has it, and if not, why."""
    lacking = [why if not able else "" for able, why in (supported("ipc"), supported("vmm"))]
    return native_memory.auto(contained, *lacking)


def in_container() -> bool:
    """Whether this process is in another pid namespace than the first one.  False if unknown."""
    return native_memory.is_contained()


def create(kind: str, epoch: bytes, slots: int, slot_nbytes: int, device: int) -> CudaMemory:
    """Slots of a new ring on GPU `device`.  Raises DeviceError."""
    from gpuring.memory.cuda import CudaMemory

    return CudaMemory.create(kind, epoch, slots, slot_nbytes, device)


def adopt(given: Given, ring: str, epoch: bytes, slots: int, slot_nbytes: int) -> CudaMemory:
    """Slots of `ring` in memory of the user's.  Raises ValueError, DeviceError."""
    from gpuring.memory.cuda import CudaMemory

    return CudaMemory.adopt(given, ring, epoch, slots, slot_nbytes)


def attach(name: str, header: Header, device: str | int | None) -> Memory:
    """Opens the slots of an attached ring, on a GPU for `device`.  From then on this process hands
    them on to others, if the kind needs it.  A pinned ring without a device is used by the CPU.

    Raises PeerLost if nobody can open them any more, RingTimeout if nobody hands them on, TypeError
    if a host ring is given a device, native.Missing, RingIncompatible, DeviceError, OSError.
    """
    size = header.slots, header.slot_nbytes
    if header.memory == "host":
        if device is not None:
            raise TypeError(
                f"ring {name!r} is in host memory: it takes no device, so leave `device` out"
            )
        return HostMemory.open(name, header.epoch, header.owner, *size)
    if header.memory == "pinned":
        pinned = under(PinnedMemory.open(name, header.epoch, header.owner, *size), device)
        # It has the slots already. But by asking for them it exchanges pidfds, before it joins.
        with contextlib.suppress(PeerLost, RingTimeout):
            native.fetch(header, native_memory.FETCH_S)
        hand_on(header, pinned)
        return pinned
    from gpuring.memory.cuda import CudaMemory, Slots, device_for

    native_memory.check_creator(name, header)

    def fetch() -> native.Descriptor:
        try:
            return native.fetch(header, native_memory.FETCH_S)
        except (PeerLost, RingTimeout) as error:
            raise type(error)(f"ring {name!r}: its GPU memory cannot be opened: {error}") from error

    wanted = Slots(header.memory_handle, header.device_uuid, *size, header.epoch)
    memory = CudaMemory.open(header.memory, wanted, device_for(device), ring=name, fetch=fetch)
    hand_on(header, memory)
    return memory


def under(slots: PinnedMemory, device: str | int | None) -> Memory:
    """Pinned slots for GPU `device`.  None and "host": as they are.  Raises DeviceError, TypeError,
    ValueError, and has closed them then."""
    if device in (None, "host"):
        return slots
    try:
        return slots.under(device)
    except BaseException:
        slots.close(others=True, then=lambda: None)
        raise


def hand_on(header: Header, memory: Memory) -> None:
    """Lets this process hand the memory to those who attach to the ring, if the kind needs it."""
    if memory.descriptor >= 0:
        native.offer(header, memory.descriptor)
