"""From the device over pinned host memory to another process and its device.  It works everywhere.

Eight buffers in multiprocessing.shared_memory, page-locked in both processes by cudaHostRegister,
so that shared memory and pinned memory are one and no third copy is needed.  An asynchronous copy
may return before it is done (CUDA Runtime API, "API synchronization behavior",
https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html), and another process sees
nothing of the stream: the producer waits for its stream before it announces a buffer, the consumer
before it gives it back.  Indices go through multiprocessing.SimpleQueue, the quickest of the
standard library's.

It lacks: bandwidth (two crossings of the bus a frame) and overlap (both hosts wait for the GPU).
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from bench.rivals.rival import SLOTS, Inlet, Outlet, Rival
from bench.rivals.work import LARGE, GpuWork


@contextlib.contextmanager
def buffers() -> Iterator[tuple[str, Any, Any]]:
    """Holds (name of the shared memory, indices of full buffers, indices of free ones)."""
    context = multiprocessing.get_context("spawn")
    memory = SharedMemory(create=True, size=SLOTS * LARGE)
    try:
        yield memory.name, context.SimpleQueue(), context.SimpleQueue()
    finally:
        memory.close()
        memory.unlink()


class _Staging:
    """The buffers, page-locked, and one frame on the device."""

    def __init__(self, name: str, work: GpuWork) -> None:
        import cupy

        self._runtime = work.runtime
        self._memory = SharedMemory(name)
        assert self._memory.buf is not None
        self._first = ctypes.addressof(ctypes.c_char.from_buffer(self._memory.buf))
        self._runtime.hostRegister(self._first, SLOTS * LARGE, 0)
        self._frame = cupy.cuda.Memory(LARGE)
        self.frame: int = self._frame.ptr

    def host(self, index: int) -> int:
        return self._first + index * LARGE

    def close(self) -> None:
        self._runtime.hostUnregister(self._first)
        self._memory.close()


class PinnedOutlet(Outlet):
    def __init__(self, lane: Any, work: GpuWork) -> None:
        name, self._full, self._free = lane
        self._work = work
        self._staging = _Staging(name, work)
        self._unused = SLOTS

    def send(self, seq: int) -> None:
        work, staging = self._work, self._staging
        if self._unused:
            self._unused -= 1
            index = self._unused
        else:
            index = self._free.get()
        work.stamp(staging.frame, seq)
        work.runtime.memcpyAsync(
            staging.host(index),
            staging.frame,
            work.terms.nbytes,
            work.runtime.memcpyDeviceToHost,
            work.stream,
        )
        work.finish()
        self._full.put(index)

    def close(self) -> None:
        self._staging.close()


class PinnedInlet(Inlet):
    def __init__(self, lane: Any, work: GpuWork) -> None:
        name, self._full, self._free = lane
        self._work = work
        self._staging = _Staging(name, work)

    def receive(self, seq: int) -> None:
        work, staging = self._work, self._staging
        index = self._full.get()
        work.runtime.memcpyAsync(
            staging.frame,
            staging.host(index),
            work.terms.nbytes,
            work.runtime.memcpyHostToDevice,
            work.stream,
        )
        work.check(staging.frame, seq)
        work.finish()
        self._free.put(index)

    def close(self) -> None:
        self._staging.close()


RIVALS = (
    Rival(
        name="pinned host copy",
        memory="cuda",
        needs=(("cupy", "cupy"),),
        work=GpuWork,
        lane=buffers,
        outlet=PinnedOutlet,
        inlet=PinnedInlet,
        inherits=True,
    ),
)
