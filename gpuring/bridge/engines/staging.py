"""The ends of the ZeroMQ engine on a GPU: frames go through pinned memory, in parts.

A part is copied by the GPU's copy engine on a stream of its own, while parts before it are in the
network.  Nothing here waits for the GPU, but for two calls that say so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuring.bridge import wire
from gpuring.bridge.engine import Channel, EngineError, Slab
from gpuring.bridge.engines.counting import Counting
from gpuring.memory.cuda import load_cupy

DEPTH = 32
"""How many parts there is pinned memory for: 32 MiB."""


class Buffer:
    """Pinned memory for one part."""

    def __init__(self, cupy: Any) -> None:
        memory = cupy.cuda.alloc_pinned_memory(wire.MAX_PART)
        self.pointer = int(memory.ptr)
        self.array = np.frombuffer(memory, "u1", wire.MAX_PART)
        self.event = cupy.cuda.Event(disable_timing=True)


class Staging:
    """What both ends have: a stream, and pinned memory that is made when it is first needed."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._cupy = load_cupy()
        self._free: list[Buffer] = []
        self._made = 0
        with self._on_gpu():
            self._stream = self._cupy.cuda.Stream(non_blocking=True)

    @contextmanager
    def _on_gpu(self) -> Iterator[None]:
        """Calls to the driver.  Its errors become EngineErrors."""
        try:
            with self._cupy.cuda.Device(self._slab.gpu):
                yield
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"GPU {self._slab.gpu}: {error}") from error

    def _buffer(self) -> Buffer | None:
        """Pinned memory that nobody uses.  None if there is none now."""
        if not self._free and self._made < DEPTH:
            self._made += 1
            with self._on_gpu():
                return Buffer(self._cupy)
        return self._free.pop() if self._free else None

    def _copy(self, to: int, source: int, nbytes: int, event: Any) -> None:
        """Enqueues a copy, and an event behind it."""
        runtime = self._cupy.cuda.runtime
        with self._on_gpu():
            runtime.memcpyAsync(to, source, nbytes, runtime.memcpyDefault, self._stream.ptr)
            event.record(self._stream)

    def _wait(self) -> None:
        """Waits for all copies."""
        with self._on_gpu():
            self._stream.synchronize()

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
        self._copying: deque[tuple[Part, Buffer]] = deque()
        self._sending: deque[tuple[Any, Buffer]] = deque()

    def open(self, offer: bytes) -> None:
        if offer:
            raise EngineError("the other side's engine is no ZeroMQ")

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
            self._copying.append((part, buffer))
            self._copy(buffer.pointer, source, part.nbytes, buffer.event)

    def poll(self) -> list[int]:
        arrived = []
        while self._copying and self._copying[0][1].event.done:
            part, buffer = self._copying.popleft()
            data = buffer.array.data[: part.nbytes]
            sent = self._channel.data(part.to_seq, part.begin, data, track=True)
            self._sending.append((sent, buffer))
            if part.is_last:
                arrived.append(part.seq)
        self._enqueue()
        return arrived

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._copying)

    def close(self) -> None:
        """Waits for the copies that were enqueued."""
        self._waiting.clear()
        if self._copying:
            self._wait()
        self._copying.clear()
        self._sending.clear()  # the channel keeps what it still sends


class GpuReceiver(Counting, Staging):
    """Copies what comes into slots on a GPU."""

    def __init__(self, slab: Slab) -> None:
        Counting.__init__(self, slab)
        Staging.__init__(self, slab)
        self._copying: deque[Buffer] = deque()
        self._finishing: deque[tuple[int, Any]] = deque()

    def write(self, index: int, begin: int, part: Any) -> None:
        """Waits for the oldest copy if all of the pinned memory is in use."""
        view = memoryview(part)
        self._count(index, begin, view.nbytes)
        buffer = self._buffer()
        if buffer is None:
            buffer = self._copying.popleft()
            with self._on_gpu():
                buffer.event.synchronize()
        self._copying.append(buffer)
        buffer.array[: view.nbytes] = view
        self._copy(self._slab.address(index) + begin, buffer.pointer, view.nbytes, buffer.event)

    def finish(self, index: int, nbytes: int) -> None:
        self._check(index, nbytes)
        with self._on_gpu():
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(self._stream)
        self._finishing.append((index, event))

    def poll(self) -> list[int]:
        while self._copying and self._copying[0].event.done:
            self._free.append(self._copying.popleft())
        done = []
        while self._finishing and self._finishing[0][1].done:
            done.append(self._finishing.popleft()[0])
        return done

    @property
    def busy(self) -> bool:
        return bool(self._finishing)

    def close(self) -> None:
        """Waits for the copies that were enqueued."""
        self._finishing.clear()
        if self._copying:
            self._wait()
        self._copying.clear()
