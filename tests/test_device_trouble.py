"""Slots and batches on a driver made of callbacks: what a GPU does only on a bad day."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpuring
from gpuring import _core, debug
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


@pytest.fixture
def ring(name):
    with gpuring.create(name, slots=4, shape=4, dtype="u1", device="host") as ring:
        ring._sync = Sync(ring._header)
        yield ring


def fences(ring, peer):
    return [
        (ring._header.fence(peer, index), ring._header.work(peer, index))
        for index in range(ring.slots)
    ]


@pytest.fixture
def open_fence(ring):
    """(producer, index): a published frame whose GPU work is not done."""
    producer = ring.producer()
    ring._sync.disarm()
    ring._sync.record = lambda *_: None
    with producer.claim(stream=STREAM) as slot:
        pass
    del ring._sync.record
    ring._sync.rearm()
    yield producer, slot.index
    pay(ring, producer, slot.index)


def tear(ring, index, seq):
    """As a reaper marks a slot whose producer died with `seq` unfinished."""
    fields = {(table, field): at for table, field, at, _ in _core.layout_fields()}
    table = 4096 + 128 * (ring._header.max_subscriptions + ring._header.max_peers)
    with Path(f"/dev/shm/gpuring.{ring.name}").open("r+b") as header:
        header.seek(table + 128 * index + fields["slot", "torn"])
        header.write(seq.to_bytes(8, "little"))


def count_a_death(ring):
    """A reaper does so when it has marked what is torn."""
    fields = {(table, field): at for table, field, at, _ in _core.layout_fields()}
    with Path(f"/dev/shm/gpuring.{ring.name}").open("r+b") as header:
        header.seek(fields["head", "reaps"])
        header.write((ring._header.reaps + 1).to_bytes(8, "little"))


def unpay(ring, peer, index):
    """As if the peer's GPU had not got to its work on the slot."""
    header = ring._header
    fence = header.fence_region[0] + header.fence_offset(peer.peer, index)
    u64.from_address(fence).value = 1


def pay(ring, producer, index):
    work = ring._header.work(producer.peer, index)
    ring._header.raise_fence(producer.peer, index, work)


@pytest.mark.parametrize("many", [False, True])
def test_a_signal_handler_closes_the_consumer_that_waits_for_a_fence(ring, open_fence, many):
    producer, index = open_fence
    reader = ring.consumer(start="oldest")
    reader._peer.gate_host = True

    def close(*_):
        reader.close()
        pay(ring, producer, index)

    def order(peer, *_):
        os.kill(os.getpid(), signal.SIGUSR1)
        return peer.wait_fence(producer.peer, index, ring._header.work(producer.peer, index))

    acquire = partial(reader.acquire_many, 2) if many else reader.acquire
    before = signal.signal(signal.SIGUSR1, close)
    ring._sync.disarm()
    ring._sync.order = order
    try:
        with pytest.raises(gpuring.RingClosed, match="closed"):
            acquire(20, stream=STREAM)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_a_signal_handler_closes_whoever_waits_in_the_middle_of_a_batch(ring, role):
    """Its first slot was given back by then: a batch of it would be nobody's."""
    producer, reader = ring.producer(), ring.consumer()
    producer.claim_many(4).publish()
    endpoint, take, owner = reader, reader.acquire_many, producer
    if role == "producer":
        reader.acquire_many(4).release()
        endpoint, take, owner = producer, producer.claim_many, reader
    unpay(ring, owner, 1)
    endpoint._peer.gate_host = True

    def order(*_):
        endpoint.close()
        pay(ring, owner, 1)
        return True

    ring._sync.disarm()
    ring._sync.order = order
    with pytest.raises(gpuring.RingClosed, match="closed"):
        take(4, 20, stream=STREAM)


def test_a_signal_handler_cannot_use_a_peer_that_waits_for_a_fence(ring, open_fence):
    _, index = open_fence
    reader = ring.consumer(start="oldest")
    refused = []

    def order(*_):
        with pytest.raises(RuntimeError, match="waiting in another thread"):
            reader.acquire(0, stream=STREAM)
        refused.append(True)
        return True

    ring._sync.disarm()
    ring._sync.order = order
    with reader.acquire(20, stream=STREAM) as slot:
        assert slot.index == index
    assert refused


def _interrupted(_stream):
    raise KeyboardInterrupt


def test_an_interrupt_while_a_batch_is_settled_forgets_no_promise(ring):
    producer = ring.producer()
    batch = producer.claim_many(3)
    ring._sync.driver.status = 1
    ring._sync._runtime.streamQuery = _interrupted
    with pytest.raises(KeyboardInterrupt):
        batch.publish()
    ring._sync.driver.status = 0
    ring._sync._runtime.streamQuery = lambda _: 0
    assert sum(paid < promised for paid, promised in fences(ring, producer.peer)) == 3
    producer.close()
    assert all(paid == promised for paid, promised in fences(ring, producer.peer))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("verb", ["publish", "abandon", "release"])
def test_a_promise_that_may_be_unpaid_is_seen_by_nobody(ring, verb, n):
    """Our stream or others' would wait for it, and only our own leave could end that."""
    producer, reader = ring.producer(), ring.consumer()
    peer, slots = producer, producer.claim_many(n)
    if verb == "release":
        slots.publish()
        peer, slots = reader, reader.acquire_many(n)
    ring._sync.driver.status = 1
    ring._sync._runtime.streamQuery = _interrupted
    with pytest.raises(KeyboardInterrupt):
        getattr(slots, verb)()
    assert len(peer._peer.holding()) == n
    assert all(slot._open for slot in slots)
    ring._sync.driver.status = 0
    ring._sync._runtime.streamQuery = lambda _: 0
    getattr(slots, verb)()  # again
    assert peer._peer.holding() == []
    assert all(paid == promised for paid, promised in fences(ring, peer.peer))


def test_a_batch_that_cannot_be_recorded_is_abandoned_and_paid(ring):
    producer = ring.producer()
    batch = producer.claim_many(3)
    ring._sync.driver.status = 1
    with pytest.raises(gpuring.DeviceError):
        batch.publish()
    ring._sync.driver.status = 0
    assert all(paid == promised for paid, promised in fences(ring, producer.peer))
    assert producer._peer.holding() == []


def test_a_slot_that_is_published_after_its_events_were_given_up(ring):
    """What a Ring.close() that found a GPU error leaves behind."""
    ring._sync = Sync(ring._header, events=True)
    producer = ring.producer()
    ring._sync.rows[producer.peer] = _core.EventRow(producer._peer.id, ring.slots)
    first, second = producer.claim(), producer.claim()
    first.publish()
    ring._sync.rows[:] = [None] * len(ring._sync.rows)  # EventSync.close
    ring._sync._header.raise_fence(producer.peer, first.index, first.seq << 16)
    second.publish()
    assert all(paid == promised for paid, promised in fences(ring, producer.peer))


def test_what_a_lossy_reader_lost_is_told_after_a_batch_that_failed(ring, open_fence):
    producer, _ = open_fence  # frame 4
    reader = ring.consumer(lossless=False, start="oldest")
    for _ in range(3):
        producer.claim(stream=STREAM).publish()
    pay(ring, producer, 0)
    for _ in range(5):
        producer.claim(stream=STREAM).publish()
    ring._sync.disarm()
    ring._sync.record = lambda *_: None
    producer.claim(stream=STREAM).publish()  # frame 13: open
    del ring._sync.record
    ring._sync.rearm()
    ring._sync.driver.status = 1
    with pytest.raises(gpuring.DeviceError):
        reader.acquire_many(4, 0, stream=STREAM)
    ring._sync.driver.status = 0
    batch = reader.acquire_many(4, 0, stream=STREAM)
    assert [(slot.seq, slot.lost) for slot in batch] == [(10, 6), (11, 0), (12, 0), (13, 0)]
    batch.release()
    for slot in range(ring.slots):
        pay(ring, producer, slot)


@pytest.mark.parametrize("debugging", [False, True])
@pytest.mark.parametrize("verb", ["publish", "release"])
def test_one_slot_of_a_batch_that_cannot_be_recorded_does_not_keep_the_others(
    ring, verb, debugging, monkeypatch
):
    """On several streams, or with events, a batch is recorded slot by slot.  What is behind a frame
    that cannot be published is not published either."""
    monkeypatch.setattr(debug, "ON", debugging)
    producer, reader = ring.producer(), ring.consumer()
    batch = producer.claim_many(3)
    if verb == "release":
        batch.publish()
        batch = reader.acquire_many(3)
    bad = batch[1].index

    def record(peer, index, value, streams):
        if index == bad:
            raise gpuring.DeviceError("no")
        ring._header.raise_fence(peer.number, index, value)

    ring._sync.disarm()
    ring._sync.record = record
    with pytest.raises(gpuring.DeviceError, match="no"):
        batch.publish() if verb == "publish" else batch.release()
    del ring._sync.record
    assert (producer if verb == "publish" else reader)._peer.holding() == []
    if verb == "publish":
        assert [slot.seq for slot in reader.acquire_many(3)] == [4]


def test_a_slot_whose_current_stream_cannot_be_had_is_still_ours(ring):
    def refuses():
        raise OSError("no current stream")

    producer = ring.producer()
    slot = producer.claim()
    ring._sync.arm(ring._header, 0, refuses, ring._sync.driver.function, ring._sync.base)
    with pytest.raises(OSError, match="no current stream"):
        slot.publish()
    ring._sync.rearm()
    slot.publish()
    assert ring._header.frontier == 5


def raises_at(ring, *indices):
    """The records of these slots fail from now on."""

    def record(peer, index, value, streams):
        if index in indices:
            raise gpuring.DeviceError(f"slot {index}")
        ring._header.raise_fence(peer.number, index, value)

    ring._sync.disarm()
    ring._sync.record = record


def refused_publish(ring, monkeypatch, stream, query, synchronize=lambda: None):
    """Publishes on `stream`, which takes no record; query and synchronize: of the runtime."""
    producer = ring.producer()
    slot = producer.claim(stream=stream)
    monkeypatch.setattr(ring._sync._runtime, "streamQuery", query)
    monkeypatch.setattr(ring._sync._runtime, "deviceSynchronize", synchronize)
    ring._sync.driver.status = 400
    raises_at(ring, slot.index)
    with pytest.raises(gpuring.DeviceError):
        slot.publish()
    ring._sync.driver.status = 0
    assert all(paid == promised for paid, promised in fences(ring, producer.peer))
    assert producer._peer.holding() == []


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_the_work_of_a_destroyed_stream_is_awaited_before_its_slot_is_given_up(
    ring, monkeypatch, error
):
    """Its handle cannot be asked any more, and its work goes on."""
    held = []

    def synchronize():
        held.append([word["phase"] for word in ring._header.snapshot()["slots"]].count("writing"))
        if error:
            raise error

    refused_publish(ring, monkeypatch, STREAM, lambda _: 400, synchronize)
    assert held == [1]


@pytest.mark.parametrize("current", [0, 1])
def test_a_default_stream_is_awaited_on_the_rings_gpu_and_on_the_current_one(
    ring, monkeypatch, current
):
    """It may have been refused because it is another GPU's, or used while that was not current."""
    now, asked = [current], []

    @contextlib.contextmanager
    def device(number):
        now.append(number)
        yield
        now.pop()

    def query(stream):
        asked.append((now[-1], stream))
        return NOT_READY if asked.count(asked[-1]) < 3 else 0

    monkeypatch.setattr(ring._sync._runtime, "getDevice", lambda: now[-1])
    monkeypatch.setattr(ring._sync._cuda, "Device", device)
    refused_publish(ring, monkeypatch, 0, query)
    for number in {0, current}:
        assert asked.count((number, 0)) == 3


@pytest.mark.parametrize("many", [False, True])
def test_one_threads_doubt_about_its_slot_is_not_anothers(ring, many):
    """Threads of a service publish slots of one peer: one settles, another one has no trouble."""
    producer = ring.producer()
    doubtful = producer.claim()
    other = producer.claim_many(2) if many else producer.claim()
    settling, interrupt = threading.Event(), threading.Event()

    def query(stream):
        settling.set()
        return _interrupted(stream) if interrupt.is_set() else NOT_READY

    def publish():
        with pytest.raises(KeyboardInterrupt):
            doubtful.publish()

    ring._sync._runtime.streamQuery = query
    ring._sync.driver.status = 1
    thread = threading.Thread(target=publish)
    thread.start()
    assert settling.wait(20)
    ring._sync.driver.status = 0
    other.publish()
    interrupt.set()
    thread.join(20)
    assert producer._peer.holding() == [(doubtful.index, doubtful.seq)]
    assert doubtful._open
    assert not any(slot._open for slot in (other if many else (other,)))
    doubtful.publish()
    assert all(paid == promised for paid, promised in fences(ring, producer.peer))


# ---- close() -------------------------------------------------------------------------------------


def held_open(ring, role):
    """A producer with three claims, or a consumer that holds three frames."""
    producer, reader = ring.producer(), ring.consumer()
    batch = producer.claim_many(3)
    if role == "producer":
        return producer
    batch.publish()
    reader.acquire_many(3)
    return reader


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_close_ends_everything_though_the_gpu_reports_an_error(ring, role):
    endpoint = held_open(ring, role)
    number = endpoint.peer
    raises_at(ring, 0, 2)
    with pytest.raises(gpuring.DeviceError, match="slot 0") as caught:
        endpoint.close()
    assert caught.value.__notes__ == ["And then: DeviceError: slot 2"]
    assert endpoint.closed
    assert number not in ring._header.live_peers()
    assert all(paid == promised for paid, promised in fences(ring, number))
    endpoint.close()  # said once


def test_close_pays_what_an_interrupt_left_unpaid_though_the_gpu_reports_an_error(ring):
    producer = ring.producer()
    first, second = producer.claim(), producer.claim()
    ring._sync.driver.status = 1
    ring._sync._runtime.streamQuery = _interrupted
    with pytest.raises(KeyboardInterrupt):
        first.publish()
    ring._sync.driver.status = 0
    ring._sync._runtime.streamQuery = lambda _: 0
    raises_at(ring, second.index)
    with pytest.raises(gpuring.DeviceError, match=f"slot {second.index}"):
        producer.close()
    assert producer.closed
    assert all(paid == promised for paid, promised in fences(ring, producer.peer))


def test_what_cannot_be_ended_keeps_its_endpoint_open(ring):
    producer = held_open(ring, "producer")

    def refuses():
        raise OSError("no current stream")

    ring._sync.arm(ring._header, 0, refuses, ring._sync.driver.function, ring._sync.base)
    for _ in range(2):
        with pytest.raises(OSError, match="no current stream") as caught:
            producer.close()
        assert len(caught.value.__notes__) == 2
        assert not producer.closed
        assert len(producer._peer.holding()) == 3
    ring._sync.rearm()
    producer.close()
    assert ring._header.frontier == 7


def test_a_gpu_error_at_close_hides_no_torn_frame(ring, open_fence):
    """The frame was released while its producer's GPU was at work on it, and turns out torn."""
    producer, index = open_fence
    reader = ring.consumer(start="oldest")
    reader.acquire(stream=STREAM).release()
    for _ in range(2):
        producer.claim(stream=STREAM).publish()
    reader.acquire_many(2, stream=STREAM)
    tear(ring, index, seq=4)
    pay(ring, producer, index)
    raises_at(ring, *range(ring.slots))
    with pytest.raises(gpuring.DeviceError) as caught:
        reader.close()
    assert reader.closed
    assert any("FrameTorn" in note and "frames 4," in note for note in caught.value.__notes__)
    del ring._sync.record
    ring._sync.rearm()


# ---- a GPU error and a torn frame at once --------------------------------------------------------


def told_later(reader, how):
    """What the consumer says of torn frames after an error that could not name them."""
    with pytest.raises(gpuring.FrameTorn) as caught:
        reader.acquire(0) if how == "acquire" else reader.close()
    with pytest.raises(gpuring.RingTimeout if how == "acquire" else gpuring.RingClosed):
        reader.acquire(0)  # told once
    return caught.value.seqs


@pytest.mark.parametrize("how", ["acquire", "close"])
@pytest.mark.parametrize("together", [True, False])
def test_a_gpu_error_in_a_batch_hides_no_torn_frame(ring, together, how):
    """together: all are recorded by one call, which fails; else one record of three."""
    producer, reader = ring.producer(), ring.consumer()
    producer.claim_many(3).publish()
    batch = reader.acquire_many(3)
    tear(ring, batch[0].index, batch[0].seq)
    tear(ring, batch[2].index, batch[2].seq)
    if together:
        ring._sync.driver.status = 1
    else:
        raises_at(ring, batch[1].index)
    with pytest.raises(gpuring.DeviceError):
        batch.release()
    ring._sync.driver.status = 0
    ring._sync.rearm()
    assert reader._peer.holding() == []
    assert gpuring.select([reader], 0) == [reader]
    assert told_later(reader, how) == (4, 6)


@pytest.mark.parametrize("how", ["acquire", "close"])
def test_a_gpu_error_at_release_hides_no_torn_frame(ring, how):
    producer, reader = ring.producer(), ring.consumer()
    producer.claim().publish()
    slot = reader.acquire()
    tear(ring, slot.index, slot.seq)
    ring._sync.driver.status = 1
    with pytest.raises(gpuring.DeviceError):
        slot.release()
    ring._sync.driver.status = 0
    assert told_later(reader, how) == (4,)


@pytest.mark.parametrize("how", ["acquire", "close"])
@pytest.mark.parametrize("many", [False, True])
def test_a_frame_whose_release_met_a_gpu_error_may_turn_out_torn_later(ring, open_fence, many, how):
    """Its producer's GPU was still at work on it."""
    producer, index = open_fence
    reader = ring.consumer(start="oldest")
    take = partial(reader.acquire_many, 2) if many else reader.acquire
    slot = take(stream=STREAM)
    ring._sync.driver.status = 1
    with pytest.raises(gpuring.DeviceError):
        slot.release()
    ring._sync.driver.status = 0
    with pytest.raises(gpuring.RingTimeout):
        reader.acquire(0)
    tear(ring, index, seq=4)
    pay(ring, producer, index)
    count_a_death(ring)
    assert told_later(reader, how) == (4,)
