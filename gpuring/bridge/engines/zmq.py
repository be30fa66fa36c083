"""The engine that needs nothing but the channel: frames go over the bridge's own connection.

A frame in host memory is sent from its slot, unless it is small (multipart.py).  On the far side it
is copied once, from the message into the claimed slot.  On a GPU both sides copy through pinned
memory (staging.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from gpuring.bridge import wire
from gpuring.bridge.engine import Channel, EngineError, Receiver, Sender, Slab
from gpuring.bridge.engines.counting import Counting

NAME = "zmq"


def facts() -> Mapping[str, Any] | None:
    return {} if find_spec("zmq") is not None else None


def suits(near: Mapping[str, Any], far: Mapping[str, Any], slab: Slab) -> tuple[bool, str]:
    return True, "ZeroMQ over TCP needs no special network"


def sender(slab: Slab, channel: Channel) -> Sender:
    if slab.gpu is None:
        return HostSender(slab, channel)
    from gpuring.bridge.engines.staging import GpuSender

    return GpuSender(slab, channel)


def receiver(slab: Slab) -> Receiver:
    if slab.gpu is None:
        return HostReceiver(slab)
    from gpuring.bridge.engines.staging import GpuReceiver

    return GpuReceiver(slab)


class HostSender:
    """Sends slots of host memory as they are."""

    busy = False  # what was sent has arrived, in the words of the contract

    def __init__(self, slab: Slab, channel: Channel) -> None:
        self._slab, self._channel = slab, channel
        self._sent: list[int] = []

    def open(self, offer: bytes) -> None:
        if offer:
            raise EngineError("the other side's engine is no ZeroMQ")

    def send(self, seq: int, index: int, to_seq: int, to_index: int, nbytes: int) -> Any:
        begin = 0
        while nbytes - begin > wire.MAX_PART:
            self._channel.data(to_seq, begin, self._slab.part(index, begin, wire.MAX_PART))
            begin += wire.MAX_PART
        self._sent.append(seq)
        return self._slab.part(index, begin, nbytes - begin)

    def poll(self) -> list[int]:
        sent, self._sent = self._sent, []
        return sent

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._sent = []


class HostReceiver(Counting):
    """Copies what comes into slots of host memory."""

    busy = False

    def __init__(self, slab: Slab) -> None:
        super().__init__(slab)
        self._done: list[int] = []

    def write(self, index: int, begin: int, part: Any) -> None:
        self._count(index, begin, len(part))
        self._slab.part(index, begin, len(part))[:] = part

    def finish(self, index: int, nbytes: int) -> None:
        self._check(index, nbytes)
        self._done.append(index)

    def poll(self) -> list[int]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        self._come, self._done = {}, []
