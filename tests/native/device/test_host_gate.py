"""The host gate: fences are awaited by a thread and not by a stream (see fake_driver.py)."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

import gpuring
from tests.helpers import raw_verbs
from tests.helpers.fake_driver import D, event_of
from tests.helpers.processes import PATIENCE_S
from tests.helpers.promise import promise
from tests.helpers.rig import held_by


@promise("streams.md", "With gate `host` they make their own thread wait.")
@promise(
    "failure.md",
    "There is none, because no stream waits for another process. The call itself goes on, or "
    "passes over the frame. | a thread polls",
    "There is none, as above. | a thread polls",
)
@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_the_host_gate_never_puts_a_wait_into_a_stream(rig, kind):
    ring = rig(kind)
    producer, consumer = ring.producer(gate="host"), ring.consumer(gate="host")
    for _ in range(3):
        producer.claim_many(4, 0).publish()
        with pytest.raises(gpuring.RingTimeout, match="GPU work"):
            consumer.acquire_many(4, 0)
        ring.finish()
        consumer.acquire_many(4, 0).release()
        with pytest.raises(gpuring.RingFull, match="GPU work"):
            producer.claim_many(4, 0)
        ring.finish()
    assert not {"wait", "waits"} & {name for name, *_ in ring.told()}


@promise("failure.md", "`gate=` can be given for a ring, a producer or a consumer.")
def test_a_gate_may_be_given_for_a_producer_or_a_consumer(ring):
    """By default it is that of the ring."""
    for join in (ring.producer, ring.consumer):
        for gate, on_host in ((None, False), ("stream", False), ("host", True)):
            with join(gate=gate) as endpoint:
                assert endpoint._peer.gate_host is on_host
        with pytest.raises(ValueError, match="gate"):
            join(gate="none")


@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_the_host_gate_waits_until_the_gpu_is_done(rig, kind):
    ring = rig(kind)
    producer, consumer = ring.producer(gate="host"), ring.consumer(gate="host")
    producer.claim(0).publish()
    timer = threading.Timer(0.01, ring.finish)
    timer.start()
    consumer.acquire(PATIENCE_S).release()
    timer.join()
    assert not {"wait", "waits"} & {name for name, *_ in ring.told()}


@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_what_the_host_gate_does_not_get_ends_a_batch_before_it(rig, kind):
    ring = rig(kind)
    producer, consumer = ring.producer(), ring.consumer(gate="host")
    producer.claim_many(2, 0).publish()
    ring.finish()
    producer.claim_many(2, 0).publish()
    with consumer.acquire_many(4, 0) as batch:
        assert [slot.seq for slot in batch] == [4, 5]
    with pytest.raises(gpuring.RingTimeout, match="GPU work"):
        consumer.acquire_many(4, 0)
    with pytest.raises(gpuring.RingTimeout, match="GPU work"):
        consumer.acquire(0)
    assert held_by(consumer) == []
    ring.finish()
    with consumer.acquire_many(4, 0) as batch:
        assert [(slot.seq, slot.redelivered) for slot in batch] == [(6, False), (7, False)]


def test_a_claim_that_the_host_gate_does_not_get_voids_nothing(rig):
    """The producer waits for the slot's fences before it claims."""
    ring = rig("timeline")
    producer, consumer = ring.producer(gate="host"), ring.consumer()
    ring.lap(producer, consumer)
    for verb in (
        lambda: producer.claim(0),
        lambda: producer.claim_many(2, 0),
        lambda: asyncio.run(producer.claim_async(0.01)),
    ):
        with pytest.raises(gpuring.RingFull, match=r"GPU work .*sequence 8 "):
            verb()
        assert held_by(producer) == []
    assert [ring.segment.slot(k)[2] for k in range(4)] == ["ready"] * 4
    ring.finish()
    producer.claim_many(2, 0).publish()
    ring.finish()
    with consumer.acquire_many(2, 0) as batch:
        assert [slot.seq for slot in batch] == [8, 9]


def test_a_batch_of_the_host_gate_ends_before_a_slot_whose_fences_are_open(rig):
    ring = rig()
    producer, consumer = ring.producer(gate="host"), ring.consumer()
    ring.lap(producer, consumer)
    ring.finish()
    producer.claim_many(2, 0).publish()
    consumer.acquire_many(2, 0).release()
    batch = producer.claim_many(4, 0)
    assert [slot.seq for slot in batch] == [10, 11]
    assert ring.segment.slot(0)[2] == "ready"
    batch.abandon()


def met(ring, producer, consumer):
    """Two laps, after which the producer has looked at the reader's events.  All of them are
    done."""
    for _ in range(2):
        ring.lap(producer, consumer)
        ring.finish()


def test_the_host_gate_looks_at_the_next_slot_when_its_own_is_claimed_meanwhile(rig):
    ring = rig("event")
    producer, fast, consumer = ring.producer(gate="host"), ring.producer(D), ring.consumer()
    met(ring, producer, consumer)
    ring.lap(fast, consumer)
    ring.finish(fast)
    ring.driver.pending.discard(event_of(consumer, 0))
    asked = []

    def overtaken(event):
        asked.append(event)
        if event == event_of(consumer, 0) and asked.count(event) == 1:
            fast.claim(0)

    ring.driver.on_query = overtaken
    with pytest.raises(gpuring.RingFull, match=r"GPU work .*sequence 17 "):
        producer.claim(0)
    assert event_of(consumer, 0) in asked
    assert [ring.segment.slot(k)[2] for k in range(4)] == ["writing", "ready", "ready", "ready"]


def test_the_look_of_the_host_gate_is_a_hint_and_the_claim_is_checked(rig):
    """The look was wrong here: the claimed slot has to be waited for, and turns void."""
    ring = rig("event")
    producer, consumer = ring.producer(gate="host"), ring.consumer()
    met(ring, producer, consumer)
    ring.lap(producer, consumer)
    ring.finish(producer)
    theirs = event_of(consumer, 0)
    ring.driver.pending.discard(theirs)

    def recorded_anew(event):
        if event == theirs and ring.driver.queries.count(theirs) == 2:
            ring.driver.pending.add(theirs)

    ring.driver.queries.clear()
    ring.driver.on_query = recorded_anew
    fence = raw_verbs.fence(ring.segment.creator, consumer.peer, 0)
    with pytest.raises(gpuring.RingFull, match=r"GPU work .*sequence 16 "):
        producer.claim(0)
    now = raw_verbs.fence(ring.segment.creator, consumer.peer, 0)
    assert now == fence  # the hint has raised nothing
    assert held_by(producer) == []
    assert ring.segment.slot(0) == (16, producer.peer, "void")


def test_the_look_of_the_host_gate_waits_for_readers_first(rig):
    """The error names who is in the way, as always."""
    ring = rig()
    producer, consumer = ring.producer(gate="host"), ring.consumer()
    producer.claim_many(4, 0).publish()
    for timeout in (0, 0.01):
        with pytest.raises(gpuring.RingFull, match=r"'x'.*sequence 4"):
            producer.claim(timeout)

    def read():
        consumer.acquire(0).release()
        ring.finish()

    reader = threading.Thread(target=read)
    reader.start()
    assert producer.claim(PATIENCE_S).seq == 8
    reader.join(PATIENCE_S)


def test_the_look_of_the_host_gate_tells_a_forked_child(rig):
    """Otherwise the child would wait for the reader for ever."""
    ring = rig()
    producer, _ = ring.producer(gate="host"), ring.consumer()
    producer.claim_many(4, 0).publish()
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
        try:
            producer.claim()
        except gpuring.RingError as error:
            os._exit(0 if "fork()" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
