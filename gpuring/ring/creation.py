"""Creating a ring: its slots, its header, and the choice of a synchroniser."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from gpuring import arguments, native, slot_layout
from gpuring.arguments import Octal, between_one_and
from gpuring.arrays.copying import memory_of
from gpuring.memory import kinds
from gpuring.memory.host import HostMemory
from gpuring.memory.pinned import PinnedMemory
from gpuring.native import File, Header
from gpuring.native.memory import order
from gpuring.registry import no_room, segment
from gpuring.ring import debug, kept_memory, shutdown
from gpuring.ring.endpoint import Gate
from gpuring.ring.ring import Ring

if TYPE_CHECKING:
    from gpuring.memory import Given, Memory
    from gpuring.slot_layout import Spec


def create(
    name: str,
    *,
    slots: int,
    shape: Sequence[int] | int | None = None,
    dtype: npt.DTypeLike | None = None,
    fields: Mapping[str, tuple[Sequence[int] | int, npt.DTypeLike]] | None = None,
    meta: npt.DTypeLike | None = None,
    device: str | int | None = None,
    sync: Literal["auto", "event", "timeline"] = "auto",
    gate: Literal["stream", "host"] | None = None,
    memory: Literal["auto", "ipc", "vmm", "pool", "pinned"] | Any = "auto",
    producers: int = 1,
    subscriptions: Sequence[str] = (),
    max_peers: int = 32,
    max_subscriptions: int = 16,
    mode: int = Octal(0o600),
    replace: bool | None = None,
) -> Ring:
    """Creates a ring that any process of this host can attach to by `name`, and owns it.

    * `slots`: how many frames can be in flight, 1 … 1024.
    * `shape`, `dtype`: of a frame.  Or `fields={"y": ((1080, 1920), "u1"), …}` for several arrays
      in one slot.  A dtype may also be one of torch's, "bfloat16", "float8_e4m3fn" or
      "float8_e5m2".
    * `meta`: a structured dtype for metadata of each frame, such as `[("pts", "i8")]`.
    * `device`: "cuda", "cuda:1" or an ordinal name a GPU, and None is the current one.  "host" puts
      the slots into shared memory of the host, with NumPy arrays and the same protocol.  For a
      pinned ring it says how this process uses the slots, and with None the CPU uses them.
    * `sync`: how streams wait for each other.  "timeline" means 64-bit words that streams write and
      wait for, and "event" means CUDA IPC events.  "auto" takes "timeline" if the GPU has it, and
      otherwise "event" with gate "host".
    * `gate`: "stream", the default, makes streams wait.  "host" makes claim and acquire wait on the
      host, so that no stream ever waits for another process.
    * `memory`: how the slots on a GPU are shared; see the page "Which memory".  "ipc" is legacy
      CUDA IPC.  With "vmm" consumers can only read, and new peers can join after the creator's
      death.  "pool" is a pool of cudaMallocAsync.  "pinned" puts the slots into host memory for
      CPUs and GPUs at once: each process says with `device=` how it uses them.  "auto" takes "ipc",
      but in a container "vmm" if the GPU has it, and on a GPU without "ipc" it takes "vmm" or
      "pinned".  `ring.memory` says which one it is.  You may also pass an array on a GPU, of any
      library.  Then the slots lie in its memory, and nothing else may use that as long as the ring
      exists.
    * `producers`: how many producers make the stream, 1 … 4095.  The stream ends when this many
      have joined and gone, and none is there.  A producer that was killed has gone, too; if another
      one starts in its place, the stream goes on.
    * `subscriptions`: names of lossless durable subscriptions (`Ring.subscribe`) that the ring has
      from its first frame on.
    * `max_peers`, `max_subscriptions`: how many there may be at the same time, 1 … 250.
    * `mode`: permissions of the shared memory, as of a file.  With 0o600, the default, only this
      user has access.
    * `replace`: which ring of this name is replaced.  None, the default, replaces a ring whose
      creator is dead, so that a program that was killed can be started again.  True replaces any
      ring of yours, even one in use, and False replaces none.

    Consumers of a replaced ring read the frames that are there, and then get EndOfStream, as if its
    creator had closed it.  Its memory stays until they leave.  The old ring is closed when the new
    one is complete, so there has to be room for both.  But a ring that no process uses any more is
    removed first.  The new ring takes over the durable subscriptions of the old one.  Frames that
    their members have not read there count as lost.

    If several processes start at once with `replace=None`, one of them creates the ring, and the
    others get RingExists.  A ring that is damaged, or of another version of gpuring, is replaced
    if no process uses it.

    The name appears when the ring is complete, so a process that finds it can attach.  Closing the
    returned Ring closes the ring for all.  Consumers then read the frames that are there, and get
    EndOfStream.

    Raises RingExists, TooManyPeers (more subscriptions than `max_subscriptions`), DeviceError (no
    usable GPU), RingError (no space in /dev/shm, RLIMIT_FSIZE, RLIMIT_AS), OSError (no descriptors
    left), TypeError or ValueError (arguments).  With `replace=True` also PermissionError (the ring
    is another user's) and RingIncompatible (the name is that of something else than a file).  A
    call that raises leaves nothing behind.
    """
    shutdown.check()
    segment.check_name(name)
    return create_of(
        slot_layout.make(
            shape=shape, dtype=dtype, fields=fields, meta=meta, canary_nbytes=debug.canary_nbytes()
        ),
        name,
        slots=slots,
        device=device,
        sync=sync,
        gate=gate,
        memory=memory,
        producers=producers,
        subscriptions=subscriptions,
        max_peers=max_peers,
        max_subscriptions=max_subscriptions,
        mode=mode,
        replace=replace,
    )


def create_of(
    described: Spec,
    name: str,
    *,
    slots: int,
    device: str | int | None,
    sync: str = "auto",
    gate: Gate | None = None,
    memory: Any = "auto",
    producers: int = 1,
    subscriptions: Sequence[str] = (),
    max_peers: int = 32,
    max_subscriptions: int = 16,
    mode: int = 0o600,
    replace: bool | None = None,
) -> Ring:
    """create() with a description of the slots."""
    shutdown.check()
    segment.check_name(name)
    kept_memory.free()
    slots = between_one_and(native.MAX_SLOTS, slots, "slots")
    producers = between_one_and(native.MAX_PRODUCERS, producers, "producers")
    max_peers = between_one_and(native.MAX_PEERS, max_peers, "max_peers")
    max_subscriptions = between_one_and(
        native.MAX_SUBSCRIPTIONS, max_subscriptions, "max_subscriptions"
    )
    if isinstance(subscriptions, str):
        raise TypeError(f"subscriptions must be several names, such as [{subscriptions!r}]")
    if replace is not None:
        replace = arguments.flag(replace, "replace", "True, False or None")
    mode = arguments.permissions(mode, "mode")
    if sync not in ("auto", "event", "timeline"):
        raise ValueError(f'sync must be "auto", "event" or "timeline", not {sync!r}')
    if gate not in (None, *native.GATES):
        raise ValueError(f'gate must be "stream", "host" or None, not {gate!r}')
    given = None
    if not isinstance(memory, str):
        if device == "host" and memory is not None:
            raise ValueError("memory= is an array on a GPU, and a host ring has none")
        given, memory = memory_of(memory), "given"
    elif memory not in ("auto", *kinds.ON_GPU, "pinned"):
        raise ValueError(
            f'memory must be "auto", "ipc", "vmm", "pool" or "pinned", not {memory!r} '
            '(device="host" puts the slots into host memory)'
        )
    if device == "host" and memory != "pinned" and (sync != "auto" or gate or memory != "auto"):
        raise ValueError("sync=, gate= and memory= are for GPU rings; a host ring needs none")
    why = ""
    if device != "host" and memory != "pinned":
        device, memory, why = _kind_on_gpu(device, memory, given)
    pinned = memory == "pinned"
    if pinned and sync == "event":
        auto = f'memory="auto" takes "pinned" here ({why}), and ' if why else ""
        raise ValueError(
            f'{auto}a pinned ring has sync="timeline": peers without a GPU have no events. Leave '
            "sync= out"
        )

    native.make_way(name, replace)
    epoch = secrets.token_bytes(16)
    mapped: Memory | None = None
    making: File | None = None  # what HostMemory.create returns
    header: Header | None = None
    ring: Ring | None = None
    try:
        size = name, epoch, mode, slots, described.slot_nbytes
        if pinned:
            _check_on_gpu(described)
            slab, making = PinnedMemory.create(*size)
            mapped = kinds.under(slab, device)
            sync_kind, gate_kind = "timeline", str(gate or "stream")
        elif device == "host":
            mapped, making = HostMemory.create(*size)
            sync_kind, gate_kind = "host", "stream"
        else:
            ordinal = int(device or 0)
            sync_kind, gate_kind = _order_on_gpu(described, ordinal, sync, gate)
            of_slots = epoch, slots, described.slot_nbytes
            if given is None:
                mapped = kinds.create(memory, *of_slots, ordinal)
            else:
                mapped = kinds.adopt(given, name, *of_slots)
        debug.plant(mapped, described, slots)
        with segment.unnamed(mode) as file:
            header = Header.create(
                file.fd,
                slots=slots,
                max_peers=max_peers,
                max_subscriptions=max_subscriptions,
                memory=mapped.kind,
                sync=sync_kind,
                gate=gate_kind,
                producers=producers,
                slot_nbytes=described.slot_nbytes,
                meta_nbytes=described.meta_nbytes,
                spec=described.to_bytes(),
                epoch=epoch,
                device_uuid=mapped.device_uuid,
                memory_handle=mapped.handle,
            )
            ring = Ring(name, header, mapped, described, created=True)
            mapped.lend()
            kinds.hand_on(header, mapped)
            for subscription in subscriptions:  # before those that come from an earlier ring
                ring.subscribe(subscription)
            native.take_name(name, file.fd, replace, header)  # last: nobody finds half of a ring
        return ring
    except BaseException as error:
        if ring is not None:
            ring.close()
        else:
            if header is not None:
                header.disown()
            if mapped is not None:
                mapped.close(others=False, then=lambda: None)
        segment.remove_slots(segment.slots_name(name, epoch))
        if isinstance(error, OSError):
            no_room.tell(name, error, "the header", getattr(error, "nbytes", 0))
        raise
    finally:
        if making is not None:
            making.close()


def _kind_on_gpu(
    device: str | int | None, memory: str, given: Given | None
) -> tuple[int, str, str]:
    """The ordinal of the GPU, the kind of memory that a ring there gets, and why.  Raises
    DeviceError, TypeError, ValueError."""
    from gpuring.memory import cuda

    if given is None:
        ordinal = cuda.device_for(device)
        return (ordinal, *kinds.choose(memory, ordinal))
    if device is not None and cuda.device_for(device) != given.device:
        raise ValueError(f"memory= is on GPU {given.device}, and device= is {device!r}")
    return given.device, memory, "it was given"


def _order_on_gpu(described: Spec, device: int, sync: str, gate: str | None) -> tuple[str, str]:
    """Which `sync` and `gate` a ring on a GPU has.  Raises DeviceError, ValueError."""
    from gpuring.memory import cuda

    _check_on_gpu(described)
    has_timeline, reason = cuda.timeline_supported(device)
    return order(sync, gate, "" if has_timeline else reason)


def _check_on_gpu(described: Spec) -> None:
    """Raises ValueError if a GPU has no such arrays."""
    for field in described.fields:
        if field.dtype.kind not in "biufc" and not field.extended:
            raise ValueError(f"field {field.name!r}: {field.dtype} cannot be an array on a GPU")
