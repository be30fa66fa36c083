"""Durable subscriptions: how long producers wait while there is no member, and what is lost
then."""

from __future__ import annotations

import pytest

from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.segment import Segment

GIVEN_UP = 2**48 - 1
LONG_AGO = 1  # CLOCK_MONOTONIC


def subscribe(ring: Segment, name: str = "x", *, lossless: bool = True, **terms) -> int:
    asked = {"redeliver": True, "start": "next", "patience_ns": 0, **terms}
    return raw_verbs.subscribe_owed(ring.process(), name.encode(), lossless=lossless, **asked)


def unsubscribe(ring: Segment, name: str = "x") -> tuple[int, bool]:
    return native.unsubscribe(ring.process(), name.encode())


def run_out_of_patience(ring: Segment) -> None:
    """Makes it look as if there was no member for longer than the patience."""
    ring.poke("sub", "patience_ns", 1)
    assert ring.peek("sub", "unread_ns") > 0
    ring.poke("sub", "unread_ns", LONG_AGO)
    ring.process().reap()


def start(ring: Segment) -> int:
    return ring.peek("sub", "word") >> 16


def test_a_durable_subscription_without_a_member_holds_producers_up(segment):
    ring = segment(2)
    assert subscribe(ring) == 0
    producer = ring.producer()
    assert producer.put(2) == [2, 3]
    assert producer.claim() == native.BLOCKED
    assert ring.consumer().drain()[0] == [2, 3]
    assert producer.put() == [4]


def test_the_oldest_frame_of_a_full_ring_is_kept_for_who_comes_first(segment):
    ring = segment(2)
    assert subscribe(ring) == 0
    assert ring.producer().put(2) == [2, 3]
    first = ring.consumer()
    assert first.drain()[0] == [2, 3]
    assert ring.peek("peer", "lost", first.number) == 0


@pytest.mark.parametrize("dies", [False, True])
def test_who_joins_later_goes_on_where_the_last_member_was(segment, dies):
    ring = segment(4)
    assert subscribe(ring) == 0
    reader, producer = ring.consumer(), ring.producer()
    producer.put(3)
    assert [reader.get(), reader.get()] == [4, 5]
    if dies:
        assert reader.acquire() == 6
        reader.die()
        ring.reap()
    else:
        assert reader.peer.leave() == 0
    producer.put()
    later = ring.consumer()
    assert later.acquire() == 6
    assert later.peer.redelivered == dies
    assert later.release(6) == 0
    assert later.get() == 7
    assert later.peer.lost == 0


@pytest.mark.parametrize("frames", [3, 4, 9])
def test_what_was_given_up_is_lost_and_counted(segment, frames):
    ring = segment(4)
    assert subscribe(ring) == 0
    reader, producer = ring.consumer(), ring.producer()
    producer.put(2)
    assert reader.get() == 4
    assert reader.peer.leave() == 0
    run_out_of_patience(ring)
    assert start(ring) == GIVEN_UP
    assert ring.peek("sub", "resume") == 5
    producer.put(frames)
    lost = max(0, frames - 2)  # a frame that may be overwritten just now is not read
    later = ring.consumer()
    assert ring.peek("peer", "lost", later.number) == lost
    assert later.drain()[0] == list(range(5 + lost, 6 + frames))
    assert ring.peek("sub", "lost") == lost


def test_a_subscription_with_a_member_is_not_given_up(segment):
    ring = segment(2)
    assert subscribe(ring, patience_ns=1) == 0
    reader, producer = ring.consumer(), ring.producer()
    ring.poke("sub", "unread_ns", LONG_AGO)  # as if somebody had looked before the join
    ring.process().reap()
    producer.put(2)
    assert producer.claim() == native.BLOCKED
    assert reader.drain()[0] == [2, 3]


def test_a_subscription_whose_patience_has_no_end_is_not_given_up(segment):
    ring = segment(2)
    assert subscribe(ring) == 0
    ring.poke("sub", "unread_ns", LONG_AGO)
    ring.process().reap()
    assert start(ring) == 2


def test_a_producer_that_waits_gives_up_who_has_no_patience_left(segment):
    ring = segment(2)
    assert subscribe(ring, patience_ns=1) == 0
    producer = ring.producer()
    producer.put(2)
    assert producer.claim(10) == 4


def test_a_frame_that_was_counted_as_lost_does_not_come(segment):
    """H15: a dead member had it, and the slot still shows it at the end of the stream."""
    ring = segment(2)
    assert subscribe(ring) == 0
    reader, producer = ring.consumer(), ring.producer()
    producer.put(2)
    assert reader.acquire() == 2
    reader.die()
    ring.reap()
    run_out_of_patience(ring)
    later = ring.consumer()
    assert ring.peek("peer", "lost", later.number) == 1
    assert producer.peer.leave() == 0
    assert later.drain() == ([3], native.ENDED)


@pytest.mark.parametrize("lossless", [True, False])
def test_what_earlier_rings_lost_is_told_once(segment, lossless):
    ring = segment(4)
    assert subscribe(ring, lossless=lossless, owed=5) == 0
    first, second = (ring.consumer(lossless=lossless) for _ in range(2))
    assert ring.peek("peer", "lost", first.number) == 5
    assert ring.peek("peer", "lost", second.number) == 0


def told(reader):
    """Takes the next frame.  Returns its sequence, and what was lost before it."""
    seq = reader.acquire()
    assert seq > 0
    return seq, reader.peer.lost


@pytest.mark.parametrize("ends", ["dies", "leaves", "gives it back and leaves"])
def test_who_was_told_and_was_not_done_with_the_frame_leaves_it_to_the_next(segment, ends):
    ring = segment(4)
    assert subscribe(ring, owed=5) == 0
    ring.producer().put(2)
    first = ring.consumer()
    seq, lost = told(first)
    assert lost == 5
    if ends == "dies":
        first.die()
        ring.reap()
    else:
        if ends != "leaves":
            assert first.give_back(seq) == 0
        assert first.peer.leave() == 0
    second, third = ring.consumer(), ring.consumer()
    assert told(second) == (4, 5)
    assert told(third) == (5, 0)
    assert second.release(4) == 0
    assert (ring.peek("sub", "owed"), ring.peek("peer", "untold", second.number)) == (0, 0)
    assert third.peer.leave() == second.peer.leave() == 0
    assert told(ring.consumer()) == (5, 0)


def test_what_a_member_holds_that_has_told_it_is_told_once(segment):
    """The first of two frames reports the loss.  The member releases the second one first."""
    ring = segment(4)
    assert subscribe(ring, owed=5) == 0
    ring.producer().put(2)
    reader = ring.consumer()
    assert (told(reader), told(reader)) == ((4, 5), (5, 0))
    assert reader.release(5) == 0
    assert ring.peek("sub", "owed") == 5
    assert reader.release(4) == 0
    assert ring.peek("sub", "owed") == 0


def test_a_frame_with_a_loss_of_its_own_does_not_take_over_what_is_owed(segment):
    ring = segment(4)
    assert subscribe(ring, owed=5) == 0
    producer = ring.producer()
    producer.put()
    reader = ring.consumer()
    assert told(reader) == (4, 5)
    producer.put()
    ring.poke("slot", "lost_before", 1, row=5 % 4)
    assert told(reader) == (5, 1)
    assert reader.release(4) == 0
    assert ring.peek("sub", "owed") == 0


def test_what_an_earlier_ring_owes_is_added_once_and_told_by_its_number_alone(segment):
    ring = segment(4)
    assert subscribe(ring, earlier=1) == 0
    assert raw_verbs.settle(ring.creator, 0, 7, 5) == 0
    assert raw_verbs.settle(ring.creator, 0, 9, 3) < 0  # the other ring has yet to forget
    assert raw_verbs.being_settled(ring.creator, 0) == 7
    ring.producer().put()
    reader = ring.consumer()
    assert told(reader) == (4, 5)
    assert reader.release(4) == 0
    assert raw_verbs.settled(ring.creator, 0) == 0
    assert reader.peer.leave() == 0
    assert (owed(ring), raw_verbs.being_settled(ring.creator, 0)) == (0, 0)


def test_nothing_is_added_where_nobody_counts_it(segment):
    ring = segment(4)
    assert subscribe(ring) == 0
    assert raw_verbs.settle(ring.creator, 0, 7, 5) < 0  # no earlier ring owes it anything
    assert subscribe(ring, earlier=1) == 0
    ring.creator.close_ring()
    assert raw_verbs.settle(ring.creator, 0, 7, 5) < 0
    assert owed(ring) == 0


def test_nothing_goes_over_to_another_ring_while_a_member_lives(segment):
    ring = segment(4)
    assert subscribe(ring, owed=5) == 0
    ring.producer().put()
    reader = ring.consumer()
    assert told(reader) == (4, 5)
    assert owed(ring) is None
    assert reader.peer.leave() == 0
    assert owed(ring) == 6


@pytest.mark.parametrize("released", [False, True])
def test_what_was_lost_when_it_was_given_up_is_told_until_somebody_is_done(segment, released):
    ring = segment(2)
    assert subscribe(ring) == 0
    run_out_of_patience(ring)
    producer = ring.producer()
    producer.put(4)
    first = ring.consumer()
    assert told(first) == (5, 3)
    if released:
        assert first.release(5) == 0
    first.die()
    ring.reap()
    producer.put()
    assert told(ring.consumer()) == ((6, 0) if released else (6, 4))  # given up again


def owed(ring):
    return raw_verbs.owed(ring.creator, 0)


def test_what_a_subscription_has_not_had(segment):
    ring = segment(4)
    assert subscribe(ring) == 0
    reader, producer = ring.consumer(), ring.producer()
    producer.put(3)
    assert reader.get() == 4
    assert owed(ring) is None  # the reader may still read them
    assert reader.peer.leave() == 0
    claimed = producer.claim()
    assert owed(ring) == 3  # it may still be published
    producer.abandon(claimed)
    assert owed(ring) == 2
    run_out_of_patience(ring)
    producer.put(4)
    assert owed(ring) == 7  # a void one that is gone counts


def test_a_lossy_one_goes_on_behind_what_it_had_last(segment):
    ring = segment(4)
    assert subscribe(ring, lossless=False) == 0
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(4)
    assert reader.latest() == 7
    assert reader.release(7) == 0
    assert reader.peer.leave() == 0
    producer.put(2)
    later = ring.consumer(lossless=False)
    assert later.drain()[0] == [8, 9]
    assert ring.peek("peer", "lost", later.number) == 0


def test_unsubscribe_removes_it_now_or_with_its_last_member(segment):
    ring = segment(2)
    assert unsubscribe(ring) == (0, False)
    assert subscribe(ring) == 0
    assert unsubscribe(ring) == (0, True)
    assert ring.peek("sub", "word") == ring.mask("sub_mask") == 0
    assert subscribe(ring) == 0
    reader = ring.consumer()
    assert unsubscribe(ring) == (0, True)
    assert ring.peek("sub", "word") != 0
    assert reader.peer.leave() == 0
    assert ring.peek("sub", "word") == ring.mask("sub_mask") == 0


def test_an_ordinary_subscription_becomes_durable(segment):
    ring = segment(2)
    reader, producer = ring.consumer(), ring.producer()
    assert subscribe(ring, lossless=False) == native.MODE_MISMATCH
    assert subscribe(ring) == 0
    assert reader.peer.leave() == 0
    producer.put(2)
    assert producer.claim() == native.BLOCKED


def test_a_frame_without_a_slot_is_counted_and_its_readers_are_told(segment):
    ring = segment(2)
    reader, producer = ring.consumer(), ring.producer()
    producer.put(2)
    for _ in range(3):
        assert producer.claim() == native.BLOCKED
        producer.peer.count_drop()
    assert ring.peek("head", "dropped") == ring.peek("peer", "dropped", producer.number) == 3
    assert reader.drain()[0] == [2, 3]
    assert reader.peer.lost == 0
    producer.put()
    assert reader.acquire() == 4
    assert reader.peer.lost == 3


def test_a_member_that_joins_is_told_of_no_earlier_drops(segment):
    ring = segment(2)
    producer = ring.producer()
    producer.peer.count_drop()
    producer.put()
    reader = ring.consumer(start="oldest")
    assert reader.acquire() == 2
    assert reader.peer.lost == 0
    assert raw_verbs.joins(ring.creator) == 2
