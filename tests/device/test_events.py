"""Rings whose fences are events: which are asked, waited for and opened (see fake_driver.py)."""

from __future__ import annotations

import pytest
from fake_driver import INVALID, C, D, P, RealEvents, event_of, event_waits, real_device

from gpuring._core import EventRow
from gpuring.sync import event


def test_pending_events_are_waited_for_and_complete_ones_raise_their_fence(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(2, 0).publish()
    assert ring.told() == [("record", P, event_of(producer, k)) for k in range(2)]
    consumer.acquire_many(1, 0).release()
    assert ring.told() == [
        ("wait", C, event_of(producer, 0)), ("record", C, event_of(consumer, 0)),
    ]  # fmt: skip
    assert ring.segment.creator.fence(producer.peer, 1) == 0
    ring.finish(producer)
    consumer.acquire_many(1, 0).release()
    assert ring.told() == [("record", C, event_of(consumer, 1))]
    assert ring.segment.creator.fence(producer.peer, 1) == ring.work(producer, 1)[producer.peer, 1]


def test_an_event_that_is_not_known_or_reports_an_error_is_left_to_python(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(4, 0).publish()
    rows, work = consumer._sync.rows, ring.work(producer, 0, 1, 2, 3)
    row = rows[producer.peer]

    def asked_python(slot):
        ring.told()
        consumer.acquire(0)
        assert ring.told() == [("order", C, {(producer.peer, slot): work[producer.peer, slot]})]

    rows[producer.peer] = None
    asked_python(0)
    rows[producer.peer] = EventRow(producer._peer.id, 4)
    asked_python(1)
    rows[producer.peer] = EventRow(producer._peer.id + 1, 4)  # of who had the number before
    asked_python(2)
    rows[producer.peer] = row
    ring.driver.errors["event_query"] = INVALID
    asked_python(3)


def test_rows_are_bounded():
    row = EventRow(7, 2)
    assert (row.peer_id, row[0], row[1]) == (7, 0, 0)
    for index in (2, 2**31):
        with pytest.raises(IndexError):
            _ = row[index]
        with pytest.raises(IndexError):
            row[index] = 1


def test_the_events_of_a_number_are_opened_anew_for_its_next_owner(rig, monkeypatch):
    real_device(monkeypatch)
    monkeypatch.setattr(event, "_idle", {})
    monkeypatch.setattr(event, "_made", {})
    ring = rig("event", sync_type=RealEvents, slots=2)
    producer, first = ring.producer(), ring.consumer("1")

    def lap(consumer):
        producer.claim_many(2, 0).publish()
        ring.finish()
        consumer.acquire_many(2, 0).release()
        ring.told()

    lap(first)
    producer.claim_many(2, 0).abandon()
    calls = [call for call in ring.told() if call[0] == "wait"]
    assert calls == event_waits(P, event_of(first, 0), event_of(first, 1))
    row = producer._sync.rows[first.peer]
    assert row.peer_id == first._peer.id
    producer.claim_many(2, 0).abandon()
    assert producer._sync.rows[first.peer] is row  # met once

    ring.finish()
    first.close()
    ring.peers.remove(first)
    opened = [event_of(first, slot) for slot in range(2)]
    second = ring.consumer("2", D)
    assert second.peer == first.peer
    lap(second)
    del row
    producer.claim_many(2, 0).abandon()
    assert producer._sync.rows[second.peer].peer_id == second._peer.id
    assert producer._sync._runtime.destroyed == opened
    calls = [call for call in ring.told() if call[0] == "wait"]
    assert calls == event_waits(P, event_of(second, 0), event_of(second, 1))


@pytest.mark.parametrize("many", [False, True])
def test_a_frame_that_is_written_when_it_is_released_is_not_torn_later(rig, many):
    """Nobody asks its event again, and the death of its producer tears what the word calls open."""
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
        assert (ring.segment.creator.fence(*owner) == value) is is_written


def test_the_event_of_a_number_that_has_gone_to_another_is_not_asked_at_a_release(rig):
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim(0).publish()
    slot = consumer.acquire(0)
    ring.finish(producer)
    consumer._sync.rows[producer.peer] = row = EventRow(producer._peer.id + 1, 4)
    row[slot.index] = event_of(producer, slot.index)
    ring.driver.queries.clear()
    slot.release()
    assert ring.driver.queries == []
