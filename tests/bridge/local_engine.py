"""An engine of bridges within one process: the sender copies from slot to slot.

`bridge_engines` makes it known to bridges, as their own engines are.
"""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Mapping
from typing import Any

from gpuring.bridge.engines.contract import Channel, EngineError, Receiver, Sender, Slab

NAME = "local"

_open: weakref.WeakValueDictionary[bytes, LocalReceiver] = weakref.WeakValueDictionary()


def facts() -> Mapping[str, Any] | None:
    return {"pid": os.getpid()}


def suits(near: Mapping[str, Any], far: Mapping[str, Any], slab: Slab) -> tuple[bool, str]:
    return False, "it is for tests"


def sender(slab: Slab, channel: Channel) -> Sender:
    return LocalSender(slab)


def receiver(slab: Slab) -> Receiver:
    return LocalReceiver(slab)


class LocalSender:
    busy = False

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._to: LocalReceiver | None = None
        self._sent: list[int] = []

    def open(self, offer: bytes) -> None:
        self._to = _open.get(offer)
        if self._to is None:
            raise EngineError("this receiver is not in this process")

    def send(self, seq: int, index: int, to_seq: int, to_index: int, nbytes: int) -> Any:
        if self._to is None or not self._to.is_open:
            raise EngineError("the receiver is closed")
        self._to._slab.part(to_index, 0, nbytes)[:] = self._slab.part(index, 0, nbytes)
        self._sent.append(seq)
        return b""

    def poll(self) -> list[int]:
        sent, self._sent = self._sent, []
        return sent

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._to, self._sent = None, []


class LocalReceiver:
    busy = False

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._done: list[int] = []
        self.is_open = False

    def open(self) -> bytes:
        self._key = secrets.token_bytes(8)
        _open[self._key] = self
        self.is_open = True
        return self._key

    def write(self, index: int, begin: int, part: Any) -> None:
        raise EngineError("this engine sends nothing over the channel")

    def finish(self, index: int, nbytes: int) -> None:
        self._done.append(index)

    def poll(self) -> list[int]:
        done, self._done = self._done, []
        return done

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self.is_open, self._done = False, []
