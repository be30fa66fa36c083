"""A GPU driver that notes its calls, may be told to fail, and does nothing on its own.

A ring's header in a memfd has peers in several "processes" (support.py), each with a
synchroniser of its own; `Driver.finish` is the GPU getting to what was enqueued.  The fixture `rig`
makes all of it.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np

import gpuring
from gpuring import driver, spec, streams
from gpuring._core import DeviceOrder, EventRow
from gpuring.consumer import Consumer
from gpuring.producer import Producer
from gpuring.sync import device, event
from gpuring.sync.device import DeviceSync
from gpuring.sync.timeline import TimelineSync

NOT_READY, INVALID, NO_CONTEXT = 600, 400, 201
CAPTURE, CAPTURE_ELSEWHERE = 900, 906  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, _IMPLICIT
BASE = 1 << 40  # where the "GPU" has the fence table
P, C, D = 0x100, 0x200, 0x300  # streams
PER_THREAD = 2
OURS = 0xE  # the event by which one stream follows another

_int, _u32, _u64, _p = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_KINDS = {4: "wait", 5: "write"}


class Op(ctypes.Structure):
    """CUstreamBatchMemOpParams as cuda.h has it."""

    _fields_ = [
        ("operation", _u32), ("_1", _u32), ("address", _u64), ("value", _u64), ("flags", _u32),
        ("_2", _u32), ("alias", _u64), ("_3", _u64),
    ]  # fmt: skip


class Driver:
    """`calls`: (function, stream, what), where what is {(peer, slot): value} or an event."""

    def __init__(self, segment):
        self.segment = segment
        self.calls = []
        self.errors = {}  # function -> what it returns instead of doing anything
        self.device = 0
        self.writes = []  # enqueued: (peer, slot, value)
        self.pending = set()  # events
        self.queries = []
        self.capturing = set()  # streams
        self.asked = []  # which streams: whether they are
        self.ids = {}  # of streams whose handle was used before
        self.on_query = lambda event: None
        self.on_call = lambda name: None
        self.broken = []
        self._functions = {
            "cuCtxGetDevice": self._make(self._get_device, _p),
            "cuStreamIsCapturing": self._make(self._is_capturing, _p, _p),
            "cuStreamGetId": self._make(self._get_id, _p, _p),
            "cuStreamWriteValue64_v2": self._make(self._write_value, _p, _u64, _u64, _u32),
            "cuStreamWaitValue64_v2": self._make(self._wait_value, _p, _u64, _u64, _u32),
            "cuStreamBatchMemOp_v2": self._make(self._batch, _p, _u32, ctypes.POINTER(Op), _u32),
            "cuEventRecord": self._make(self._event_record, _p, _p),
            "cuEventQuery": self._make(self._event_query, _p),
            "cuStreamWaitEvent": self._make(self._wait_event, _p, _p, _u32),
        }

    def _make(self, function, *arguments):
        name = function.__name__.strip("_")

        def called(*values):
            try:
                self.on_call(name)
                return self.errors.get(name) or function(*values) or 0
            except BaseException as error:  # ctypes would swallow it
                self.broken.append(error)
                return 999

        return ctypes.CFUNCTYPE(_int, *arguments)(called)

    def function(self, name):
        return ctypes.cast(self._functions[name], _p).value

    def _get_device(self, device):
        ctypes.cast(device, ctypes.POINTER(_int))[0] = self.device

    def _is_capturing(self, stream, status):
        self.asked.append(stream or 0)
        ctypes.cast(status, ctypes.POINTER(_int))[0] = (stream or 0) in self.capturing
        return CAPTURE_ELSEWHERE if not stream and self.capturing else 0

    def _get_id(self, stream, number):
        stream = stream or 0
        assert stream not in self.capturing  # it would end the capture
        assert stream != PER_THREAD
        ctypes.cast(number, ctypes.POINTER(_u64))[0] = self.ids.get(stream, stream & ~1)

    def _words(self, *ops):
        """{(peer, slot): value}"""
        words = {}
        for address, value in ops:
            assert (address - BASE) % 8 == 0
            slot, peer = divmod((address - BASE) // 8, self.segment.max_peers)
            assert slot < self.segment.slots
            assert (peer, slot) not in words
            words[peer, slot] = value
        return words

    def _write_value(self, stream, address, value, flags):
        assert flags == 0
        self._enqueued("write", stream, self._words((address, value)))

    def _wait_value(self, stream, address, value, flags):
        assert flags == 0  # CU_STREAM_WAIT_VALUE_GEQ
        self._enqueued("wait", stream, self._words((address, value)))

    def _batch(self, stream, n, ops, flags):
        assert flags == 0
        (kind,) = {_KINDS[op.operation] for op in ops[:n]}
        assert all(op.flags == op.alias == 0 for op in ops[:n])
        words = self._words(*((op.address, op.value) for op in ops[:n]))
        self._enqueued(f"{kind}s", stream, words)

    def _enqueued(self, name, stream, words):
        for (peer, slot), value in words.items():
            # Waits point backwards, and what is to be paid was promised.
            assert self.segment.creator.work(peer, slot) >= value
            if name.startswith("write"):
                self.writes.append((peer, slot, value))
        self.calls.append((name, stream or 0, words))

    def _event_record(self, event, stream):
        self.pending.add(event)
        self.calls.append(("record", stream or 0, event))

    def _event_query(self, event):
        self.queries.append(event)
        self.on_query(event)
        return NOT_READY if event in self.pending else 0

    def _wait_event(self, stream, event, flags):
        assert flags == 0
        self.calls.append(("wait", stream or 0, event))

    def finish(self, *endpoints):
        """The GPU gets to what was enqueued: everything, or what these peers have recorded."""
        numbers = [each.peer for each in endpoints] or range(self.segment.max_peers)
        for peer, slot, value in self.writes:
            if peer in numbers:
                self.segment.creator.raise_fence(peer, slot, value)
        self.writes = [write for write in self.writes if write[0] not in numbers]
        self.pending = {each for each in self.pending if (each >> 16) - 1 not in numbers}

    def told(self):
        """The calls since it was last asked."""
        calls, self.calls = self.calls, []
        return calls


def event_of(endpoint, slot):
    return (endpoint.peer + 1) << 16 | slot


class Sync(DeviceOrder):
    """One process's synchroniser: what is left to Python is noted as a call, and done at once."""

    def __init__(self, header, driver, kind, capsule=None):
        self.driver, self.stream, self.ordered = driver, 0, True
        self.interrupts = 0
        self.arm(
            header, 0, lambda: SimpleNamespace(ptr=self.stream), driver.function,
            BASE if kind == "timeline" else 0, capsule,
        )  # fmt: skip

    def meet(self, peer):
        """Opens a peer's events."""
        if self.rows[peer.peer] is None:
            self.rows[peer.peer] = row = EventRow(peer._peer.id, self.header.slots)
            for slot in range(self.header.slots):
                row[slot] = event_of(peer, slot)

    def order(self, peer, stream, owner, index, value):
        self.driver.calls.append(("order", stream, {(owner, index): value}))
        if peer.gate_host and self.ordered:
            self.header.raise_fence(owner, index, value)
        return self.ordered

    def record(self, peer, index, value, streams):
        self.driver.calls.append(("python", streams, {(peer.number, index): value}))
        self.driver.writes.append((peer.number, index, value))

    def settle(self, peer, promised, streams):
        words = {(peer.number, index): value for index, value in promised}
        self.driver.calls.append(("settle", streams, words))
        for index, value in promised:
            self.header.raise_fence(peer.number, index, value)

    def refused(self, stream, status):
        return gpuring.DeviceError(f"stream {stream:#x} refuses: {status}")

    def leave(self, peer):
        for slot in range(self.header.slots):
            self.header.raise_fence(peer.number, slot, self.header.work(peer.number, slot))


class Rig:
    """A ring with a fake driver; each peer is a process of its own."""

    def __init__(self, segment, kind, *, sync_type=Sync, **options):
        self.kind, self.segment = kind, segment(memory="cuda", sync=kind, **options)
        self.driver, self.sync_type = Driver(self.segment), sync_type
        self.told, self.finish = self.driver.told, self.driver.finish
        self.peers = []

    def _ring(self, capsule=None):
        header = self.segment.process()
        sync = self.sync_type(header, self.driver, self.kind, capsule)
        return SimpleNamespace(
            name="ring", slots=header.slots, spec=spec.make(shape=8, dtype="u1"), _header=header,
            _sync=sync, _memory=SimpleNamespace(array=lambda *_: np.zeros(8, "u1")), _endpoints=[],
            _forget=lambda _: None,
        )  # fmt: skip

    def _joined(self, endpoint, stream, gate):
        endpoint._peer.gate_host = gate == "host"
        endpoint._sync.stream = stream
        self.peers.append(endpoint)
        for one in self.peers:
            for other in self.peers:
                one._sync.meet(other)
        return endpoint

    def producer(self, stream=P, gate="stream", capsule=None):
        ring = self._ring(capsule)
        return self._joined(Producer(ring, ring._header.join_producer()), stream, gate)

    def consumer(self, name="x", stream=C, gate="stream", lossless=True):
        ring = self._ring()
        peer = ring._header.join_consumer(name.encode(), lossless, "next")
        return self._joined(Consumer(ring, peer, lossless, (None, True), False), stream, gate)

    def work(self, endpoint, *slots):
        """What the peer has promised: {(peer, slot): value}."""
        number = endpoint.peer
        return {(number, slot): self.segment.creator.work(number, slot) for slot in slots}

    def paid(self, endpoint):
        header = self.segment.creator
        return all(
            header.fence(endpoint.peer, slot) == header.work(endpoint.peer, slot)
            for slot in range(self.segment.slots)
        )

    def lap(self, producer, *consumers, slots=None):
        """Every slot is published and read by everybody; the calls are forgotten."""
        slots = slots or self.segment.slots
        producer.claim_many(slots, 0).publish()
        for consumer in consumers:
            consumer.acquire_many(slots, 0).release()
        self.told()


def held_by(*endpoints):
    return [seq for each in endpoints for _, seq in each._peer.holding()]


def event_waits(stream, *events):
    return [("wait", stream, event) for event in events]


# ---- the synchronisers themselves, over a fake CUDA ----------------------------------------------


class CudaError(RuntimeError):
    pass


class Runtime:
    """Of CuPy, as far as gpuring.sync asks it.  A handle names an event by its number."""

    CUDARuntimeError = CudaError
    eventDisableTiming = eventInterprocess = 0

    def __init__(self, driver):
        self.driver, self.destroyed = driver, []

    def getDevice(self):
        return 0

    def setDevice(self, _device):
        pass

    def deviceSynchronize(self):
        pass

    def streamQuery(self, _stream):
        return 0

    def eventQuery(self, event):
        return self.driver._event_query(event)

    def eventRecord(self, event, stream):
        self.driver._event_record(event, stream)

    def streamWaitEvent(self, stream, event):
        self.driver._wait_event(stream, event, 0)

    def eventDestroy(self, event):
        self.destroyed.append(event)

    def ipcOpenEventHandle(self, handle):
        return int.from_bytes(handle, "little")


class Within:
    def __init__(self, _device):
        pass

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def real_device(monkeypatch):
    """DeviceSync and what derives from it, without CuPy and a driver."""
    cuda = SimpleNamespace(
        Device=Within, Event=lambda **_: SimpleNamespace(ptr=OURS), get_current_stream=None,
        runtime=Runtime(None),
        driver=SimpleNamespace(ctxGetCurrent=lambda: 1, CUDADriverError=CudaError),
    )  # fmt: skip
    monkeypatch.setattr(device, "load_cupy", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(device, "device_for", lambda number: number)
    monkeypatch.setattr(streams, "current_stream_capsule", lambda: None)
    monkeypatch.setattr(driver, "status_name", str)
    return cuda


class RealSync(DeviceSync):
    """The timeline without its registered memory."""

    record, order = TimelineSync.record, TimelineSync.order

    def __init__(self, header, driver, kind, _capsule):
        super().__init__(header, 0)
        self.stream, self._runtime = 0, Runtime(driver)
        self.arm(
            header, 0, lambda: SimpleNamespace(ptr=self.stream), driver.function,
            BASE if kind == "timeline" else 0,
        )  # fmt: skip

    def meet(self, peer):
        pass

    def leave(self, peer):
        self._finish_unsettled(peer)


class RealEvents(event.EventSync):
    """EventSync whose own events have the numbers of event_of, as have their handles."""

    def __init__(self, header, driver, _kind, _capsule):
        DeviceSync.__init__(self, header, 0)
        self.stream, self._runtime, self._own = 0, Runtime(driver), {}
        self.arm(header, 0, lambda: SimpleNamespace(ptr=self.stream), driver.function)

    def _take_events(self, peer):
        events = [(peer.number + 1) << 16 | slot for slot in range(self._header.slots)]
        return [(each, each.to_bytes(64, "little")) for each in events]

    def meet(self, peer):
        """Everybody finds the others by their handles."""
        if peer._sync is self and peer.peer not in self._own:
            self.join(peer._peer, "stream")
