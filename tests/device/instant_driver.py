"""A driver made of callbacks whose GPU is done at once, over a ring in host memory.

It may be told to refuse, and fences may be opened, paid and torn by hand: what a GPU does only on a
bad day.  The fixtures `ring` and `open_fence` make it (conftest.py).
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path
from types import SimpleNamespace

import gpuring
from gpuring import _core
from gpuring.sync.device import DeviceSync, _Thread

STREAM, NOT_READY = 100, 600
WRITE_64 = 5

u32, u64, pointer = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p


class MemOp(ctypes.Structure):
    _fields_ = (("operation", u32), ("_1", u32), ("address", u64), ("value", u64), ("_2", u64 * 3))


class Driver:
    """Streams run at once.  `status`: what every call returns, and then it does nothing."""

    def __init__(self) -> None:
        self.status = 0
        self.calls: list[str] = []
        kinds = {
            "cuCtxGetDevice": ((ctypes.POINTER(ctypes.c_int),), self._device),
            "cuStreamIsCapturing": ((pointer, pointer), lambda *_: 0),
            "cuStreamGetId": ((pointer, ctypes.POINTER(u64)), self._id),
            "cuStreamWriteValue64_v2": ((pointer, u64, u64, u32), self._write),
            "cuStreamWaitValue64_v2": ((pointer, u64, u64, u32), self._nothing),
            "cuStreamBatchMemOp_v2": ((pointer, u32, ctypes.POINTER(MemOp), u32), self._batch),
            "cuEventRecord": ((pointer, pointer), self._nothing),
            "cuEventQuery": ((pointer,), self._nothing),
            "cuStreamWaitEvent": ((pointer, pointer, u32), self._nothing),
        }
        self._kept = {
            name: ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(call)
            for name, (arguments, call) in kinds.items()
        }

    def function(self, name):
        return ctypes.cast(self._kept[name], pointer).value

    def _device(self, device):
        device[0] = 0
        return 0

    def _id(self, stream, number):
        number[0] = stream or 0
        return 0

    def _nothing(self, *_):
        return self.status

    def _write(self, _stream, address, value, _flags):
        self.calls.append("write")
        if not self.status:
            u64.from_address(address).value = value
        return self.status

    def _batch(self, _stream, n, ops, _flags):
        self.calls.append("batch")
        for op in ops[:n]:
            if op.operation == WRITE_64 and not self.status:
                u64.from_address(op.address).value = op.value
        return self.status


class Sync(DeviceSync):
    """Of a ring in host memory."""

    def __init__(self, header, *, events=False):
        self._header, self._device = header, 0
        self._thread, self._unsettled, self._error = _Thread(), set(), RuntimeError
        self._thread.entered = True
        self._cuda = SimpleNamespace(Device=lambda _: contextlib.nullcontext())
        self._runtime = SimpleNamespace(
            streamQuery=lambda _: 0, getDevice=lambda: 0, deviceSynchronize=lambda: None
        )
        self.driver = Driver()
        self.base = 0 if events else header.fence_region[0]
        self.rearm()

    def rearm(self):
        current = lambda: SimpleNamespace(ptr=STREAM)  # noqa: E731
        self.arm(self._header, 0, current, self.driver.function, self.base)

    def leave(self, peer):
        self._finish_unsettled(peer)
        assert peer.drained()

    def refused(self, stream, status):
        return gpuring.DeviceError(f"status {status}")

    def order(self, peer, stream, owner, index, value):
        return peer.wait_fence(owner, index, value) if peer.gate_host else True

    def record(self, peer, index, value, streams):
        self._header.raise_fence(peer.number, index, value)


def no_current_stream(ring):
    """CuPy refuses to tell it, until ring._sync.rearm()."""

    def refuses():
        raise OSError("no current stream")

    ring._sync.arm(ring._header, 0, refuses, ring._sync.driver.function, ring._sync.base)


def interrupted(_stream):
    raise KeyboardInterrupt


def fences(ring, peer):
    return [
        (ring._header.fence(peer, index), ring._header.work(peer, index))
        for index in range(ring.slots)
    ]


def raises_at(ring, *indices):
    """The records of these slots fail from now on."""

    def record(peer, index, value, streams):
        if index in indices:
            raise gpuring.DeviceError(f"slot {index}")
        ring._header.raise_fence(peer.number, index, value)

    ring._sync.disarm()
    ring._sync.record = record


def pay(ring, producer, index):
    work = ring._header.work(producer.peer, index)
    ring._header.raise_fence(producer.peer, index, work)


def count_a_death(ring):
    """A reaper does so when it has marked what is torn."""
    fields = {(table, field): at for table, field, at, _ in _core.layout_fields()}
    with Path(f"/dev/shm/gpuring.{ring.name}").open("r+b") as header:
        header.seek(fields["head", "reaps"])
        header.write((ring._header.reaps + 1).to_bytes(8, "little"))
