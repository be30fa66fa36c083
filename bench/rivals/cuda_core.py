"""cuda.core: IPC buffers and IPC events over a multiprocessing queue.

As its reference says (https://nvidia.github.io/cuda-python/cuda-core/latest/,
DeviceMemoryResource): "Buffer objects may be sent directly" through multiprocessing's queues and,
for efficiency, once: 8 buffers of one IPC-enabled memory resource cross when the two sides meet.
An IPC event can only be made by Stream.record, is bound to that record and cannot be recorded
again (Event in the same reference; test_event_is_monadic in the project's
cuda_core/tests/memory_ipc), so each message brings a new event, to be opened by its reader, and so
does each answer.

It lacks: an event that serves more than one message, a ring, and notice of a dead process.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
from collections.abc import Iterator
from typing import Any

from bench.rivals.rival import SLOTS, Inlet, Outlet, Rival
from bench.rivals.work import LARGE, GpuWork

_GRANULE = 2 << 20


def _core() -> Any:
    from cuda import core

    if hasattr(core, "DeviceMemoryResourceOptions"):
        return core
    return importlib.import_module("cuda.core.experimental")  # the name in older versions


class CoreWork(GpuWork):
    """Work on a stream of cuda.core."""

    def __init__(self) -> None:
        self.core = _core()
        self.device = self.core.Device()
        self.device.set_current()
        self.core_stream = self.device.create_stream()
        super().__init__(int(self.core_stream.handle))

    def recorded(self) -> Any:
        """Records a new event behind all work so far."""
        return self.core_stream.record(options=self.core.EventOptions(ipc_enabled=True))


@contextlib.contextmanager
def queues() -> Iterator[tuple[Any, Any]]:
    """One side of a lane.  It sends (index, event) and gets (index, event) back."""
    context = multiprocessing.get_context("spawn")
    yield context.Queue(), context.Queue()


class CoreOutlet(Outlet):
    def __init__(self, lane: Any, work: CoreWork) -> None:
        self._full, self._free = lane
        self._work = work
        size = -(-SLOTS * LARGE // _GRANULE) * _GRANULE
        options = work.core.DeviceMemoryResourceOptions(ipc_enabled=True, max_size=size)
        self._resource = work.core.DeviceMemoryResource(work.device, options=options)
        self._buffers = [
            self._resource.allocate(LARGE, stream=work.core_stream) for _ in range(SLOTS)
        ]
        work.finish()
        self._places = [int(buffer.handle) for buffer in self._buffers]
        self._events: list[Any] = [None] * SLOTS  # kept until the other side has opened them
        self._unused = SLOTS
        self._full.put(self._buffers)

    def send(self, seq: int) -> None:
        if self._unused:
            self._unused -= 1
            index = self._unused
        else:
            index, read = self._free.get()
            self._work.core_stream.wait(read)
        self._work.stamp(self._places[index], seq)
        self._events[index] = self._work.recorded()
        self._full.put((index, self._events[index]))

    def close(self) -> None:
        self._work.finish()
        for buffer in self._buffers:
            buffer.close()


class CoreInlet(Inlet):
    def __init__(self, lane: Any, work: CoreWork) -> None:
        self._full, self._free = lane
        self._work = work
        self._buffers: list[Any] = []
        self._places: list[int] = []
        self._events: list[Any] = [None] * SLOTS

    def connect(self, _: Any) -> None:
        self._buffers = self._full.get()
        self._places = [int(buffer.handle) for buffer in self._buffers]

    def receive(self, seq: int) -> None:
        index, written = self._full.get()
        self._work.core_stream.wait(written)
        self._work.check(self._places[index], seq)
        self._events[index] = self._work.recorded()
        self._free.put((index, self._events[index]))

    def close(self) -> None:
        # Imported memory must go before its owner frees it (CUDA stream-ordered allocator, IPC).
        for buffer in self._buffers:
            buffer.close()


RIVALS = (
    Rival(
        name="cuda.core IPC",
        memory="cuda",
        needs=(("cuda.core", "cuda-core"), ("cupy", "cupy")),
        work=CoreWork,
        lane=queues,
        outlet=CoreOutlet,
        inlet=CoreInlet,
        inherits=True,
    ),
)
