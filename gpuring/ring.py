"""create, attach, and Ring: one process's handle on a ring."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import secrets
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy.typing as npt

from gpuring import _core, diagnosis, directory, segment, spec, stats
from gpuring._core import Header, Peer
from gpuring.consumer import Consumer
from gpuring.directory import BeingCreated
from gpuring.errors import DeviceError, RingClosed, RingIncompatible, RingNotFound
from gpuring.memory.host import HostMemory
from gpuring.producer import Producer

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpuring.endpoint import Endpoint
    from gpuring.memory import Memory
    from gpuring.spec import Spec
    from gpuring.sync import Sync

_Endpoint = TypeVar("_Endpoint", bound="Endpoint")
_POLL_S = 0.01  # attach(timeout=…): how often to look for the name


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
    max_peers: int = 32,
    max_subscriptions: int = 16,
    mode: int = 0o600,
    replace: bool = False,
) -> Ring:
    """Creates a ring that any process of this host can attach to by `name`, and owns it.

    slots: how many frames are in flight at the most, 1 … 1024.
    shape, dtype: of a frame; or fields={"y": ((1080, 1920), "u1"), …} for several arrays in one
    slot. meta: a structured dtype for per-frame metadata in the header, such as [("pts", "i8")].
    device: "cuda", "cuda:1", an ordinal, None (CuPy's current GPU), or "host" for shared memory of
    the
        host, with NumPy arrays and the same protocol.
    sync: how streams wait for each other: "timeline" (64-bit words written and awaited by streams),
        "event" (CUDA IPC events), "auto" (timeline where the GPU has it, else event with gate
        "host").
    gate: "stream" (default) makes streams wait, "host" makes claim and acquire wait on the host, so
        that no stream ever waits for another process.
    max_peers, max_subscriptions: sizes of the tables, 1 … 64.
    mode: permissions of the shared memory.
    replace: close and remove a ring of this name first, whoever uses it.

    Closing the returned Ring closes the ring: others drain what is there and get EndOfStream.
    Raises RingExists, DeviceError (no usable GPU), RingError (no space), TypeError or ValueError
    (arguments). Nothing is left behind by a call that raises.
    """
    segment.check_name(name)
    _free_lingering()
    described = spec.make(shape=shape, dtype=dtype, fields=fields, meta=meta)
    for what, value, most in (
        ("slots", slots, _core.MAX_SLOTS),
        ("max_peers", max_peers, _core.MAX_PEERS),
        ("max_subscriptions", max_subscriptions, _core.MAX_SUBSCRIPTIONS),
    ):
        if not isinstance(value, int):
            raise TypeError(f"{what} is an int, not {type(value).__name__}")
        if not 1 <= value <= most:
            raise ValueError(f"{what} is 1 … {most}, not {value}")
    if sync not in ("auto", "event", "timeline"):
        raise ValueError(f'sync is "auto", "event" or "timeline", not {sync!r}')
    if gate not in (None, *_core.GATES):
        raise ValueError(f'gate is "stream" or "host", not {gate!r}')
    if device == "host" and (sync != "auto" or gate is not None):
        raise ValueError("sync= and gate= are for GPU rings; a host ring needs neither")

    if replace:
        directory.remove(name)
    epoch = secrets.token_bytes(16)
    try:
        fd = segment.create(segment.header_name(name), mode)
    except FileExistsError:
        raise segment.exists(name, directory.who_has(name)) from None
    memory: Memory | None = None
    try:
        if device == "host":
            memory = HostMemory.create(name, epoch, mode, slots, described.slot_nbytes)
            sync_kind, gate_kind = "host", "stream"
        else:
            memory, sync_kind, gate_kind = _on_gpu(described, slots, device, sync, gate)
        header = Header.create(
            fd,
            slots=slots,
            max_peers=max_peers,
            max_subscriptions=max_subscriptions,
            memory="host" if device == "host" else "cuda",
            sync=sync_kind,
            gate=gate_kind,
            slot_nbytes=described.slot_nbytes,
            meta_nbytes=described.meta_nbytes,
            spec=described.to_bytes(),
            epoch=epoch,
            device_uuid=memory.device_uuid,
            memory_handle=memory.handle,
        )
        return Ring(name, header, memory, described, created=True)
    except BaseException as error:
        segment.unlink(segment.header_name(name))
        if memory is not None:
            memory.close(others=False)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise segment.no_space(name, getattr(error, "nbytes", 0), "the header") from error
        raise
    finally:
        os.close(fd)


def _on_gpu(
    described: Spec, slots: int, device: str | int | None, sync: str, gate: str | None
) -> tuple[Memory, str, str]:
    """Slots on a GPU, and what `sync` and `gate` come to there."""
    from gpuring.memory import cuda_ipc
    from gpuring.sync import timeline

    ordinal = cuda_ipc.device_for(device)
    for field in described.fields:
        if field.dtype.kind not in "biufc":
            raise ValueError(f"field {field.name!r}: {field.dtype} cannot be an array on a GPU")
    has_timeline, reason = timeline.supported(ordinal)
    if sync == "timeline" and not has_timeline:
        raise DeviceError(f'sync="timeline": {reason}. Use sync="event" or sync="auto"')
    if sync == "auto":
        sync = "timeline" if has_timeline else "event"
        if not has_timeline and gate is None:
            gate = "host"  # a stream that waits for the event of a killed process never wakes
    memory = cuda_ipc.CudaMemory.create(slots, described.slot_nbytes, ordinal)
    return memory, sync, gate or "stream"


def attach(name: str, *, timeout: float = 0.0) -> Ring:
    """Opens the ring `name`, waiting up to `timeout` seconds for it to appear.

    On a GPU ring the slots are opened under this process's current device.  Raises RingNotFound,
    RingIncompatible (damaged, or of another version), DeviceError, PermissionError.
    """
    segment.check_name(name)
    if not timeout >= 0:
        raise ValueError(f"timeout is >= 0 seconds, not {timeout!r}")
    deadline = time.monotonic() + timeout
    while True:
        try:
            header = directory.open_header(name)
            break
        except (RingNotFound, BeingCreated):
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_S)
    try:
        described = spec.Spec.from_bytes(header.spec)
    except ValueError as error:
        raise RingIncompatible(f"ring {name!r}: {error}") from error
    if (described.slot_nbytes, described.meta_nbytes) != (header.slot_nbytes, header.meta_nbytes):
        raise RingIncompatible(
            f"ring {name!r}: its slots have {header.slot_nbytes} + {header.meta_nbytes} bytes, its "
            f"description needs {described.slot_nbytes} + {described.meta_nbytes}"
        )
    memory: Memory
    if header.memory == "host":
        memory = HostMemory.open(name, header.epoch, header.slots, header.slot_nbytes)
    else:
        from gpuring.memory.cuda_ipc import CudaMemory

        memory = CudaMemory.open(
            header.memory_handle, header.device_uuid, header.slots, header.slot_nbytes, ring=name
        )
    return Ring(name, header, memory, described, created=False)


class Ring:
    """One process's handle on a ring.  Made by `create` and `attach`; a context manager.

    Pickles as "attach by name", so it can be given to a process that is spawned.
    """

    def __init__(
        self, name: str, header: Header, memory: Memory, described: Spec, *, created: bool
    ) -> None:
        self._name = name
        self._header = header
        self._memory = memory
        self._spec = described
        self._created = created
        self._closed = False
        self._endpoints: list[Endpoint] = []
        self._sync = self._synchroniser()
        _open_rings.add(self)

    def _synchroniser(self) -> Sync | None:
        if self._header.memory == "host":
            return None
        from gpuring.memory.cuda_ipc import CudaMemory

        assert isinstance(self._memory, CudaMemory)
        if self._header.sync == "event":
            from gpuring.sync.event import EventSync

            return EventSync(self._header, self._memory.device, self._header.gate)
        from gpuring.sync.timeline import TimelineSync

        return TimelineSync(self._header, self._memory.device, self._header.gate)

    @property
    def name(self) -> str:
        return self._name

    @property
    def slots(self) -> int:
        return self._header.slots

    @property
    def spec(self) -> Spec:
        """What a slot holds."""
        return self._spec

    @property
    def memory(self) -> str:
        """ "cuda" or "host"."""
        return self._header.memory

    @property
    def sync(self) -> str:
        """ "timeline", "event" or "host"."""
        return self._header.sync

    @property
    def gate(self) -> str:
        """ "stream" or "host"."""
        return self._header.gate

    @property
    def closed(self) -> bool:
        """Whether this handle was closed."""
        return self._closed

    def _check_open(self) -> None:
        if self._header.forked:
            raise diagnosis.unusable(self._name, _core.FORKED)
        if self._closed:
            raise RingClosed(f"ring {self._name!r}: this handle was closed")

    def producer(self) -> Producer:
        """Joins as a producer.  Raises RingClosed, TooManyPeers, DeviceError."""
        self._check_open()
        peer = self._header.join_producer()
        if isinstance(peer, int):
            raise diagnosis.cannot_join(self._name, self._header, peer, "")
        return self._enter(peer, lambda: Producer(self, peer))

    def consumer(
        self,
        subscription: str | None = None,
        *,
        lossless: bool = True,
        start: Literal["next", "oldest"] | int = "next",
    ) -> Consumer:
        """Joins as a consumer.

        subscription: consumers that join the same name share its frames (each goes to one of them);
            None makes one of your own, which sees every frame.
        lossless: producers wait for the subscription; otherwise they may pass it.
        start: the first frame of a new subscription: "next" to be published, "oldest" still in the
            ring, or a sequence (raised to the oldest that is still there).  A member that joins an
            existing subscription goes on where it is.

        Raises RingClosed, TooManyPeers, ValueError if the subscription exists with another
        `lossless`.
        """
        self._check_open()
        if subscription is None:
            subscription = f"#{secrets.token_hex(4)}"
        elif not isinstance(subscription, str):
            raise TypeError(f"subscription is a str or None, not {type(subscription).__name__}")
        elif not subscription or subscription.startswith("#") or "\0" in subscription:
            raise ValueError(
                f"{subscription!r} cannot name a subscription ('#…' is for unnamed ones)"
            )
        encoded = subscription.encode()
        if len(encoded) > _core.MAX_NAME_NBYTES:
            raise ValueError(
                f"a subscription's name has at most {_core.MAX_NAME_NBYTES} bytes, "
                f"not {len(encoded)}"
            )
        if not (start in ("next", "oldest") or (isinstance(start, int) and 0 <= start < 2**47)):
            raise ValueError(f'start is "next", "oldest" or a sequence, not {start!r}')
        peer = self._header.join_consumer(encoded, lossless, start)
        if isinstance(peer, int):
            raise diagnosis.cannot_join(self._name, self._header, peer, subscription)
        return self._enter(peer, lambda: Consumer(self, peer, lossless))

    def _enter(self, peer: Peer, make: Callable[[], _Endpoint]) -> _Endpoint:
        joined = False
        try:
            if self._sync is not None:
                self._sync.join(peer)
                joined = True
            endpoint = make()
        except BaseException:
            if joined and self._sync is not None:
                self._sync.leave(peer)
            peer.leave()
            raise
        self._endpoints.append(endpoint)
        return endpoint

    def _forget(self, endpoint: Endpoint) -> None:
        with contextlib.suppress(ValueError):
            self._endpoints.remove(endpoint)

    def stats(self) -> stats.RingStats:
        """A frozen record of what the ring is doing; costs a few microseconds per slot."""
        self._check_open()
        return stats.collect(self._name, self._header)

    def close(self) -> None:
        """Closes the producers and consumers made from this handle, and the handle.

        The creator's close also closes the ring and removes its name: the others drain what is
        there and get EndOfStream.  Waits for this process's own GPU work on the slots; may be
        called twice.
        """
        if self._closed:
            return
        if self._header.forked:
            self._closed = True
            return
        for endpoint in list(self._endpoints):
            endpoint.close()
        if self._created:
            self._header.close_ring()
            self._unlink()
        self._closed = True
        if self._sync is not None:
            self._sync.close()
        if self._created:
            _lingering.append((self._header, self._memory))
        else:
            self._memory.close(others=True)
            self._header.disown()
        _open_rings.discard(self)
        _free_lingering()

    def _unlink(self) -> None:
        """Removes the ring's names; that of the header may belong to a later ring by now."""
        self._header.retire()
        segment.unlink_slots(self._name, self._header.epoch)
        try:
            fd = segment.open_fd(segment.header_name(self._name))
        except (FileNotFoundError, PermissionError):
            return
        try:
            if os.fstat(fd).st_ino == self._header.inode:
                segment.unlink(segment.header_name(self._name))
        finally:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self._header.forked:
            warnings.warn(f"ring {self._name!r} was not closed", ResourceWarning, stacklevel=2)
            with contextlib.suppress(Exception):
                self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return attach, (self._name,)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.slots} slots, {self.memory}, {self.sync}"
        return f"<Ring {self._name!r}: {state}>"


_lingering: list[tuple[Header, Memory]] = []
"""Rings closed by us, their creator, which others may still be reading: freeing GPU memory under
them
is undefined.  Looked at again whenever a ring is made or closed here; the process's end frees all."""


def _free_lingering() -> None:
    for header, memory in list(_lingering):
        if header.forked:
            _lingering.remove((header, memory))
        elif not header.attached:
            _lingering.remove((header, memory))
            memory.close(others=False)
            header.disown()


_open_rings: weakref.WeakSet[Ring] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A process that ends in order leaves in order; whoever is killed is reaped by the others."""
    for ring in list(_open_rings):
        with contextlib.suppress(Exception):
            ring.close()
