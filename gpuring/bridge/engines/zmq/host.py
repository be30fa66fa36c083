"""The ends of the ZeroMQ engine in host memory, and the count of bytes that all receivers keep."""

from __future__ import annotations

from typing import Any

from gpuring.bridge.engines.contract import Channel, EngineError, Slab
from gpuring.bridge.network import wire


class Counting:
    """Counts the bytes that have come for each slot.  They come in order."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._come: dict[int, int] = {}

    def open(self) -> bytes:
        return b""

    def _count(self, index: int, begin: int, nbytes: int) -> None:
        come = 0 if begin == 0 else self._come.get(index, 0)
        if begin != come:
            raise EngineError(f"bytes {begin} … came where {come} … were next")
        self._come[index] = come + nbytes

    def _check(self, index: int, nbytes: int) -> None:
        if self._come.pop(index, 0) != nbytes:
            raise EngineError(f"not all of the {nbytes} bytes of a frame have come")

    def fileno(self) -> int:
        return -1


class HostSender:
    """Sends slots of host memory as they are."""

    busy = False  # what was sent has arrived, in the words of the contract

    def __init__(self, slab: Slab, channel: Channel) -> None:
        self._slab, self._channel = slab, channel
        self._sent: list[int] = []

    def open(self, offer: bytes) -> None:
        if offer:
            raise EngineError("the other side's engine is not ZeroMQ")

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
