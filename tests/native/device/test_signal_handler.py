"""Signal handlers that run while a call waits for a fence."""

from __future__ import annotations

import contextlib
import threading
from functools import partial

import pytest

import gpuring
from tests.helpers.ctrl_c import signalled
from tests.helpers.processes import poll
from tests.helpers.rig import held_by
from tests.helpers.victim import unpay
from tests.native.device.instant_driver import STREAM, pay


@contextlib.contextmanager
def while_it_waits(ring, act):
    """Sends a signal, with `act` as its handler, while a verb with the host gate waits for a fence.
    The verb has looked at its stream by then."""
    waits = threading.Event()
    ring.driver.on_call = lambda name: name == "is_capturing" and waits.set()
    try:
        with signalled(waits, act):
            yield
    finally:
        ring.driver.on_call = lambda _: None


@pytest.mark.parametrize("many", [False, True])
def test_a_signal_handler_closes_the_consumer_that_waits_for_a_fence(ring, open_fence, many):
    producer, index = open_fence
    reader = ring.consumer(start="oldest", gate="host")

    def close():
        reader.close()
        pay(ring, producer, index)

    acquire = partial(reader.acquire_many, 2) if many else reader.acquire
    with while_it_waits(ring, close), pytest.raises(gpuring.RingClosed, match="closed"):
        acquire(20, stream=STREAM)


@pytest.mark.parametrize("gate", ["stream", "host"])
@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_who_is_closed_in_the_middle_of_a_batch_has_none(ring, role, gate):
    """Another thread closes it during a call of the driver.  Its slots were given back by then."""
    producer, reader = ring.producer(), ring.consumer(gate=gate)
    producer.claim_many(4).publish()
    endpoint, take, owner = reader, reader.acquire_many, producer
    if role == "producer":
        reader.acquire_many(4).release()
        endpoint, take, owner = producer, producer.claim_many, reader
    unpay(ring, owner.peer, 1)
    closed = []

    def close(name):
        if name == "get_device" and not closed:
            closed.append(endpoint._peer.holding())
            ring.driver.on_call = lambda _: None
            endpoint.close()
            pay(ring, owner, 1)

    ring.driver.on_call = close
    with pytest.raises(gpuring.RingClosed, match="closed"):
        take(4, 20, stream=STREAM)
    assert len(closed[0]) == 2
    pay(ring, owner, 1)


def test_a_signal_handler_cannot_use_a_peer_that_waits_for_a_fence(ring, open_fence):
    producer, index = open_fence
    reader = ring.consumer(start="oldest", gate="host")
    refused = []

    def use():
        with pytest.raises(RuntimeError, match="waiting in another thread"):
            reader.acquire(0, stream=STREAM)
        refused.append(True)
        pay(ring, producer, index)

    with while_it_waits(ring, use), reader.acquire(20, stream=STREAM) as slot:
        assert slot.index == index
    assert refused


def test_what_a_verb_is_about_to_hand_out_is_not_lost(rig):
    """Nobody refers to the slot yet.  Another thread may look for lost slots."""
    ring = rig("timeline")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(2, 0).publish()
    ring.driver.on_call = lambda _: consumer._give_back_lost()
    batch = consumer.acquire_many(2, 0)
    ring.driver.on_call = lambda _: None
    assert held_by(consumer) == [slot.seq for slot in batch] == [4, 5]


def test_close_waits_until_a_verb_of_another_thread_is_out_of_the_driver(rig):
    """Nobody may end a slot that a verb has taken and not handed out yet.  close() rings the bell
    again and again while it waits."""
    ring = rig("timeline")
    ring.segment.poke("head", "waiters", 1)  # so that the bell counts
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim(0).publish()
    inside, closed, early, errors = threading.Event(), threading.Event(), [], []

    def in_driver(_):
        if threading.current_thread() is reader and not inside.is_set():
            inside.set()
            poll(lambda: closed.is_set() or ring.segment.peek("head", "bell") > 20)
            early.append(closed.is_set())

    def reads():
        try:
            consumer.acquire(10)
        except gpuring.RingError as error:
            errors.append(type(error))

    def closes():
        inside.wait(10)
        consumer.close()
        closed.set()

    ring.driver.on_call = in_driver
    reader, closer = threading.Thread(target=reads), threading.Thread(target=closes)
    reader.start()
    closer.start()
    reader.join(20)
    closer.join(20)
    ring.driver.on_call = lambda _: None
    assert early == [False]
    assert closed.is_set()
    assert held_by(consumer) == []
