"""Slot indices over pyzmq or iceoryx2.  The frames stay in one allocation of CUDA IPC memory.

This is what one writes by hand today.  One raw cudaMalloc of 8 slots, exported once; each side has
one interprocess event per slot, exported once.  Record → send the index → receive → the stream
waits for the event → kernel → record the own event → send the index back → the producer's stream
waits for it before it writes again.  That order is what the CUDA Runtime API demands of
cudaStreamWaitEvent (a wait means the latest record at the time of the call) and of
cudaIpcGetEventHandle; CuPy offers the calls raw (cupy.cuda.runtime,
https://docs.cupy.dev/en/stable/reference/cuda.html).

* pyzmq: PUSH and PULL over ipc://.  The zmq_socket(3) manual (https://api.zeromq.org) says that
  PAIR is meant for threads over inproc and does not reconnect; the guide's one-way pattern between
  processes is the pipeline (https://zguide.zeromq.org/docs/chapter1/, "Divide and Conquer").
* iceoryx2: publish-subscribe of one 64-bit number, see `iox`.

What both lack: neither side notices that the other died (the dead side's event was recorded and is
never reached, so a stream that waits for it waits for ever).  A second consumer needs bookkeeping
of its own.  The program itself has to know what is in a slot.
"""

from __future__ import annotations

import contextlib
import ctypes
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.rivals.iox import Node, next_sample, service_name
from bench.rivals.rival import RUN_S, SLOTS, Inlet, Outlet, Rival
from bench.rivals.work import LARGE, GpuWork


class ZmqIndices:
    """One side of a lane.  It sends and receives indices.  The side that owns the memory binds."""

    def __init__(self, directory: str, binds: bool) -> None:
        import zmq

        self._context = zmq.Context()
        push, pull = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        for socket in (push, pull):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, int(RUN_S * 1000))
        names = ("full", "free") if binds else ("free", "full")
        for socket, name in zip((push, pull), names, strict=True):
            (socket.bind if binds else socket.connect)(f"ipc://{directory}/{name}")
        self._send, self._receive = push.send, pull.recv
        self._messages = [bytes([index]) for index in range(SLOTS)]

    def give(self, index: int) -> None:
        self._send(self._messages[index])

    def take(self) -> int:
        message: bytes = self._receive()
        return message[0]

    def close(self) -> None:
        self._context.destroy(linger=0)


class IceoryxIndices:
    """One side of a lane, as ZmqIndices."""

    def __init__(self, name: str, binds: bool) -> None:
        self._node = Node()
        out, back = (f"{name}/full", f"{name}/free") if binds else (f"{name}/free", f"{name}/full")
        self._out = self._node.numbers_out(out)
        self._in = self._node.numbers_in(back)

    def give(self, index: int) -> None:
        self._out.loan_uninit().write_payload(ctypes.c_uint64(index)).send()

    def take(self) -> int:
        return int(next_sample(self._in.receive).payload().contents.value)

    def close(self) -> None:
        self._out.delete()
        self._in.delete()
        del self._node


class SlabOutlet(Outlet):
    """Owns the memory of the frames."""

    def __init__(self, indices: Any, work: GpuWork) -> None:
        import cupy

        self._work = work
        self._runtime = runtime = work.runtime
        self._indices = indices
        self._memory = cupy.cuda.Memory(
            SLOTS * LARGE
        )  # a cudaMalloc of its own, because pools cannot be exported
        self._written = make_events(runtime)
        self._read: list[int] = []
        self._unused = SLOTS
        self.exports = (
            runtime.ipcGetMemHandle(self._memory.ptr),
            [runtime.ipcGetEventHandle(event) for event in self._written],
        )

    def connect(self, theirs: Any) -> None:
        self._read = [self._runtime.ipcOpenEventHandle(handle) for handle in theirs]

    def send(self, seq: int) -> None:
        if self._unused:
            self._unused -= 1
            index = self._unused
        else:
            index = self._indices.take()
            self._runtime.streamWaitEvent(self._work.stream, self._read[index])
        self._work.stamp(self._memory.ptr + index * LARGE, seq)
        self._runtime.eventRecord(self._written[index], self._work.stream)
        self._indices.give(index)

    def close(self) -> None:
        self._work.finish()
        for event in self._read + self._written:
            self._runtime.eventDestroy(event)
        self._indices.close()
        del self._memory


class SlabInlet(Inlet):
    def __init__(self, indices: Any, work: GpuWork) -> None:
        self._work = work
        self._runtime = work.runtime
        self._indices = indices
        self._read = make_events(self._runtime)
        self._written: list[int] = []
        self._slab = 0
        self.exports = [self._runtime.ipcGetEventHandle(event) for event in self._read]

    def connect(self, theirs: Any) -> None:
        slab, events = theirs
        self._slab = self._runtime.ipcOpenMemHandle(slab)
        self._written = [self._runtime.ipcOpenEventHandle(handle) for handle in events]

    def receive(self, seq: int) -> None:
        index = self._indices.take()
        self._runtime.streamWaitEvent(self._work.stream, self._written[index])
        self._work.check(self._slab + index * LARGE, seq)
        self._runtime.eventRecord(self._read[index], self._work.stream)
        self._indices.give(index)

    def close(self) -> None:
        # This process's events stay until it ends, because the other side may still have them open.
        for event in self._written:
            self._runtime.eventDestroy(event)
        self._runtime.ipcCloseMemHandle(self._slab)
        self._indices.close()


def make_events(runtime: Any) -> list[int]:
    """One interprocess event per slot."""
    flags = runtime.eventDisableTiming | runtime.eventInterprocess
    return [runtime.eventCreateWithFlags(flags) for _ in range(SLOTS)]


def zmq_outlet(directory: str, work: GpuWork) -> Outlet:
    return SlabOutlet(ZmqIndices(directory, binds=True), work)


def zmq_inlet(directory: str, work: GpuWork) -> Inlet:
    return SlabInlet(ZmqIndices(directory, binds=False), work)


def iceoryx_outlet(name: str, work: GpuWork) -> Outlet:
    return SlabOutlet(IceoryxIndices(name, binds=True), work)


def iceoryx_inlet(name: str, work: GpuWork) -> Inlet:
    return SlabInlet(IceoryxIndices(name, binds=False), work)


@contextlib.contextmanager
def socket_directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="gpuring-bench-") as directory:
        yield str(Path(directory))


RIVALS = (
    Rival(
        name="pyzmq + events",
        memory="cuda",
        needs=(("zmq", "pyzmq"), ("cupy", "cupy")),
        work=GpuWork,
        lane=socket_directory,
        outlet=zmq_outlet,
        inlet=zmq_inlet,
    ),
    Rival(
        name="iceoryx2 + events",
        memory="cuda",
        needs=(("iceoryx2", "iceoryx2"), ("cupy", "cupy")),
        work=GpuWork,
        lane=service_name,
        outlet=iceoryx_outlet,
        inlet=iceoryx_inlet,
    ),
)
