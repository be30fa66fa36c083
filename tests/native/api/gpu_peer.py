"""A process in Python at the other end of the puppet's ring, which obeys commands, too.

Commands come through a pipe as tuples.  The answer is the result, or the exception's name and text.
The process fills and reads slots by calls of the driver, so it needs no CuPy.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

import gpuring
from gpuring.memory import gpus
from gpuring.native.gpu import Stream
from tests.helpers.processes import Child, Pipe

SHAPE, META = (4, 64), [("pts", "i8")]


class GpuPeer:
    """The ring, endpoints and slots of this process."""

    def __init__(self) -> None:
        self.ring: Any = None
        self.end: Any = None
        self.slot: Any = None
        self.stream: Any = None

    def create(self, name: str, **options: Any) -> dict[str, Any]:
        self.ring = gpuring.create(name, slots=4, shape=SHAPE, dtype="u1", meta=META, **options)
        return self.told()

    def attach(self, name: str, device: str | None = "cuda", timeout: float = 20) -> dict[str, Any]:
        self.ring = gpuring.attach(name, device=device, timeout=timeout)
        return self.told()

    def told(self) -> dict[str, Any]:
        ring = self.ring
        return {"memory": ring.memory, "sync": ring.sync, "gate": ring.gate, "slots": ring.slots}

    def produce(self) -> None:
        self.end, self.stream = self.ring.producer(), Stream(gpus.gpu(0))

    def consume(self, subscription: str | None = None) -> None:
        self.end = self.ring.consumer(subscription, start="oldest")
        self.stream = Stream(gpus.gpu(0))

    def claim(self) -> int:
        self.slot = self.end.claim(0, stream=self.stream.handle)
        return int(self.slot.seq)

    def fill(self, byte: int) -> None:
        """Fills a slot on its stream."""
        at = self.slot.__cuda_array_interface__["data"][0]
        gpus.gpu(0).fill(at, byte, math.prod(SHAPE), self.stream.handle)

    def publish(self, pts: int) -> None:
        self.slot.meta["pts"] = pts
        self.slot.publish()

    def write(self, byte: int) -> None:
        """Publishes a frame that is full of a byte.  Its pts is that byte, too."""
        self.claim()
        self.fill(byte)
        self.publish(byte)

    def acquire(self, timeout: float = 20) -> tuple[int, int]:
        self.slot = self.end.acquire(timeout, stream=self.stream.handle)
        return int(self.slot.seq), int(self.slot.meta["pts"])

    def read(self) -> int:
        """The value that all bytes have, -1 if they differ.  Waits for its stream."""
        found = np.empty(SHAPE, "u1")
        self.slot.copy_to(found)
        assert (found == found[0, 0]).all(), found
        return int(found[0, 0])

    def release(self) -> None:
        self.slot.release()

    def take(self) -> int:
        """Takes the next frame.  Returns the value of all its bytes, which has to be its pts,
        too."""
        _, pts = self.acquire()
        found = self.read()
        self.release()
        assert found == pts
        return found

    def release_torn(self) -> None:
        """Releases a frame whose producer is dead."""
        with self.slot:
            gpus.gpu(0).synchronize(self.stream.handle)

    def finish(self) -> None:
        gpus.gpu(0).finish()

    def consumers(self) -> int:
        return sum(each.role == "consumer" for each in self.ring.stats().peers)

    def close(self) -> None:
        self.slot = None  # the slot's array would keep the memory
        if self.end is not None:
            self.end.close()
        self.ring.close()


def obey(pipe: Pipe, hide_cupy: bool) -> None:
    """Obeys commands until None comes."""
    if hide_cupy:
        sys.modules["cupy"] = None
    peer = GpuPeer()
    while (command := pipe.receive()) is not None:
        verb, args, options = command
        try:
            pipe.send((True, getattr(peer, verb)(*args, **options)))
        except Exception as error:
            pipe.send((False, (type(error).__name__, str(error))))


class Peer:
    """The other end of its pipe."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.pid, self.kill = child.pid, child.kill

    def __call__(self, verb: str, *args: Any, **options: Any) -> Any:
        """Sends a command.  Returns its result."""
        self._child.send((verb, args, options))
        done, found = self._child.receive()
        assert done, found
        return found

    def refused(self, verb: str, *args: Any, **options: Any) -> tuple[str, str]:
        """Sends a command that fails.  Returns the name of the exception, and its text."""
        self._child.send((verb, args, options))
        done, found = self._child.receive()
        assert not done, found
        return found[0], found[1]
