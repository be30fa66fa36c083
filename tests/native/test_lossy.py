"""Lossy subscriptions: losses in order and by `latest`, holds of several laps, and the books."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuring import native
from tests.helpers.segment import Segment, pack


def test_a_lossy_reader_is_passed_and_told_how_many(segment):
    ring = segment(2)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(5)  # 2 … 6; 5 and 6 are still there
    assert (reader.acquire(), reader.peer.lost) == (5, 3)
    assert reader.release(5) == 0
    assert (reader.acquire(), reader.peer.lost) == (6, 0)
    assert ring.peek("sub", "lost", reader.subscription) == 3
    assert ring.peek("peer", "lost", reader.number) == 3


def test_void_sequences_count_as_lost_for_a_lossy_reader(segment):
    ring = segment(4)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    assert producer.abandon(producer.claim()) == 0
    producer.put()
    assert (reader.acquire(), reader.peer.lost) == (5, 1)


def test_what_was_lost_is_counted_once_though_a_reader_starts_over(segment):
    ring = segment(4)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    assert producer.abandon(producer.claim()) == 0  # 4
    producer.put(2)
    assert (reader.acquire(), reader.acquire()) == (5, 6)
    assert reader.give_back(5) == 0  # everybody looks again from the oldest that may be there
    assert (reader.acquire(), reader.peer.lost) == (5, 1)  # counted again: nobody had the frame
    assert ring.peek("sub", "lost", reader.subscription) == 1


def test_latest_takes_the_newest_and_never_goes_back(segment):
    ring = segment(4)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(3)
    assert (reader.latest(), reader.peer.lost) == (6, 2)
    assert reader.latest() == reader.acquire() == native.BLOCKED
    producer.put(1)
    assert producer.claim() == 8
    assert (reader.latest(), reader.peer.lost) == (7, 0)
    assert reader.peer.holding() == [(2, 6), (3, 7)]
    assert producer.publish(8) == 0
    assert (reader.acquire(), reader.peer.lost) == (8, 0)


def test_what_was_given_back_does_not_come_after_the_latest(segment):
    """The frame is lost with all others that latest passes over, for the other members, too."""
    ring = segment(4)
    reader, other = ring.consumer("v", lossless=False), ring.consumer("v", lossless=False)
    producer = ring.producer()
    producer.put(3)
    assert reader.acquire() == 4
    assert reader.give_back(4) == 0
    assert (reader.latest(), reader.peer.lost) == (6, 2)
    assert reader.acquire() == native.BLOCKED
    producer.put(1)
    assert (reader.acquire(), reader.peer.lost) == (7, 0)
    assert other.acquire() == 5
    ring.creator.close_ring()
    assert (reader.release(6), reader.release(7), other.release(5)) == (0, 0, 0)
    assert (reader.acquire(), other.acquire()) == (native.ENDED, native.ENDED)


def test_latest_passes_a_frame_that_is_still_being_written(segment):
    ring = segment(4)
    reader, slow, fast = ring.consumer(lossless=False), ring.producer(), ring.producer()
    assert slow.claim() == 4
    fast.put(2)
    assert (reader.latest(), reader.peer.lost) == (6, 2)
    assert slow.publish(4) == 0
    assert reader.latest() == native.BLOCKED


def test_a_frame_is_latest_for_one_member_only(segment):
    ring = segment(4)
    a, b = ring.consumer("v", lossless=False), ring.consumer("v", lossless=False)
    producer = ring.producer()
    producer.put(3)
    assert a.latest() == 6
    assert b.latest() == native.BLOCKED
    producer.put(1)
    assert b.latest() == 7
    assert a.latest() == native.BLOCKED


def test_what_a_passed_frame_hid_is_counted_by_latest(segment):
    """A frame that latest loses on the way must not hide the older ones that it skipped for it."""
    ring = segment(4)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(3)
    ring.poke("slot", "word", pack(6, 200, "ready", "slot"), 2)  # cannot be confirmed
    assert reader.latest() == native.BLOCKED
    producer.put(1)
    assert reader.latest() == 7
    assert ring.peek("sub", "lost", reader.subscription) == 3


def test_what_a_blocked_acquire_skipped_is_told_with_the_next_frame(segment):
    """`lost` of a frame has all sequences that were skipped just before it, over any number of
    calls."""
    ring = segment(2)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(3)  # 2 to 4, of which 2 is gone
    assert producer.abandon(producer.claim()) == 0  # 5, over 3
    assert producer.claim() == 6  # over 4, still being written
    assert reader.acquire() == native.BLOCKED
    assert producer.publish(6) == 0
    assert reader.acquire() == 6
    assert reader.peer.lost == ring.peek("sub", "lost", reader.subscription) == 4


@settings(deadline=None)
@given(steps=st.lists(st.sampled_from("pppvarl"), max_size=60), slots=st.integers(1, 4))
def test_the_books_of_a_lone_lossy_reader_balance(steps, slots):
    """The frames that were read and the lost sequences are all that the reader has met."""
    ring = Segment(slots)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    had, lost, held = [], 0, []
    for step in steps:
        if step in "pv":
            seq = producer.claim(1 if len(held) < slots else 0)
            if seq > 0:
                assert (producer.publish if step == "p" else producer.abandon)(seq) == 0
        elif step == "r" and held:
            assert reader.release(held.pop(0)) == 0
        elif step in "al":
            seq = reader.acquire() if step == "a" else reader.latest()
            if seq > 0:
                had.append(seq)
                held.append(seq)
                lost += reader.peer.lost
                assert lost == ring.peek("sub", "lost", reader.subscription)
                assert len(had) + lost == seq + 1 - slots
    assert had == sorted(set(had))
    ring.close()


# ---- a holder costs the ring one slot for a lap, not its life ----------------------------------


def test_a_claim_goes_on_past_a_frame_that_a_lossy_reader_holds(segment):
    ring = segment(3)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(3)
    assert reader.acquire() == 3
    assert producer.claim(1) == 7
    assert ring.slot(0) == (6, producer.number, "void")


def test_a_claim_that_may_not_block_goes_on_too(segment):
    """The next slot is free, so a held slot before it is no reason to drop the frame."""
    ring = segment(3)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(3)
    assert reader.acquire() == 3
    assert producer.claim(0) == 7


def test_a_holder_is_never_overwritten_however_many_laps_he_holds_on(segment):
    """H1: after one void lap the held sequence is more than a lap old."""
    ring = segment(2)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(1)
    assert reader.acquire() == 2
    assert producer.put(1) == [3]
    for lap in range(4, 20, 2):
        assert producer.claim(1) == lap + 1
        assert ring.slot(0) == (lap, producer.number, "void")
        assert producer.publish(lap + 1) == 0
    assert reader.release(2) == 0
    assert producer.claim(1) == 20


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_no_storm_of_voids_while_every_slot_is_held(segment, slots):
    """H2: the claim waits, names a holder, and has voided nothing."""
    ring = segment(slots)
    readers = [ring.consumer(f"v{k}", lossless=False) for k in range(2)]
    producer = ring.producer()
    producer.put(slots)
    for k in range(slots):
        assert readers[k % 2].peer.header is not None
        reader = readers[k % 2]
        seq = reader.acquire()
        while seq != slots + k:
            assert reader.release(seq) == 0
            seq = reader.acquire()
    assert sum(len(reader.peer.holding()) for reader in readers) == slots
    before = ring.bytes()
    assert producer.claim(0) == producer.claim(0) == native.BLOCKED
    assert ring.bytes() == before
    reason, peer, subscription, seq, _ = producer.peer.culprit
    assert reason == native.BY_HOLDER
    assert (peer, seq) == (readers[0].number, slots)
    assert subscription == readers[0].subscription
    assert readers[(slots - 1) % 2].release(2 * slots - 1) == 0
    assert producer.claim(1) == 3 * slots - 1


def test_a_lossy_holder_does_not_gate_the_frames_of_a_lossless_reader(segment):
    ring = segment(2)
    lossless, lossy = ring.consumer("all"), ring.consumer("some", lossless=False)
    producer = ring.producer()
    producer.put(1)
    assert lossy.acquire() == 2
    producer.put(1)
    assert lossless.drain()[0] == [2, 3]
    for seq in (5, 7, 9):
        assert producer.claim(1) == seq
        assert producer.publish(seq) == 0
        assert lossless.drain() == ([seq], native.BLOCKED)
    assert lossless.peer.lost == 0


def test_a_doomed_hold_of_another_member_is_replaced(segment):
    """A member stored HELD and was overtaken before it looked.  Another member takes the newer
    frame over its word, and its own undo then changes nothing (H8)."""
    ring = segment(2)
    a, b = ring.consumer("v", lossless=False), ring.consumer("v", lossless=False)
    producer = ring.producer()
    producer.put(3)  # 2 3 4
    ring.poke("take", "word", pack(2, a.number, "held", "take"), a.subscription)
    assert (b.acquire(), b.acquire()) == (3, 4)
    assert ring.take(b.subscription, 0) == (4, b.number, "held")
    assert a.release(2) == native.REAPED
    assert ring.take(b.subscription, 0) == (4, b.number, "held")


def test_a_frame_that_was_given_back_before_a_later_one_tells_nothing_of_that_one(segment):
    """What was lost before a frame is reported with it, once, whatever else is given back."""
    ring = segment(4)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(1)
    assert (reader.acquire(), reader.peer.lost) == (4, 0)
    producer.put(6)  # 5 … 11 but 8, whose slot is held
    assert (reader.acquire(), reader.peer.lost) == (9, 4)
    assert reader.give_back(4) == 0
    assert (reader.acquire(), reader.peer.lost) == (10, 0)


def test_frames_that_are_given_back_together_tell_once_what_was_lost_before_them(segment):
    ring = segment(4)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(3)
    assert producer.abandon(producer.claim()) == 0  # 7
    producer.put(2)  # 4 and 5 are gone
    taken = [(reader.acquire(), reader.peer.lost) for _ in range(3)]
    assert taken == [(6, 2), (8, 1), (9, 0)]
    for seq in (9, 8, 6):
        assert reader.give_back(seq) == 0
    again = [(reader.acquire(), reader.peer.lost) for _ in range(3)]
    assert again == taken


def test_what_was_given_back_and_is_passed_is_lost(segment):
    """The frames and what was lost between them count once, in each of the three books."""
    ring = segment(4)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(1)
    assert producer.abandon(producer.claim()) == 0  # 5
    producer.put(1)
    assert [(reader.acquire(), reader.peer.lost) for _ in range(2)] == [(4, 0), (6, 1)]
    assert (reader.give_back(6), reader.give_back(4)) == (0, 0)
    assert ring.peek("peer", "lost", reader.number) == 0
    producer.put(8)  # 7 … 14, so that 10 is the oldest still there
    assert (reader.acquire(), reader.peer.lost) == (11, 7)
    assert ring.peek("sub", "lost", reader.subscription) == 7
    assert ring.peek("peer", "lost", reader.number) == 7


def test_frames_given_back_forwards_take_nothing_from_what_was_lost(segment):
    ring = segment(8)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(2)
    assert producer.abandon(producer.claim()) == 0  # 10
    producer.put(3)
    taken = [(reader.acquire(), reader.peer.lost) for _ in range(5)]
    assert taken == [(8, 0), (9, 0), (11, 1), (12, 0), (13, 0)]
    assert (reader.give_back(11), reader.give_back(12)) == (0, 0)  # 13 is kept
    assert ring.peek("sub", "lost", reader.subscription) == 1
    assert [(reader.acquire(), reader.peer.lost) for _ in range(2)] == [(11, 1), (12, 0)]
    assert reader.acquire() == native.BLOCKED


def test_what_was_given_back_is_lost_although_its_slot_has_a_later_frame_that_was(segment):
    """The slot's take word names the later frame, so it says nothing of those between."""
    ring = segment(3)
    reader, producer = ring.consumer(lossless=False), ring.producer()
    producer.put(2)
    assert (reader.acquire(), reader.acquire()) == (3, 4)
    assert producer.put(3) == [5, 8, 11]  # the others' slots are held
    assert (reader.acquire(), reader.peer.lost) == (11, 6)
    assert reader.release(3) == 0
    assert (reader.give_back(11), reader.give_back(4)) == (0, 0)
    assert (reader.acquire(), reader.peer.lost) == (11, 7)  # 4 … 10
    assert ring.peek("sub", "lost", reader.subscription) == 7
    assert ring.peek("peer", "lost", reader.number) == 7
