"""NIXL: the near end writes into the far slots, over RDMA, NVLink or what else UCX finds.

The slots themselves are source and destination, and no byte is copied in between.  An end of a
session has one agent, which is destroyed with the session.  An agent that is gone takes nothing
any more: the network card or the connection refuses what the other end still sends.  On one host
that is not enough, and `holds.py` has the rest.

Nobody polls while nothing is in flight.  The near end polls its own transfers.  UCX needs the far
end's help to connect, and on networks without RDMA for each byte.  So the near end sends one byte
over the channel for each transfer that is not done at once, and the far end polls until the bridge
says that the frame has arrived.

Which memory it takes:

* host rings, and GPU rings with memory="ipc", also where this process has only imported the slots.
  Between GPUs of one host the far slots must be shared again.  Where CUDA refuses that for
  imported ones, so does this engine.
* memory="vmm" and "pool" are slow in NIXL 1.5 or do not work (issue 1754 of ai-dynamo/nixl).
  `suits` refuses them, so only who asks for NIXL by name gets them.

Over plain TCP, UCX writes to whatever address the network names, so `suits` refuses it as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuring._core import Driver
from gpuring.bridge import nics
from gpuring.bridge.engine import Channel, EngineError, Slab
from gpuring.bridge.engines.holds import Hold, Holds
from gpuring.bridge.engines.nixl_agent import End, current, package, release, translated
from gpuring.bridge.engines.nixl_offer import Offer
from gpuring.memory.cuda import load_cupy

NAME = "nixl"

_PASSIVE = frozenset({"tcp", "self", "rc", "ud", "dc", "ib", "cuda_copy", "gdr_copy"})
"""Transports of UCX that write nothing into another process once its agent is gone."""

# CUdevice_attribute, CUGPUDirectRDMAWritesOrdering, CUflushGPUDirectRDMAWritesScope
_WRITES_ORDERING, _ORDERED_FOR_ALL, _FLUSH_TO_ALL = 118, 200, 200

_NOT_EXPORTED = (
    "both sides are on one host, and CUDA does not share the far slots again, which the importer "
    "has from another process: frames would go through host memory"
)


def facts() -> dict[str, Any] | None:
    """What the other side has to know to choose.  None if NIXL is not installed."""
    try:
        package()
    except EngineError:
        return None
    return {
        "host": _host(),
        "spaces": _spaces(),
        "rdma": [str(nic) for nic in nics.look() if nic.active][:8],
    }


def suits(near: Mapping[str, Any], far: Mapping[str, Any], slab: Slab) -> tuple[bool, str]:
    """Whether both sides have RDMA or are on one host, and the far memory is of a suitable kind."""
    if slab.memory in ("vmm", "pool"):
        return False, f'NIXL is slow with memory="{slab.memory}"'
    if near.get("host") == far.get("host"):
        if near.get("spaces") != far.get("spaces"):
            return False, "both sides are on one host, but not in the same namespaces"
        if slab.gpu is not None and not _can_be_exported(slab):
            return False, _NOT_EXPORTED
        return True, "both sides are on one host"
    for which, side in (("near", near), ("far", far)):
        if not side.get("rdma"):
            return False, f"the {which} side has no RDMA device that is active"
    return True, f"both sides have RDMA: {far['rdma'][0]}"


def sender(slab: Slab, channel: Channel) -> Sender:
    """The near end of a new session."""
    return Sender(slab, channel)


def receiver(slab: Slab) -> Receiver:
    """The far end of a new session."""
    return Receiver(slab)


class Sender(End):
    """The near end of a session: engine.Sender."""

    def __init__(self, slab: Slab, channel: Channel) -> None:
        super().__init__(slab)
        self._channel = channel
        self._hold: Hold | None = None
        self._far: Offer | None = None
        self._name = ""
        self._lists: tuple[Any, Any] | None = None
        """The slots of both rings, prepared for frames of `_nbytes`."""
        self._nbytes = 0
        self._waiting: list[tuple[int, int, int, int, int]] = []
        """What `send` was told before the far end has admitted this one."""
        self._flying: dict[int, Any] = {}
        self._done: list[int] = []

    def open(self, offer: bytes) -> None:
        """Loads what the receiver has offered.  Raises EngineError."""
        self._far = far = Offer.read(offer)
        here = far.host == _host()
        if here and self.slab.gpu is not None and far.gpu >= 0 and not far.exported:
            raise EngineError(f"{_NOT_EXPORTED}. Use engine auto, or zmq")
        self.start()
        with translated("what the far side offered cannot be used"), current(self.slab.gpu):
            self._name = self.agent.add_remote_agent(far.agent)
        if here:
            self._take_hold(far.hold)

    def _take_hold(self, name: str) -> None:
        try:
            self._hold = Hold(name)
        except OSError as error:
            if _is_passive(os.environ.get("UCX_TLS", "all")):
                return
            raise EngineError(
                "both ends of the bridge are on this host, and NIXL would write past their "
                f"namespaces ({error}). Set UCX_TLS=tcp,cuda_copy for both, or use another engine"
            ) from error
        self.bell.also(self._hold.fileno())

    def send(self, seq: int, index: int, to_seq: int, to_index: int, nbytes: int) -> bytes:
        """Begins to write a frame into a far slot.  Raises EngineError."""
        far, slab = self._far, self.slab
        if far is None or self.agent is None:
            raise EngineError("this end of the session is not open")
        if not (0 <= index < slab.slots and 0 < nbytes <= slab.slot_nbytes):
            raise EngineError(f"slot {index} has no {nbytes} bytes")
        if not (0 <= to_index < far.slots and nbytes <= far.slot_nbytes):
            raise EngineError(f"slot {to_index} of the far ring has no {nbytes} bytes")
        self._waiting.append((seq, index, to_seq, to_index, nbytes))
        self.bell.set(True)
        self._post()
        return b""

    def _post(self) -> None:
        """Hands what is waiting to NIXL, if this end may write."""
        try:
            if self._hold is not None and not self._hold.admitted():
                return
        except OSError as error:
            raise EngineError(f"the far end of the bridge is gone ({error})") from error
        waiting, self._waiting = self._waiting, []
        for seq, index, to_seq, to_index, nbytes in waiting:
            with translated("a transfer failed"), current(self.slab.gpu):
                transfer = self._transfer(index, to_index, nbytes)
                self._flying[seq] = transfer
                state = self.agent.transfer(transfer)
            if not self._ended(seq, state):
                self._channel.data(to_seq, 0, b"\0")  # the far end has to poll

    def _transfer(self, index: int, to_index: int, nbytes: int) -> Any:
        """A frame of the usual length takes lists that were prepared when the first one came."""
        agent, far = self.agent, self._far
        assert far is not None
        if self._lists is None:
            self._nbytes = nbytes
            self._lists = (
                agent.prep_xfer_dlist("NIXL_INIT_AGENT", self._near_slots(nbytes), self.kind),
                agent.prep_xfer_dlist(self._name, far.parts(nbytes), far.kind),
            )
        if nbytes == self._nbytes:
            near, remote = self._lists
            return agent.make_prepped_xfer("WRITE", near, [index], remote, [to_index])
        here = agent.get_xfer_descs([self._near_slots(nbytes)[index]], self.kind)
        there = agent.get_xfer_descs([far.part(to_index, nbytes)], far.kind)
        return agent.initialize_xfer("WRITE", here, there, self._name)

    def _near_slots(self, nbytes: int) -> list[tuple[int, int, int]]:
        slab = self.slab
        return [(slab.address(index), nbytes, slab.gpu or 0) for index in range(slab.slots)]

    def _ended(self, seq: int, state: str) -> bool:
        if state == "PROC":
            return False
        if state != "DONE":
            raise EngineError(f"NIXL could not write sequence {seq} into the far ring")
        release(self._flying.pop(seq))
        self._done.append(seq)
        return True

    def poll(self) -> list[int]:
        """The sequences that have arrived since the last call.  Raises EngineError."""
        if self.agent is None:
            return []
        self._post()
        with translated("a transfer failed"), current(self.slab.gpu):
            for seq, transfer in list(self._flying.items()):
                self._ended(seq, self.agent.check_xfer_state(transfer))
        done, self._done = self._done, []
        self.bell.set(self.busy)
        return done

    @property
    def busy(self) -> bool:
        """Whether something was sent that `poll` has not returned yet."""
        return bool(self._waiting or self._flying or self._done)

    def close(self) -> None:
        """Ends the session.  GPU work of NIXL on the near slots is done when it returns."""
        for held in (*self._flying.values(), *(self._lists or ())):
            release(held)
        self._flying, self._lists, self._waiting = {}, None, []
        had_agent = self.agent is not None
        self.destroy()
        if had_agent and self.slab.gpu is not None:
            with contextlib.suppress(Exception):
                load_cupy().cuda.Device(self.slab.gpu).synchronize()
        if self._hold is not None:
            self._hold.let_go()
            self._hold = None
        self.bell.close()


class Receiver(End):
    """The far end of a session: engine.Receiver."""

    def __init__(self, slab: Slab) -> None:
        super().__init__(slab)
        self._holds: Holds | None = None
        self._coming: set[int] = set()
        """Slots that the near end writes into and that need this end's help."""
        self._ready: list[int] = []
        self._flush: Callable[[], None] = lambda: None

    def open(self) -> bytes:
        """Makes the agent and the offer.  Raises EngineError."""
        slab = self.slab
        self.start()
        try:
            self._holds = Holds()
        except OSError as error:
            raise EngineError(f"no socket for this session: {error}") from error
        self.bell.also(self._holds.fileno())
        with translated("NIXL cannot offer the slots"):
            if slab.gpu is not None:
                self._flush = _flush_of(slab.gpu)
            agent = self.agent.get_agent_metadata()
        return Offer(
            pointer=slab.pointer,
            slots=slab.slots,
            slot_nbytes=slab.slot_nbytes,
            gpu=-1 if slab.gpu is None else slab.gpu,
            exported=slab.gpu is not None and _can_be_exported(slab),
            host=_host(),
            hold=self._holds.name,
            agent=agent,
        ).written()

    def write(self, index: int, begin: int, part: Any) -> None:
        """The near end has begun to write into slot `index`.  The part has no data."""
        self._coming.add(index)
        self.bell.set(True)

    def finish(self, index: int, nbytes: int) -> None:
        """The frame is in its slot.  Raises EngineError."""
        self._coming.discard(index)
        with translated("the GPU cannot be told of what the network wrote"):
            self._flush()
        self._ready.append(index)
        self.bell.set(True)

    def poll(self) -> list[int]:
        """The indices of slots that may be published.  Lets UCX work while frames are coming."""
        if self._holds is not None:
            self._holds.admit()
        if self._coming and self.agent is not None:
            with translated("the network failed"), current(self.slab.gpu):
                self.agent.get_new_notifs()
        ready, self._ready = self._ready, []
        self.bell.set(self.busy)
        return ready

    @property
    def busy(self) -> bool:
        """Whether a frame is coming, or is ready and was not returned yet."""
        return bool(self._coming or self._ready)

    def close(self) -> None:
        """Ends the session.  Waits until a near end on this host writes no more."""
        self._coming, self._ready = set(), []
        self.destroy()
        holds, self._holds = self._holds, None
        if holds is not None:
            holds.end()
        self.bell.close()


def _is_passive(transports: str) -> bool:
    return set(transports.split(",")) <= _PASSIVE


def _host() -> str:
    """The same for all processes of one host since it was started, in whatever container."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _spaces() -> list[int]:
    """The namespaces that two processes must share to watch and to reach each other."""
    return [Path(f"/proc/self/ns/{name}").stat().st_ino for name in ("net", "pid")]


def _can_be_exported(slab: Slab) -> bool:
    with contextlib.suppress(Exception), current(slab.gpu):
        load_cupy().cuda.runtime.ipcGetMemHandle(slab.pointer)
        return True
    return False


def _flush_of(gpu: int) -> Callable[[], None]:
    """What makes writes of a network card visible to all GPUs.  Nothing, where they always are."""
    if Driver().attribute(_WRITES_ORDERING, gpu) >= _ORDERED_FOR_ALL:
        return lambda: None
    flush = ctypes.CDLL("libcuda.so.1").cuFlushGPUDirectRDMAWrites

    def flushed() -> None:
        with current(gpu):
            status = flush(0, _FLUSH_TO_ALL)
        if status:
            raise OSError(f"cuFlushGPUDirectRDMAWrites: CUresult {status}")

    return flushed
