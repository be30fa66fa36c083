"""The kinds of memory of a ring: which one a new ring gets, and how the slots of a ring are opened,
and how long that waits for their descriptor.

This module imports the kinds of GPU memory only when a ring on a GPU is made or opened.

Whoever adds a kind also names it in native/core/layout.h (the enum, and its bound in layout.c), in
MEMORY_KINDS of native/header.pyx, and in the options of ring/creation.py and service/opening.py.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from gpuring import native
from gpuring.errors import DeviceError, PeerLost, RingTimeout
from gpuring.memory.host import HostMemory
from gpuring.memory.pinned import PinnedMemory

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

FETCH_S = 5.0
"""How long those who are in a ring may take to hand its memory on."""

_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the pid namespace in which a system starts (PROC_PID_INIT_INO)."""


def supported(kind: str, device: int) -> tuple[bool, str]:
    """Whether a ring on GPU `device` can have this kind, and if not, why, in one line."""
    from gpuring.memory import cuda, cuda_pool, cuda_vmm

    lacks = {"ipc": cuda.lacks_ipc, "vmm": cuda_vmm.lacks, "pool": cuda_pool.lacks}.get(kind)
    try:
        lacking = "" if lacks is None else lacks(device)
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
    has_ipc, why = supported("ipc")
    if not has_ipc:
        has_vmm, without = supported("vmm")
        return ("vmm", why) if has_vmm else ("pinned", f"{why}, and {without}")
    if not contained:
        return "ipc", "this process is in the first pid namespace of the system"
    here = "this process is in a pid namespace of its own, as containers have"
    has_vmm, without = supported("vmm")
    if has_vmm:
        return "vmm", f"{here}, and processes of other namespaces cannot open legacy CUDA IPC"
    return "ipc", f"{here}, but {without}"


def in_container() -> bool:
    """Whether this process is in another pid namespace than the first one.  False if unknown."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino != _FIRST_PID_NAMESPACE  # noqa: PTH116
    except OSError:
        return False


def create(kind: str, epoch: bytes, slots: int, slot_nbytes: int, device: int) -> CudaMemory:
    """Slots of a new ring on GPU `device`.  Raises DeviceError."""
    ring = () if kind == "ipc" else (epoch,)
    memory: CudaMemory = _class_of(kind).create(*ring, slots, slot_nbytes, device)
    return memory


def adopt(given: Given, ring: str, epoch: bytes, slots: int, slot_nbytes: int) -> CudaMemory:
    """Slots of `ring` in memory of the user's.  Raises ValueError, DeviceError."""
    from gpuring.memory.adopted import adopt

    return adopt(given, ring, epoch, slots, slot_nbytes)


def _class_of(kind: str) -> Any:
    from gpuring.memory.cuda_ipc import IpcMemory
    from gpuring.memory.cuda_pool import PoolMemory
    from gpuring.memory.cuda_vmm import VmmMemory

    return {"ipc": IpcMemory, "vmm": VmmMemory, "pool": PoolMemory}[kind]


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
                f"ring {name!r} is in host memory: it takes no device, so leave device= out"
            )
        return HostMemory.open(name, header.epoch, header.owner, *size)
    if header.memory == "pinned":
        pinned = under(PinnedMemory.open(name, header.epoch, header.owner, *size), device)
        # It has the slots already. But who asks for them exchanges pidfds, before it joins.
        with contextlib.suppress(PeerLost, RingTimeout):
            native.fetch(header, FETCH_S)
        hand_on(header, pinned)
        return pinned
    from gpuring.memory.cuda import Slots, device_for

    if header.memory == "ipc" and not header.creator_alive:
        raise PeerLost(
            f"ring {name!r}: the process that created it (pid {header.creator_pid}) is dead. "
            "Those inside may finish, but nobody new can open its GPU memory. Create the ring "
            'again, with memory="vmm" if others have to join it after such a death, or let '
            "`gpuring keep` own it"
        )

    def fetch() -> native.Descriptor:
        try:
            return native.fetch(header, FETCH_S)
        except (PeerLost, RingTimeout) as error:
            raise type(error)(f"ring {name!r}: its GPU memory cannot be opened: {error}") from error

    wanted = Slots(header.memory_handle, header.device_uuid, *size, header.epoch)
    more = {} if header.memory == "ipc" else {"fetch": fetch}
    memory: Memory = _class_of(header.memory).open(wanted, device_for(device), ring=name, **more)
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
    """Has this process give the memory to those who attach to the ring, if the kind needs it."""
    if memory.descriptor >= 0:
        native.offer(header, memory.descriptor)
