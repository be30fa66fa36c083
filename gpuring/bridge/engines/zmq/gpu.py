"""The ends of the ZeroMQ engine on a GPU: frames go through pinned memory, in parts.

A part is copied on a stream of its own, while parts before it are in the network.  Nothing here
waits for the GPU, but for two calls that say so.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuring.bridge.engines.contract import Channel, EngineError, Slab
from gpuring.bridge.engines.gpu_copies import Copies, on_gpu
from gpuring.bridge.engines.zmq.host import Counting
from gpuring.bridge.network import wire
from gpuring.native.gpu import Gpu, PinnedBuffer

DEPTH = 32
"""How many parts there is pinned memory for: 32 MiB."""


class Buffer:
    """Pinned memory for one part."""

    def __init__(self, gpu: Gpu) -> None:
        memory = PinnedBuffer(gpu, wire.MAX_PART)
        self.pointer = memory.handle
        self.array = np.frombuffer(memoryview(memory), np.uint8)


class Staging:
    """What both ends have: copies, and pinned memory that is made when it is first needed."""

    def __init__(self, slab: Slab) -> None:
        assert slab.gpu is not None
        self._slab, self._gpu = slab, slab.gpu
        self._copies = Copies(self._gpu)
        self._free: list[Buffer] = []
        self._made = 0

    def _buffer(self) -> Buffer | None:
        """Pinned memory that nobody uses.  None if there is none now."""
        if not self._free and self._made < DEPTH:
            self._made += 1
            with on_gpu(self._gpu) as gpu:
                return Buffer(gpu)
        return self._free.pop() if self._free else None

    def fileno(self) -> int:
        return -1


@dataclass
class Part:
    """A part of a frame on its way out."""

    seq: int
    index: int
    to_seq: int
    begin: int
    nbytes: int
    is_last: bool


class GpuSender(Staging):
    """Sends slots on a GPU."""

    def __init__(self, slab: Slab, channel: Channel) -> None:
        super().__init__(slab)
        self._channel = channel
        self._waiting: deque[Part] = deque()
        self._sending: deque[tuple[Any, Buffer]] = deque()

    def open(self, offer: bytes) -> None:
        if offer:
            raise EngineError("the other side's engine is not ZeroMQ")

    def send(self, seq: int, index: int, to_seq: int, to_index: int, nbytes: int) -> Any:
        for begin in range(0, nbytes, wire.MAX_PART):
            n = min(wire.MAX_PART, nbytes - begin)
            self._waiting.append(Part(seq, index, to_seq, begin, n, begin + n == nbytes))
        self._enqueue()
        return b""

    def _enqueue(self) -> None:
        while self._sending and self._sending[0][0].done:
            self._free.append(self._sending.popleft()[1])
        while self._waiting and (buffer := self._buffer()) is not None:
            part = self._waiting.popleft()
            source = self._slab.address(part.index) + part.begin
            self._copies.start((part, buffer), buffer.pointer, source, part.nbytes)

    def poll(self) -> list[int]:
        arrived = []
        for part, buffer in self._copies.done():
            data = buffer.array.data[: part.nbytes]
            sent = self._channel.data(part.to_seq, part.begin, data, track=True)
            self._sending.append((sent, buffer))
            if part.is_last:
                arrived.append(part.seq)
        self._enqueue()
        return arrived

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._copies.pending)

    def close(self) -> None:
        """Waits for the copies that were enqueued."""
        self._waiting.clear()
        self._copies.close()
        self._sending.clear()  # the channel keeps what it still sends


class GpuReceiver(Counting, Staging):
    """Copies what comes into slots on a GPU."""

    def __init__(self, slab: Slab) -> None:
        Counting.__init__(self, slab)
        Staging.__init__(self, slab)
        self._finishing: set[int] = set()
        self._done: list[int] = []

    def write(self, index: int, begin: int, part: Any) -> None:
        """Waits for the oldest copy if all of the pinned memory is in use."""
        view = memoryview(part)
        self._count(index, begin, view.nbytes)
        while (buffer := self._buffer()) is None:
            self._copied(self._copies.wait_for_one())
        buffer.array[: view.nbytes] = view
        self._copies.start(buffer, self._slab.address(index) + begin, buffer.pointer, view.nbytes)

    def finish(self, index: int, nbytes: int) -> None:
        self._check(index, nbytes)
        self._finishing.add(index)
        self._copies.mark(index)

    def _copied(self, what: Buffer | int) -> None:
        """A part is in its slot, or all of the slot with this index."""
        if isinstance(what, Buffer):
            self._free.append(what)
        else:
            self._finishing.discard(what)
            self._done.append(what)

    def poll(self) -> list[int]:
        for what in self._copies.done():
            self._copied(what)
        done, self._done = self._done, []
        return done

    @property
    def busy(self) -> bool:
        return bool(self._finishing or self._done)

    def close(self) -> None:
        """Waits for the copies that were enqueued."""
        self._copies.close()
        self._finishing, self._done = set(), []
