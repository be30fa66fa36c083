"""One's own earlier fence: no wait on the stream that it is recorded on, one on any other.

A stream is known by its id, which no other has in the life of the process (see fake_driver.py).
"""

from __future__ import annotations

import pytest

from tests.helpers import raw_verbs
from tests.helpers.fake_driver import INVALID, PER_THREAD, C, D, P, event_of, event_waits


def read_twice(ring, producer, consumer, first, second):
    """One consumer reads slot 0 twice, while its first read is pending.  Returns the calls of the
    second acquire."""
    producer.claim(0).publish()
    consumer._ring.current.ptr = first
    consumer.acquire(0).release()
    producer.claim(0).publish()
    ring.finish(producer)
    ring.told()
    consumer._ring.current.ptr = second
    slot = consumer.acquire(0)
    calls = ring.told()
    slot.release()
    return calls


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [(C, C, False), (C, D, True), (0, 0, False), (0, C, True), (C, 0, True),
     (PER_THREAD, PER_THREAD, True), (C, PER_THREAD, True), (1, 1, False)],
)  # fmt: skip
def test_a_reader_waits_for_its_own_fence_only_on_another_stream(rig, first, second, waits):
    """Each thread has another per-thread default stream."""
    ring = rig(slots=1)
    producer, consumer = ring.producer(), ring.consumer()
    calls = read_twice(ring, producer, consumer, first, second)
    value = raw_verbs.work(ring.segment.creator, consumer.peer, 0)
    before = 1 << 16  # the promise of frame 1
    assert value > before
    assert calls == ([("wait", second, {(consumer.peer, 0): before})] if waits else [])


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [(P, P, False), (P, D, True), (PER_THREAD, PER_THREAD, True), (0, 1, False)],
)
@pytest.mark.parametrize("end", ["publish", "abandon"])
def test_a_writer_waits_for_its_own_fence_only_on_another_stream(rig, first, second, waits, end):
    ring = rig(slots=2)
    producer = ring.producer()
    producer._ring.current.ptr = first
    getattr(producer.claim_many(2, 0), end)()
    promised = ring.work(producer, 0, 1)
    ring.told()
    producer._ring.current.ptr = second
    producer.claim_many(2, 0)
    assert ring.told() == ([("waits", second, promised)] if waits else [])


def test_one_slot_at_a_time_remembers_its_stream_too(rig):
    ring = rig(slots=1)
    producer = ring.producer()
    for _ in range(3):
        producer.claim(0, stream=P).publish()
        assert [name for name, *_ in ring.told()] == ["write"]
    producer.claim(0, stream=D)
    assert [call[:2] for call in ring.told()] == [("wait", D)]


def test_a_record_is_known_by_the_id_of_its_own_stream(rig):
    """It is not known by the id of the stream before, which was the last that was asked for."""
    ring = rig(slots=1)
    producer = ring.producer()
    producer.claim(0, stream=P).publish()
    ring.finish()
    producer._ring.current.ptr = D
    producer.claim(0).publish()
    ring.told()
    producer._ring.current.ptr = P
    producer.claim(0)
    assert [call[:2] for call in ring.told()] == [("wait", P)]


def test_a_record_behind_several_streams_is_on_the_first(rig):
    """The first stream waits for the others before that."""
    ring = rig(slots=1)
    producer = ring.producer()
    producer.claim(0).publish()
    slot = producer.claim(0)
    slot.use_on(D)
    slot.publish()
    ring.told()
    slot = producer.claim(0)
    assert ring.told() == []
    slot.publish()  # the slot was not used on D
    assert [call[:2] for call in ring.told()] == [("write", P)]
    producer.claim(0, stream=D)
    assert ring.told() == [("wait", D, ring.work(producer, 0))]


@pytest.mark.parametrize("kind", ["timeline", "event"])
@pytest.mark.parametrize("role", ["producer", "consumer"])
@pytest.mark.parametrize("noticed", [False, True])
def test_a_new_stream_with_the_handle_of_a_destroyed_one_is_another(rig, kind, role, noticed):
    """CUDA uses handles again at once, while the work of the destroyed stream is pending.

    noticed: a claim or an acquire of another slot has asked for the new stream's id since."""
    ring = rig(kind, slots=2)
    producer, consumer = ring.producer(stream=P), ring.consumer(stream=C)
    peer = {"producer": producer, "consumer": consumer}[role]
    other = {"producer": consumer, "consumer": producer}[role]
    stream = peer._ring.current.ptr

    def lap():
        producer.claim_many(2, 0).publish()
        consumer.acquire_many(2, 0).release()

    lap()
    ring.finish(other)
    ring.driver.ids[stream] = 77  # destroyed, and made anew
    if role == "consumer":
        producer.claim_many(2, 0).publish()
        ring.finish(other)
    take = getattr(peer, "claim" if role == "producer" else "acquire")
    end = "abandon" if role == "producer" else "release"
    before = ring.work(peer, 0, 1)
    ring.told()

    def waits(slot):
        what = (
            event_of(peer, slot)
            if kind == "event"
            else {(peer.peer, slot): before[peer.peer, slot]}
        )
        return [call for call in ring.told() if call[0] == "wait"] == [("wait", stream, what)]

    first = take(0)
    assert waits(0)
    if noticed:
        second = take(0)
        assert waits(1)
        getattr(second, end)()
    getattr(first, end)()  # with the id that it had before, if nobody has noticed


def test_what_a_new_stream_recorded_under_an_old_id_is_waited_for_once(rig):
    """A record does not ask for the id again.  The first claim that looks finds the new one."""
    ring = rig(slots=1)
    producer = ring.producer()
    producer.claim(0).publish()
    ring.finish()
    ring.driver.ids[P] = 77
    producer.claim(0).publish()  # nothing was pending: nobody asked
    ring.told()
    for pending in (1, 0, 0):
        producer.claim(0).publish()
        assert [name for name, *_ in ring.told()] == ["wait"] * pending + ["write"]
    ring.driver.ids[P] = 78
    producer.claim(0).publish()
    assert [name for name, *_ in ring.told()] == ["wait", "write"]


def test_a_stream_without_an_id_is_waited_for(rig):
    ring = rig(slots=1)
    producer = ring.producer()
    ring.driver.errors["get_id"] = INVALID
    producer.claim(0).publish()
    ring.told()
    for _ in range(2):
        producer.claim(0).publish()
        assert [name for name, *_ in ring.told()] == ["wait", "write"]
    ring.driver.errors.clear()


def test_ids_are_asked_for_once_in_a_call_and_only_while_ones_own_work_is_pending(rig):
    ring = rig()
    producer = ring.producer()
    calls = []
    ring.driver.on_call = calls.append

    def asked(call):
        calls.clear()
        return call(), calls.count("get_id")

    batch, n = asked(lambda: producer.claim_many(4, 0))
    assert n == 0
    assert asked(batch.publish)[1] == 4  # each slot remembers its own
    for _ in range(3):
        batch, n = asked(lambda: producer.claim_many(4, 0))
        assert n == 1  # for all four
        assert asked(batch.publish)[1] == 0
    ring.finish()
    batch, n = asked(lambda: producer.claim_many(4, 0))
    assert n == 0
    assert asked(batch.publish)[1] == 0


def test_ones_own_event_is_waited_for_on_another_stream_only(rig):
    for second, waits in ((C, False), (D, True)):
        ring = rig("event", slots=1)
        producer, consumer = ring.producer(), ring.consumer()
        calls = read_twice(ring, producer, consumer, C, second)
        assert calls == (event_waits(second, event_of(consumer, 0)) if waits else [])
