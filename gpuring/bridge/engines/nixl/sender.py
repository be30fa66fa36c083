"""The near end of a session over NIXL: it writes frames into the far slots.

Frames wait here for the permit of a far end on the same host, and for a slot of the bounce buffer.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import dataclass
from typing import Any

from gpuring.bridge.engines.contract import Channel, EngineError, Slab
from gpuring.bridge.engines.nixl import bounce_buffer, mapped_memory
from gpuring.bridge.engines.nixl.agent import End, current, host, release, translated
from gpuring.bridge.engines.nixl.offer import Offer
from gpuring.bridge.engines.nixl.write_permits import WritePermit
from gpuring.memory import gpus

_PASSIVE = frozenset({"tcp", "self", "rc", "ud", "dc", "ib", "cuda_copy", "gdr_copy"})
"""Transports of UCX that write nothing into another process once its agent is gone."""


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
    """contract.Sender has what its methods are."""

    def __init__(self, slab: Slab, channel: Channel) -> None:
        super().__init__(slab, bounce_buffer.slots_beside_near(slab))
        self._channel = channel
        self._permit: WritePermit | None = None
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
        """The far end polls until this frame has arrived."""
        self._done: list[int] = []

    def open(self, offer: bytes) -> None:
        self._far = far = Offer.read(offer)
        here = far.host == host()
        self.start(bounced=bounce_buffer.sender_needs_one(self.slab))
        self._free = list(range(self.reached.slots))
        with translated("what the far side offered cannot be used"), current(self.slab.gpu):
            self._name = self.agent.add_remote_agent(far.agent)
        if here:
            self._ask_permit(far.hold)
            if self._permit is not None and self._permit.pid and far.kind == "VRAM":
                mapped_memory.note(self._permit.pid, far.slots * far.slot_nbytes)

    def _ask_permit(self, name: str) -> None:
        try:
            self._permit = WritePermit(name)
        except OSError as error:
            if _is_passive(os.environ.get("UCX_TLS", "all")):
                return
            raise EngineError(
                "both ends of the bridge are on this host, and NIXL would write past their "
                f"namespaces ({error}). Set UCX_TLS=tcp,cuda_copy for both, or use another engine"
            ) from error
        self.bell.also(self._permit.fileno())

    def send(self, seq: int, index: int, to_seq: int, to_index: int, nbytes: int) -> bytes:
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
            return self._permit is None or self._permit.admitted()
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
                gpus.gpu(self.slab.gpu).finish()
        self.give_back()
        if self._permit is not None:
            self._permit.let_go()
            self._permit = None
        self.bell.close()


def _is_passive(transports: str) -> bool:
    return set(transports.split(",")) <= _PASSIVE
