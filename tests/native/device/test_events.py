"""Rings whose fences are events: which are asked, waited for and opened (see fake_driver.py)."""

from __future__ import annotations

import pytest

import gpuring
from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.fake_driver import INVALID, C, D, P, event_of, event_waits
from tests.helpers.promise import promise
from tests.helpers.rig import held_by


@pytest.fixture
def elsewhere(rig):
    """(ring, a peer, another peer).  The second peer is in a process with a driver of its own, so
    it opens the events of the first."""

    def make(kind, *, first="producer", **options):
        ring = rig(kind, **options)
        here = getattr(ring, first)()
        other = native.Driver(ring.driver.addresses)
        place = ring.ring(C if first == "producer" else P, driver=other)
        there = ring.consumer(ring=place) if first == "producer" else ring.producer(ring=place)
        return ring, here, there

    return make


@promise(
    "failure.md",
    'With `sync="event"` a process has to ask the producer\'s event for that.',
    "An event that is already complete needs no wait.",
)
def test_pending_events_are_waited_for_and_complete_ones_raise_their_fence(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(2, 0).publish()
    assert ring.told() == [("record", P, event_of(producer, k)) for k in range(2)]
    consumer.acquire_many(1, 0).release()
    assert ring.told() == [
        ("wait", C, event_of(producer, 0)), ("record", C, event_of(consumer, 0)),
    ]  # fmt: skip
    assert raw_verbs.fence(ring.segment.creator, producer.peer, 1) == 0
    ring.finish(producer)
    consumer.acquire_many(1, 0).release()
    assert ring.told() == [("record", C, event_of(consumer, 1))]
    reached = raw_verbs.fence(ring.segment.creator, producer.peer, 1)
    assert reached == ring.work(producer, 1)[producer.peer, 1]


def test_an_event_that_reports_an_error_is_told(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(4, 0).publish()
    ring.driver.errors["event_query"] = INVALID
    for many in (False, True):
        with pytest.raises(gpuring.DeviceError, match=rf"peer {producer.peer}.*slot 0.*{INVALID}"):
            consumer.acquire_many(4, 0) if many else consumer.acquire(0)
        assert held_by(consumer) == []
    ring.driver.errors.clear()
    assert [slot.seq for slot in consumer.acquire_many(4, 0)] == [4, 5, 6, 7]


def test_an_event_that_cannot_be_opened_is_told(elsewhere):
    ring, producer, consumer = elsewhere("event")
    producer.claim_many(2, 0).publish()
    ring.driver.errors["open_handle"] = INVALID
    with pytest.raises(gpuring.DeviceError, match=rf"event for slot 0 .*{INVALID}.*namespaces"):
        consumer.acquire_many(2, 0)
    assert held_by(consumer) == []
    ring.driver.errors.clear()
    consumer.acquire_many(2, 0).release()
    assert ring.driver.opened == [event_of(producer, 0), event_of(producer, 1)]


def test_a_process_that_can_make_no_more_events_says_so(rig):
    ring = rig("event")
    made = []

    def third(name):
        made.append(name)
        if made.count("event_create") == 3:
            ring.driver.errors["event_create"] = INVALID

    ring.driver.on_call = third
    with pytest.raises(
        gpuring.DeviceError, match=rf"each slot, but only 2 could be made \({INVALID}\).*made 2"
    ):
        ring.producer()
    ring.driver.on_call = lambda _: None
    ring.driver.errors.clear()
    assert ring.segment.creator.live_peers() == []
    producer = ring.producer()  # the next producer takes the same events
    assert made.count("event_create") == 3
    producer.claim(0).publish()


def test_the_events_of_a_number_are_opened_anew_for_its_next_owner(elsewhere):
    """This holds for the events of readers, too, for which the next writer waits."""
    ring, first, producer = elsewhere("event", slots=2, first="consumer")

    def lap(consumer):
        producer.claim_many(2, 0).publish()
        ring.finish()
        consumer.acquire_many(2, 0).release()
        ring.told()

    lap(first)
    producer.claim_many(2, 0).abandon()
    calls = [call for call in ring.told() if call[0] == "wait"]
    assert calls == event_waits(P, event_of(first, 0), event_of(first, 1))
    opened = [event_of(first, slot) for slot in range(2)]
    assert ring.driver.opened.count(opened[0]) == ring.driver.opened.count(opened[1]) == 1
    ring.driver.opened.clear()
    producer.claim_many(2, 0).abandon()
    assert ring.driver.opened == []  # opened only once
    assert ring.driver.destroyed == []

    ring.finish()
    first.close()
    ring.peers.remove(first)
    first_id = first._peer.id
    second = ring.consumer("2", D, ring=first._ring)
    assert (second.peer, second._peer.id != first_id) == (first.peer, True)
    lap(second)
    producer.claim_many(2, 0).abandon()
    assert sorted(ring.driver.destroyed) == opened
    assert sorted(ring.driver.opened) == opened  # a process uses its events again
    calls = [call for call in ring.told() if call[0] == "wait"]
    assert calls == event_waits(P, event_of(second, 0), event_of(second, 1))


@pytest.mark.parametrize("many", [False, True])
def test_a_frame_that_is_written_when_it_is_released_is_not_torn_later(rig, many):
    """Nobody looks at its event again.  The death of its producer tears all frames that the word
    calls open."""
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    for is_written in (False, True):
        producer.claim(0).publish()
        slot = consumer.acquire_many(2, 0) if many else consumer.acquire(0)
        if is_written:
            ring.finish(producer)
        slot.release()
        (seq,) = [each.seq for each in slot] if many else [slot.seq]
        ((owner, value),) = ring.work(producer, seq % 4).items()
        assert (raw_verbs.fence(ring.segment.creator, *owner) == value) is is_written


def test_a_row_is_not_asked_for_another_owner_of_the_number(elsewhere):
    """A frame's producer has left, so its fence was paid.  Its number belongs to another peer
    now."""
    ring, first, consumer = elsewhere("event")
    first.claim(0).publish()
    slot = consumer.acquire(0)
    ring.finish(first)
    first.close()
    ring.peers.remove(first)
    second = ring.producer(ring=first._ring)
    assert second.peer == first.peer
    ring.driver.queries.clear()
    ring.driver.opened.clear()
    slot.release()
    assert ring.driver.queries == ring.driver.opened == []
