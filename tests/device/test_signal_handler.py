"""Signal handlers that run while a call waits for a fence."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest
from victim import unpay

import gpuring
from device.instant_driver import STREAM, pay


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
    unpay(ring, owner.peer, 1)
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
