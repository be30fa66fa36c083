"""NIXL: the near end writes into the far slots, over RDMA, NVLink or what else UCX finds.

The slots themselves are source and destination where that is possible, and no byte is copied in
between.  Otherwise an end has a bounce buffer, and copies frames between it and the slots (see
below).  An end of a session has one agent, which is destroyed with the session.  An agent that is
gone takes nothing any more: the network card or the connection refuses what the other end still
sends.  On one host that is not enough, and `holds.py` has the rest.

Nobody polls while nothing is in flight.  The near end polls its own transfers.  UCX needs the far
end's help to connect, and on networks without RDMA for each byte.  So the near end sends one byte
over the channel for the newest frame in flight, and the far end polls until the bridge says that
this frame has arrived.  If others are in flight then, the near end has said so before.

Which memory needs a bounce buffer (`bounce.py`):

* On the far side slots on a GPU that CUDA does not share again: those of another process, which an
  importer's worker always has, and those with memory="vmm" or "pool".
* On the near side slots with memory="vmm" or "pool", with which NIXL 1.5 is slow or does not work
  (issue 1754 of ai-dynamo/nixl).  Slots with memory="ipc" need none, also if another process has
  made them.

Over plain TCP, UCX writes to whatever address the network names, so `suits` refuses it as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuring.bridge import nics
from gpuring.bridge.engine import Channel, EngineError, Slab
from gpuring.bridge.engines import bounce, mapped
from gpuring.bridge.engines.holds import Hold, Holds
from gpuring.bridge.engines.nixl_agent import End, current, package, release, translated
from gpuring.bridge.engines.nixl_offer import Offer
from gpuring.memory.cuda import load_cupy
from gpuring.native import Driver

NAME = "nixl"

_PASSIVE = frozenset({"tcp", "self", "rc", "ud", "dc", "ib", "cuda_copy", "gdr_copy"})
"""Transports of UCX that write nothing into another process once its agent is gone."""

# CUdevice_attribute, CUGPUDirectRDMAWritesOrdering, CUflushGPUDirectRDMAWritesScope
_WRITES_ORDERING, _FLUSH_TO_ALL = 118, 200
_ITS_GPU, _ALL_GPUS = 100, 200


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
    """Whether both sides have RDMA or are on one host, and there is memory for a bounce buffer if
    one is needed."""
    if near.get("host") == far.get("host"):
        if near.get("spaces") != far.get("spaces"):
            return False, "both sides are on one host, but not in the same namespaces"
        reason = "both sides are on one host"
    else:
        for which, side in (("near", near), ("far", far)):
            if not side.get("rdma"):
                return False, f"the {which} side has no RDMA device that is active"
        reason = f"both sides have RDMA: {far['rdma'][0]}"
    if slab.gpu is not None and not _can_be_exported(slab):
        slots = bounce.slots_beside_far(slab)
        try:
            bounce.reserve(slab.gpu, slots * slab.slot_nbytes)
        except EngineError as error:
            return False, str(error)
        reason += f", with a bounce buffer of {slots} slots"
    return True, reason


def sender(slab: Slab, channel: Channel) -> Sender:
    """The near end of a new session."""
    return Sender(slab, channel)


def receiver(slab: Slab) -> Receiver:
    """The far end of a new session."""
    return Receiver(slab)


@dataclass
class Frame:
    """A frame on its way, as `send` was told of it."""

    seq: int
    index: int
    to_seq: int
    to_index: int
    nbytes: int
    at: int = 0
    """From which slot of `reached` NIXL takes it."""
    transfer: Any = None


class Sender(End):
    """The near end of a session: engine.Sender."""

    def __init__(self, slab: Slab, channel: Channel) -> None:
        super().__init__(slab, bounce.slots_beside_near(slab))
        self._channel = channel
        self._hold: Hold | None = None
        self._far: Offer | None = None
        self._name = ""
        self._lists: tuple[Any, Any] | None = None
        """The slots of both rings, prepared for frames of `_nbytes`."""
        self._nbytes = 0
        self._waiting: deque[Frame] = deque()
        """What the far end has not admitted yet, or what waits for a slot of the bounce buffer."""
        self._free: list[int] = []
        """The slots of the bounce buffer that nobody uses."""
        self._flying: deque[Frame] = deque()
        """What NIXL has."""
        self._polled_for: Frame | None = None
        """Until this frame has arrived, the far end polls."""
        self._done: list[int] = []

    def open(self, offer: bytes) -> None:
        """Loads what the receiver has offered.  Raises EngineError."""
        self._far = far = Offer.read(offer)
        here = far.host == _host()
        self.start(bounced=bounce.forced() or self.slab.memory in ("vmm", "pool"))
        self._free = list(range(self.reached.slots))
        with translated("what the far side offered cannot be used"), current(self.slab.gpu):
            self._name = self.agent.add_remote_agent(far.agent)
        if here:
            self._take_hold(far.hold)
            if self._hold is not None and self._hold.pid and far.kind == "VRAM":
                mapped.note(self._hold.pid, far.slots * far.slot_nbytes)

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
        if not (to_index >= 0 and nbytes <= far.slot_nbytes):
            raise EngineError(f"slot {to_index} of the far ring has no {nbytes} bytes")
        self._waiting.append(Frame(seq, index, to_seq, to_index, nbytes))
        self.bell.set(True)  # `poll` does the rest
        return b""

    def poll(self) -> list[int]:
        """The sequences that have arrived since the last call.  Raises EngineError."""
        if self.agent is None:
            return []
        with translated("a transfer failed"), current(self.slab.gpu):
            while self._flying and self._has_ended(self._flying[0]):
                self._end(self._flying.popleft())
            if self._may_write():
                self._begin()
        if self._flying and self._polled_for is None:
            self._polled_for = self._flying[-1]
            self._channel.data(self._polled_for.to_seq, 0, b"\0")
        done, self._done = self._done, []
        self.bell.set(self.busy)
        return done

    def _may_write(self) -> bool:
        try:
            return self._hold is None or self._hold.admitted()
        except OSError as error:
            raise EngineError(f"the far end of the bridge is gone ({error})") from error

    def _begin(self) -> None:
        """Begins what can be begun: copies to the bounce buffer, and transfers."""
        if self.bounce is None:
            while self._waiting:
                frame = self._waiting.popleft()
                frame.at = frame.index
                self._post(frame)
            return
        copies, reached = self.bounce.copies, self.bounce.slab
        while self._waiting and self._free:
            frame = self._waiting.popleft()
            frame.at = self._free.pop()
            source = self.slab.address(frame.index)
            copies.start(frame, reached.address(frame.at), source, frame.nbytes)
        for frame in copies.done():
            self._post(frame)

    def _post(self, frame: Frame) -> None:
        """Hands a frame to NIXL.  A small one may have arrived at once."""
        frame.transfer = self._transfer(frame.at, frame.to_index, frame.nbytes)
        self._flying.append(frame)
        if self._is_done(frame, self.agent.transfer(frame.transfer)) and self._flying[0] is frame:
            self._end(self._flying.popleft())

    def _has_ended(self, frame: Frame) -> bool:
        return self._is_done(frame, self.agent.check_xfer_state(frame.transfer))

    def _is_done(self, frame: Frame, state: str) -> bool:
        if state not in ("DONE", "PROC"):
            raise EngineError(f"NIXL could not write sequence {frame.seq} into the far ring")
        return state == "DONE"

    def _end(self, frame: Frame) -> None:
        """Frames end in the order in which they were handed to NIXL: the bridge announces them so,
        and to ask for the oldest is enough."""
        release(frame.transfer)
        if self.bounce is not None:
            self._free.append(frame.at)
        if self._polled_for is frame:
            self._polled_for = None
        self._done.append(frame.seq)

    def _transfer(self, at: int, to_index: int, nbytes: int) -> Any:
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
            return agent.make_prepped_xfer("WRITE", near, [at], remote, [to_index % far.slots])
        here = agent.get_xfer_descs([self._near_slots(nbytes)[at]], self.kind)
        there = agent.get_xfer_descs([far.part(to_index, nbytes)], far.kind)
        return agent.initialize_xfer("WRITE", here, there, self._name)

    def _near_slots(self, nbytes: int) -> list[tuple[int, int, int]]:
        slab = self.reached
        return [(slab.address(index), nbytes, slab.gpu or 0) for index in range(slab.slots)]

    @property
    def busy(self) -> bool:
        """Whether something was sent that `poll` has not returned yet."""
        copying = self.bounce is not None and self.bounce.copies.pending
        return bool(self._waiting or copying or self._flying or self._done)

    def close(self) -> None:
        """Ends the session.  GPU work on the near slots is done when it returns."""
        for held in (*(frame.transfer for frame in self._flying), *(self._lists or ())):
            release(held)
        self._flying, self._waiting, self._lists = deque(), deque(), None
        had_agent = self.agent is not None
        self.destroy()
        if had_agent and self.slab.gpu is not None:
            with contextlib.suppress(Exception):
                load_cupy().cuda.Device(self.slab.gpu).synchronize()
        self.give_back()
        if self._hold is not None:
            self._hold.let_go()
            self._hold = None
        self.bell.close()


class Receiver(End):
    """The far end of a session: engine.Receiver."""

    def __init__(self, slab: Slab) -> None:
        super().__init__(slab, bounce.slots_beside_far(slab))
        self._holds: Holds | None = None
        self._coming: set[int] = set()
        """Slots that the near end writes into and that need this end's help."""
        self._ready: list[int] = []
        self._flush: Callable[[], None] = lambda: None

    def open(self) -> bytes:
        """Makes the agent and the offer.  Raises EngineError."""
        slab = self.slab
        on_gpu = slab.gpu is not None
        self.start(bounced=bounce.forced() or (on_gpu and not _can_be_exported(slab)))
        try:
            self._holds = Holds()
        except OSError as error:
            raise EngineError(f"no socket for this session: {error}") from error
        self.bell.also(self._holds.fileno())
        with translated("NIXL cannot offer the slots"):
            if slab.gpu is not None:
                readers = _ALL_GPUS if self.bounce is None else _ITS_GPU
                self._flush = _flush_of(slab.gpu, readers)
            agent = self.agent.get_agent_metadata()
        return Offer(
            pointer=self.reached.pointer,
            slots=self.reached.slots,
            slot_nbytes=slab.slot_nbytes,
            gpu=-1 if slab.gpu is None else slab.gpu,
            host=_host(),
            hold=self._holds.name,
            agent=agent,
        ).written()

    def write(self, index: int, begin: int, part: Any) -> None:
        """The near end has begun to write into slot `index`.  The part has no data."""
        self._coming.add(index)
        self.bell.set(True)

    def finish(self, index: int, nbytes: int) -> None:
        """The frame is in its slot, or in the bounce buffer.  Raises EngineError."""
        self._coming.discard(index)
        with translated("the GPU cannot be told of what the network wrote"):
            self._flush()
        if self.bounce is None:
            self._ready.append(index)
        else:
            source = self.bounce.slab.address(index % self.bounce.slab.slots)
            self.bounce.copies.start(index, self.slab.address(index), source, nbytes)
        self.bell.set(True)

    def poll(self) -> list[int]:
        """The indices of slots that may be published.  Lets UCX work while frames are coming."""
        if self._holds is not None and not self._coming:  # else the near end was admitted
            self._holds.admit()
        if self._coming and self.agent is not None:
            with translated("the network failed"), current(self.slab.gpu):
                self.agent.get_new_notifs()
        ready, self._ready = self._ready, []
        if self.bounce is not None:
            ready += self.bounce.copies.done()
        self.bell.set(self.busy)
        return ready

    @property
    def busy(self) -> bool:
        """Whether a frame is coming, is copied, or is ready and was not returned yet."""
        copying = self.bounce is not None and self.bounce.copies.pending
        return bool(self._coming or copying or self._ready)

    def close(self) -> None:
        """Ends the session.  Waits until a near end on this host writes no more, and for the
        copies."""
        self._coming, self._ready = set(), []
        self.destroy()
        holds, self._holds = self._holds, None
        if holds is not None:
            holds.end()
        self.give_back()
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


def _flush_of(gpu: int, readers: int) -> Callable[[], None]:
    """What makes writes of a network card into the memory of `gpu` visible to that GPU or to all.
    Nothing, where they always are."""
    if Driver().attribute(_WRITES_ORDERING, gpu) >= readers:
        return lambda: None
    flush = ctypes.CDLL("libcuda.so.1").cuFlushGPUDirectRDMAWrites

    def flushed() -> None:
        with current(gpu):
            status = flush(0, _FLUSH_TO_ALL)
        if status:
            raise OSError(f"cuFlushGPUDirectRDMAWrites: CUresult {status}")

    return flushed
