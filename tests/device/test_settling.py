"""Work that could not be recorded is awaited on the host before its slot is given up: settled."""

from __future__ import annotations

import contextlib
import threading

import pytest

import gpuring
from gpuring._snapshot import snapshot
from device.instant_driver import NOT_READY, STREAM, fences, interrupted, raises_at


def test_an_interrupt_while_a_batch_is_settled_forgets_no_promise(ring):
    producer = ring.producer()
    batch = producer.claim_many(3)
    ring._sync.driver.status = 1
    ring._sync._runtime.streamQuery = interrupted
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
    ring._sync._runtime.streamQuery = interrupted
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
        held.append([word["phase"] for word in snapshot(ring._header)["slots"]].count("writing"))
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
        return interrupted(stream) if interrupt.is_set() else NOT_READY

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
